"""What one call of a hook says where it fails, without a socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from grpclib import GRPCError, Status

from launcherkit.errors import (
    BAD_ANNOTATION,
    BAD_PCI_ADDRESS,
    BAD_SETTING,
    GROUP_NOT_VIABLE,
    MESSAGE_TOO_LARGE,
    UNREADABLE_FILE,
    Code,
    LauncherkitError,
    SeveralErrors,
)
from launcherkit.hooks import core as hook_core
from launcherkit.hooks.core import HookSettings, complete_domain, name_of_vmi
from launcherkit.rpc.calls import MESSAGE_LIMIT, refusal
from tests.support.domains import domain, pci_hostdev
from tests.support.hosttree import HostTree

DOMAIN = b"<domain type='kvm'><devices/></domain>"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BAD_PCI_ADDRESS, Status.INVALID_ARGUMENT),
        (BAD_ANNOTATION, Status.INVALID_ARGUMENT),
        (UNREADABLE_FILE, Status.FAILED_PRECONDITION),
        (GROUP_NOT_VIABLE, Status.FAILED_PRECONDITION),
        (BAD_SETTING, Status.FAILED_PRECONDITION),
        (MESSAGE_TOO_LARGE, Status.RESOURCE_EXHAUSTED),
    ],
)
def test_the_status_says_who_is_to_blame(error: Code[LauncherkitError], status: Status) -> None:
    reported = refusal(error("the thing", "Mend it."))
    assert reported.status is status
    assert reported.message == f"error[{error.code}]: the thing; help: Mend it."


def test_all_errors_are_reported_on_one_line() -> None:
    reported = refusal(SeveralErrors([GROUP_NOT_VIABLE("one\nline", "Do."), GROUP_NOT_VIABLE("two", "Do that.")]))
    assert reported.message == "error[LK204]: one line; help: Do.; error[LK204]: two; help: Do that."


def test_the_commands_of_a_help_can_be_run_from_one_line() -> None:
    reported = refusal(GROUP_NOT_VIABLE("one", "Free it:\necho a > /b\necho c > /d"))
    assert reported.message == "error[LK204]: one; help: Free it: echo a > /b; echo c > /d"


def test_a_very_long_message_is_cut_at_whole_errors() -> None:
    reported = refusal(SeveralErrors([GROUP_NOT_VIABLE(f"group {number} " + "x" * 300, "Do.") for number in range(64)]))
    assert reported.message is not None
    assert len(reported.message) < MESSAGE_LIMIT + 400
    assert reported.message.endswith(" more, in the log of launcherkit")
    assert len(refusal(GROUP_NOT_VIABLE("x" * 10_000, "Do.")).message or "") == MESSAGE_LIMIT


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_is_an_internal_error_and_its_traceback_is_for_who_debugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the secret of the domain")

    monkeypatch.setattr(hook_core, "translate", broken)
    env = {"LAUNCHERKIT_DEBUG": "1"} if debug else {}
    with pytest.raises(GRPCError) as failure:
        complete_domain(DOMAIN, b'{"metadata": {"name": "vm"}, "spec": {"domain": {}}}', HookSettings(env, {}, "none"))
    assert failure.value.status is Status.INTERNAL
    assert failure.value.message == "internal error in launcherkit: ZeroDivisionError; its log has more"
    reported = capsys.readouterr().err
    assert reported.startswith("error: default/vm: internal error: ZeroDivisionError: the secret of the domain\n")
    assert ("Traceback" in reported) is debug


def test_a_setting_that_is_wrong_fails_the_call() -> None:
    with pytest.raises(GRPCError) as failure:
        complete_domain(DOMAIN, b'{"spec": {"domain": {}}}', HookSettings({"LAUNCHERKIT_SIBLINGS": "all"}, {}, "none"))
    assert failure.value.status is Status.FAILED_PRECONDITION
    assert "error[LK402]: LAUNCHERKIT_SIBLINGS='all'" in (failure.value.message or "")


@pytest.mark.parametrize("document", [b"{}", b'{"kind": "Pod", "spec": {"containers": []}}', b"null"])
def test_what_is_no_vmi_fails_the_call(document: bytes) -> None:
    """Q4."""
    with pytest.raises(
        GRPCError, match=r"error\[LK111\]: the VMI: expected a VirtualMachineInstance, found "
    ) as failure:
        complete_domain(DOMAIN, document, HookSettings({}, {}, "none"))
    assert failure.value.status is Status.INVALID_ARGUMENT


def test_without_a_vmi_the_hostdevs_that_are_there_are_completed() -> None:
    assert complete_domain(DOMAIN, b"", HookSettings({}, {}, "none")) == DOMAIN


def test_the_hostdevs_of_sriov_interfaces_are_kubevirts_and_only_get_what_they_lack() -> None:
    """Q3, Q5: what is not there yet isn't missed."""
    vmi = b'{"spec": {"domain": {"devices": {"interfaces": [{"name": "a", "sriov": {}}, {"name": "b", "sriov": {}}]}}}}'
    document = b"<domain><devices><hostdev type='pci'><alias name='ua-sriov-a'/></hostdev></devices></domain>"
    completed = document.replace(b"'pci'>", b"'pci' mode='subsystem'>")
    assert complete_domain(document, vmi, HookSettings({}, {}, "none")) == completed
    assert complete_domain(completed, vmi, HookSettings({}, {}, "none")) == completed


@pytest.mark.parametrize(
    "vmi", [b"", b"{", b"[]", b"{}", b'{"metadata": null}', b'{"metadata": []}', b"\xff" * 9, b"[" * 99_999]
)
def test_a_vmi_without_a_name_can_be_told_of(vmi: bytes) -> None:
    assert name_of_vmi(vmi) == "a VMI with no name"


def test_what_can_not_be_encoded_is_sent_all_the_same() -> None:
    """grpclib never answers a call whose message has a lone surrogate."""
    message = refusal(GROUP_NOT_VIABLE("n.com/\ud800X", "Do.")).message
    assert message == "error[LK204]: n.com/\\ud800X; help: Do."


def test_a_sidecar_that_is_passed_the_variables_gives_the_domain_the_devices_of_this_node(tmp_path: Path) -> None:
    """X2: a domain of another node; without variables it is as it comes (Q2)."""
    tree = HostTree(tmp_path / "host")
    tree.card("0000:3b:00", group=7)
    vmi = b'{"spec": {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "x/gpu"}]}}}}'
    before = domain(
        pci_hostdev("0000:e1:00.0", alias="ua-gpu-g", guest="0000:05:00.0", attributes=" mode='subsystem'"),
        pci_hostdev("0000:e1:00.1", alias="ua-gpu-g-fn1", guest="0000:05:00.1", attributes=" mode='subsystem'"),
    ).replace("function='0x0'/></hostdev>", "function='0x0' multifunction='on'/></hostdev>")
    settings = HookSettings({"PCI_RESOURCE_X_GPU": "0000:3b:00.0"}, {}, str(tree.root))
    after = before.replace("bus='0xe1'", "bus='0x3b'")
    assert complete_domain(before.encode(), vmi, settings).decode() == after
    with pytest.raises(GRPCError, match="LK128"):
        complete_domain(before.encode(), vmi, replace(settings, flags={"siblings": "none"}))
    assert complete_domain(before.encode(), vmi, replace(settings, env={})).decode() == before
