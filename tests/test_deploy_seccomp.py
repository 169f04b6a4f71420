"""The seccomp profile of the device plugin: what it must refuse, and what the kernel refuses under it.

In the tier ``kernel`` daemons live with it, applied by a container runtime and by `tests.support.confined`.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest

from deploy.render import DEPLOY
from tests.support import confined
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


TRIED = """
import ctypes, json, os, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
calls = {"ptrace": (16, 0, 0, 0), "process_vm_readv": (1, 0, 0, 0, 0, 0), "setns": (-1, 0), "unshare": (0,)}
calls |= {"mount": (0,) * 5, "open_by_handle_at": (-1, 0, 0)}
found = {}
for name, arguments in calls.items():
    getattr(libc, name)(*map(ctypes.c_long, arguments))
    found[name] = ctypes.get_errno()
try:
    socket.socket(socket.AF_INET)
except OSError as refused:
    found["AF_INET"] = refused.errno
socket.socket(socket.AF_UNIX)
thread = threading.Thread(target=lambda: found.update(thread=0))
thread.start()
thread.join()
found["process"] = subprocess.run([sys.executable, "-IS", "-c", ""]).returncode
print(json.dumps(found))
"""
"""What is refused with which error, and that a process can have threads and others."""


@pytest.mark.skipif(not confined.is_there(), reason="needs libseccomp")
def test_under_it_the_kernel_refuses_those_calls_and_a_process_goes_on() -> None:
    command = confined.command([sys.executable, "-IS", "-c", TRIED])
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    refused = ["ptrace", "process_vm_readv", "setns", "unshare", "mount", "open_by_handle_at", "AF_INET"]
    assert found == {**dict.fromkeys(refused, errno.EPERM), "thread": 0, "process": 0}
