"""What `launcherkit.doctor` says of the limit of locked memory is what a real libvirt does."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from launcherkit.doctor.facts import Process
from launcherkit.domain.guest import read_guest
from launcherkit.domain.xml import read_document
from tests.doctor.known import finding, gathered, vm_facts
from tests.libvirt.daemon import DAEMON, Libvirt, Refused

pytestmark = pytest.mark.libvirt

# A VFIO device, for which libvirt asks for RAM and 1 GiB, is not to be had here; locked pages want a limit as well.
LOCKED = """<domain type='qemu'>
  <name>locked</name>
  <memory unit='MiB'>64</memory>
  <memoryBacking><locked/></memoryBacking>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
</domain>
"""


def test_a_domain_that_the_doctor_fails_for_its_limit_is_refused_and_no_other(libvirt: Libvirt, tmp_path: Path) -> None:
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    daemon = Process(DAEMON, soft, hard, may_raise=False, may_lock=False)  # an unprivileged child of this process
    guest = read_guest(read_document(LOCKED).root)
    said = finding(vm_facts(gathered=gathered(process=daemon), guest=guest), "memlock")
    file = tmp_path / "locked.xml"
    file.write_text(LOCKED)
    if said.status == "ok":
        libvirt("create", str(file))
        libvirt("destroy", "locked")
    else:
        assert said.status == "fail"
        with pytest.raises(Refused, match="cannot limit locked memory of process"):
            libvirt("create", str(file))
