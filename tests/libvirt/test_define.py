"""`launcherkit define` at a real libvirt: what it defines and starts, and what stays when it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import DOMAIN_IN_THE_WAY, DOMAIN_REFUSED, GUEST_NOT_STARTED, LIBVIRT_NOT_THERE, UNREADABLE_FILE
from launcherkit_lab.guest.build import build_kernel
from tests.libvirt.pod import Pod
from tests.support.errors import raises_code
from tests.support.pages import ROOT, blocks

pytestmark = pytest.mark.guest


@pytest.fixture
def uri(place: Pod) -> Iterator[str]:
    """libvirt's URI; afterwards it has no domain."""
    yield place.uri
    for name in place.libvirt("list", "--name").split():
        place.libvirt("destroy", name)
    for name in place.libvirt("list", "--all", "--name").split():
        place.libvirt("undefine", name)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kernel(tmp_path_factory.mktemp("kernel"))


def vm(uri: str, kernel: Path, *more: str) -> list[str]:
    values = {"name": "vm", "type": "qemu", "memory_mib": "64", "kernel": str(kernel), "cmdline": "deaf"}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ["define", "--template", "q35", *settings, "--host", "none", "--connect", uri, *more]


def test_a_domain_is_defined_and_its_name_printed(
    place: Pod, uri: str, kernel: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(vm(uri, kernel), {}) == 0
    assert capfd.readouterr().out == "vm\n"
    assert place.libvirt("list", "--all", "--name").split() == ["vm"]
    assert place.libvirt("list", "--name").split() == []


def test_the_devices_are_in_what_libvirt_has(place: Pod, uri: str, kernel: Path) -> None:
    assert run(vm(uri, kernel), {"PCI_RESOURCE_X": "0000:e1:00.0", "LAUNCHERKIT_NODE_CHECK": "never"}) == 0
    assert "<alias name='ua-" in place.libvirt("dumpxml", "vm")


def test_defining_again_keeps_the_uuid(place: Pod, uri: str, kernel: Path) -> None:
    run(vm(uri, kernel), {})
    uuid = place.libvirt("domuuid", "vm")
    assert run(vm(uri, kernel, "--set", "vcpus=3"), {}) == 0
    assert place.libvirt("domuuid", "vm") == uuid
    assert "<vcpu placement='static'>3</vcpu>" in place.libvirt("dumpxml", "vm")


def test_what_libvirt_has_is_defined_again_with_another_device_in_the_same_place(
    place: Pod, uri: str, kernel: Path, tmp_path: Path
) -> None:
    """X2, for a persistent domain: libvirt's own document is the input of the next start."""
    device = {"PCI_RESOURCE_X": "0000:e1:00.0", "LAUNCHERKIT_NODE_CHECK": "never"}
    run(vm(uri, kernel), device)
    before = place.libvirt("dumpxml", "--inactive", "vm")
    kept = tmp_path / "kept.xml"
    kept.write_text(before)
    command = ["define", "--domain", str(kept), "--host", "none", "--connect", uri]
    assert run(command, device | {"PCI_RESOURCE_X": "0000:01:00.0"}) == 0
    after = place.libvirt("dumpxml", "--inactive", "vm")
    changed = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert [(old.strip(), new.strip()) for old, new in changed] == [
        (
            "<address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/>",
            "<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>",
        )
    ]


def test_started_it_runs_and_is_not_started_twice(place: Pod, uri: str, kernel: Path) -> None:
    assert run(vm(uri, kernel, "--start"), {}) == 0
    assert place.libvirt("list", "--name").split() == ["vm"]
    with raises_code(DOMAIN_IN_THE_WAY, match="the domain vm is already running"):
        run(vm(uri, kernel, "--start"), {})
    assert place.libvirt("list", "--name").split() == ["vm"]


def test_where_the_start_fails_nothing_stays(place: Pod, uri: str) -> None:
    with raises_code(GUEST_NOT_STARTED, match="libvirt could not start vm"):
        run(vm(uri, Path("/nowhere/kernel"), "--start"), {})
    assert place.libvirt("list", "--all", "--name").split() == []


def test_where_the_start_fails_the_former_definition_is_back(place: Pod, uri: str, kernel: Path) -> None:
    run(vm(uri, kernel), {})
    before = place.libvirt("dumpxml", "--inactive", "vm")
    with raises_code(GUEST_NOT_STARTED):
        run(vm(uri, Path("/nowhere/kernel"), "--start"), {})
    assert place.libvirt("dumpxml", "--inactive", "vm") == before


def test_what_the_schema_does_not_have_is_refused(place: Pod, uri: str, tmp_path: Path) -> None:
    path = tmp_path / "vm.xml"
    path.write_text(
        "<domain type='qemu'><name>vm</name><memory>65536</memory><os><type>hvm</type></os><bogus/></domain>"
    )
    with raises_code(DOMAIN_REFUSED, match="libvirt could not define vm"):
        run(["define", "--domain", str(path), "--host", "none", "--connect", uri], {})
    assert place.libvirt("list", "--all", "--name").split() == []


def test_a_device_that_can_not_be_passed_through_is_an_error_with_a_remedy(place: Pod, uri: str, kernel: Path) -> None:
    with raises_code(GUEST_NOT_STARTED) as raised:
        run(vm(uri, kernel, "--start"), {"PCI_RESOURCE_X": "0000:e1:00.0", "LAUNCHERKIT_NODE_CHECK": "never"})
    assert not raised.value.remedy.startswith("The message is libvirt's")
    assert place.libvirt("list", "--all", "--name").split() == []


def test_nobody_at_the_uri_is_reported(kernel: Path) -> None:
    expected = Path(__file__).parents[1] / "provoked" / "libvirt.error"
    with raises_code(LIBVIRT_NOT_THERE) as raised:
        run(vm("qemu+unix:///session?socket=/nowhere", kernel), {})
    assert f"LK621: {raised.value.message}" in expected.read_text().splitlines()


def test_the_program_for_users_of_the_library_defines_a_domain_with_its_devices(
    place: Pod, uri: str, tmp_path: Path
) -> None:
    page = ROOT / "docs" / "how-to" / "library-examples.md"
    (program,) = (block.text for block in blocks(page) if block.reported.get("file") == "define_vm.py")
    (tmp_path / "define_vm.py").write_text(program)
    run(["demo", "--dir", str(tmp_path / "example")], {})
    domain = tmp_path / "example" / "domain.xml"
    without_kvm = domain.read_text().replace("type='kvm'", "type='qemu'").replace("<cpu mode='host-passthrough'/>", "")
    domain.write_text(without_kvm)
    command = [sys.executable, "define_vm.py", str(domain), str(tmp_path / "example" / "host.json")]
    env = {"LIBVIRT_DEFAULT_URI": uri, "PCI_RESOURCE_EXAMPLE_COM_GPU": "0000:e1:00.0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "default_gpu-vm 0000:e1:00.0\n", "")
    assert "ua-gpu-example_com_gpu-0-fn1" in place.libvirt("dumpxml", "default_gpu-vm")
    command[-1] = str(tmp_path / "nothing.json")
    failed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert failed.returncode == UNREADABLE_FILE.exit_code
    assert failed.stderr.startswith(f"{UNREADABLE_FILE.code}: ")
