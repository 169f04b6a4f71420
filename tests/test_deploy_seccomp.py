"""The seccomp profile of the device plugin: what it must refuse, and that a daemon can live with it.

A container runtime applies it in the tier ``kernel``.
"""

from __future__ import annotations

import json

import pytest

from deploy.render import DEPLOY
from tests.test_deploy_plugin import COMPONENTS, container

PROFILE = json.loads((DEPLOY / "seccomp" / "launcherkit-plugin.json").read_text())

REACHES_OUT = {
    "other processes": "kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace",
    "files past every mount": "name_to_handle_at open_by_handle_at",
    "mounts": (
        "chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root umount umount2"
    ),
    "namespaces": "setns unshare",
    "the kernel": (
        "acct bpf delete_module fanotify_init finit_module init_module ioperm iopl kexec_file_load kexec_load "
        "lookup_dcookie perf_event_open quotactl reboot swapoff swapon syslog userfaultfd"
    ),
    "device nodes": "mknod mknodat",
    "clock and names": "adjtimex clock_adjtime clock_settime setdomainname sethostname settimeofday",
    "rings and keys": "add_key io_uring_enter io_uring_register io_uring_setup keyctl request_key",
    "personalities": "modify_ldt personality",
}


def allowed(call: str) -> list[list[dict[str, int | str]]]:
    """The conditions under which a system call is allowed."""
    rules = [rule for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and call in rule["names"]]
    return [rule.get("args", []) for rule in rules]


@pytest.mark.parametrize("what", REACHES_OUT)
def test_calls_that_reach_out_of_the_container_are_refused(what: str) -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert [call for call in REACHES_OUT[what].split() if allowed(call)] == []


def test_processes_are_started_in_the_same_namespaces() -> None:
    (((condition),),) = allowed("clone")
    namespaces = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    assert condition == {"index": 0, "value": namespaces, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    # Its flags are in memory, where no filter sees them; the C library takes clone where there is no clone3.
    (rule,) = (rule for rule in PROFILE["syscalls"] if "clone3" in rule["names"])
    assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_sockets_are_those_of_the_node_and_the_kernels_events_and_none_reaches_the_network() -> None:
    unix, netlink = 1, 16
    families = [condition["value"] for (condition,) in allowed("socket")]
    assert families == [unix, netlink]


def test_it_is_of_the_form_that_containerd_reads_which_knows_no_names_of_capabilities() -> None:
    """A key that it doesn't know is ignored, and a rule that was meant for a few is for all."""
    assert set(PROFILE) == {"defaultAction", "architectures", "syscalls"}
    for rule in PROFILE["syscalls"]:
        assert set(rule) <= {"names", "action", "args", "errnoRet"}
    names = [name for rule in PROFILE["syscalls"] for name in rule["names"] if name != "socket"]
    assert len(names) == len(set(names))


def test_the_component_names_the_profile() -> None:
    context = container(COMPONENTS["seccomp"] / "daemonset.yaml")["securityContext"]
    assert context == {"seccompProfile": {"type": "Localhost", "localhostProfile": "launcherkit-plugin.json"}}
