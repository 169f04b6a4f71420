"""The domain in the launcher pod's manifest is one that libvirt takes."""

from __future__ import annotations

import pytest
import yaml

from deploy.render import DEPLOY
from tests.libvirt.daemon import Libvirt

pytestmark = pytest.mark.libvirt


def test_libvirt_takes_the_domain_of_the_launcher_pod(libvirt: Libvirt) -> None:
    config_map, _ = yaml.safe_load_all((DEPLOY / "launcher-pod.yaml").read_text())
    domain: str = config_map["data"]["domain.xml"]
    # The pod has /dev/kvm from a device plugin, and its image has the firmware; this machine may have neither.
    here = domain
    for part, instead in [
        ("type='kvm'", "type='qemu'"),
        ("<cpu mode='host-passthrough'/>", ""),
        (" firmware='efi'", ""),
    ]:
        assert part in here
        here = here.replace(part, instead)
    kept = libvirt.keep(here.encode())
    assert b"/disks/disk.img" in kept
