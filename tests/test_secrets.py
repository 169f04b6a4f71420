"""What a container's environment holds stays in it: a tenant learns no value but what looks like an address (T1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit import Host, LauncherkitError, Policy, translate
from launcherkit.cli.main import PROGRAM
from launcherkit.errors import shown_entry
from launcherkit.process.edge import guarded
from launcherkit.process.program import run_program
from launcherkit.request.dra import DraFiles
from launcherkit.request.envfile import read_env_file

SECRETS = ("wJalrXUtnFEMI/K7MDENG+bPxRfiCYKEY", "hunter2", "d41d8cd98f00b204e9800998ecf8427e")
ENV = {
    "AWS_SECRET_ACCESS_KEY": SECRETS[0],
    "PATH": SECRETS[1],
    # What is set by mistake under a name of ours.
    "PCI_RESOURCE_X_ORG_X": f"0000:e1:00.0,{SECRETS[0]},{SECRETS[1]}",
    "MDEV_PCI_RESOURCE_X_ORG_M": SECRETS[2],
    "USB_RESOURCE_X_ORG_U": SECRETS[1],
    "PCIDEVICE_X_ORG_N": SECRETS[2],
    "PCIDEVICE_X_ORG_N_INFO": json.dumps({"token": SECRETS[0], "other": SECRETS[1]}),
    "PCI_RESOURCE_": SECRETS[0],
}
DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"


def reported(vmi: dict[str, Any] | None, policy: Policy) -> str:
    """Everything that a translation says."""
    try:
        done = translate(DOMAIN, env=ENV, host=Host.none(), vmi=vmi, policy=policy, dra=DraFiles("/nowhere"))
    except LauncherkitError as error:
        return " ".join(leaf.message + leaf.remedy for leaf in error.leaves())
    return done.domain_xml.decode() + repr(done.plan) + " ".join(note.text for note in done.notes)


names = st.sampled_from(
    ("x.org/X", "x.org/M", "x.org/U", "x.org/N", "x.org/N_INFO", "", "aws/secret_access_key", "path", "=", "X_ORG_X\n")
)
devices = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(("a", "b")) | st.text(max_size=5)},
        optional={"deviceName": names | st.text(max_size=12), "claimName": names, "requestName": names},
    ),
    max_size=3,
)


@given(devices, devices, st.sampled_from(((), ("PCIDEVICE",))))
def test_no_request_of_a_tenant_makes_a_message_tell_a_secret(gpus: Any, others: Any, extra: tuple[str, ...]) -> None:
    vmi = {"spec": {"domain": {"devices": {"gpus": gpus, "hostDevices": others}}}}
    everything = reported(vmi, Policy(extra_prefixes=extra))
    assert [secret for secret in SECRETS if secret[:6] in everything] == []


def test_without_a_vmi_the_values_are_not_told_either() -> None:
    everything = reported(None, Policy(extra_prefixes=("PCIDEVICE",)))
    assert "PCI_RESOURCE_X_ORG_X, entry 2: text of length 33: " in everything
    assert [secret for secret in SECRETS if secret[:6] in everything] == []


def test_the_json_beside_a_variable_of_the_network_plugin_answers_no_request() -> None:
    vmi = {"spec": {"domain": {"devices": {"gpus": [{"name": "a", "deviceName": "x.org/N_INFO"}]}}}}
    everything = reported(vmi, Policy(extra_prefixes=("PCIDEVICE",)))
    assert "none of MDEV_PCI_RESOURCE_X_ORG_N_INFO" in everything


@pytest.mark.parametrize(
    "text",
    [
        "0000:e1:20.0",
        "e1:00",
        "b4f0fe60-9b5e-4b53-9d5f",
        "b4f0fe60-9b5e-4b53-9d5f-5f0a83f21f0d",
        "046d:0825",
        "-",
        "0000:e1:00.0:",
    ],
)
def test_what_looks_like_an_address_is_reported(text: str) -> None:
    assert shown_entry(text) == repr(text)


@pytest.mark.parametrize(
    "text", ["gpu0", "d41d8cd98f00b204e9800998ecf8427e", "a:" * 20, "a" * 36 + ":", "x:y", "\0:", "00:\u0661"]
)
def test_what_does_not_is_told_by_its_length(text: str) -> None:
    assert shown_entry(text) == f"text of length {len(text)}"


def test_a_line_of_an_env_file_is_named_by_its_number(tmp_path: Path) -> None:
    """A value of several lines, such as a private key, has lines that are no assignment."""
    path = tmp_path / "env"
    path.write_text(f"KEY=-----BEGIN\n{SECRETS[0]}\n")
    assert SECRETS[0][:6] not in str(read_env_file(str(path)).notes)
    path.write_text(f"PCI_RESOURCE_X=0000:e1:00.0\n{SECRETS[0]}\n")
    with pytest.raises(LauncherkitError) as raised:
        read_env_file(str(path))
    assert SECRETS[0][:6] not in str(raised.value)


def test_an_annotation_can_not_make_the_program_tell_a_variable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    vmi = {
        "kind": "VirtualMachineInstance",
        "metadata": {"annotations": {"launcherkit.io/policy": "extraPrefixes: [AWS_SECRET]"}},
        "spec": {"domain": {"devices": {"gpus": [{"name": "a", "deviceName": "access/key"}]}}},
    }
    (tmp_path / "vmi.json").write_text(json.dumps(vmi))
    (tmp_path / "domain.xml").write_bytes(DOMAIN)
    arguments = ["translate", "--domain", str(tmp_path / "domain.xml"), "--vmi", str(tmp_path / "vmi.json")]
    assert guarded(lambda: run_program(PROGRAM, [*arguments, "--host", "none"], ENV), ENV) == 65
    out, err = capfd.readouterr()
    assert out == ""
    assert "error[LK107]" in err
    assert SECRETS[0][:6] not in err
