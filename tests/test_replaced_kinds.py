"""A former sibling of another kind than its card, as only a document made by hand has it."""

from __future__ import annotations

from launcherkit import translate
from launcherkit.errors import CANT_REPLACE
from tests.support.domains import domain
from tests.support.errors import raises_code
from tests.support.facts import FixedHost, function

PLACE = "<address type='pci' bus='1' slot='0' function='{}' multifunction='on'/>"


def hostdev(kind: str, source: str, alias: str, function: int) -> str:
    return (
        f"<hostdev mode='subsystem' type='{kind}' model='vfio-pci'><source><address {source}/></source>"
        f"<alias name='{alias}'/>{PLACE.format(function)}</hostdev>"
    )


def test_addresses_of_two_kinds_are_named_in_one_error() -> None:
    devices = [
        hostdev("pci", "domain='0' bus='1' slot='0' function='0'", "ua-gpu-x-0", 0),
        hostdev("mdev", "uuid='4b20d080-1b54-4048-85b3-a6a62d165c01'", "ua-gpu-x-0-fn1", 1),
    ]
    with raises_code(CANT_REPLACE, match="4b20d080-1b54-4048-85b3-a6a62d165c01 and 0000:01:00.0"):
        translate(domain(*devices), env={"PCI_RESOURCE_X": "0000:e1:00.0"}, host=FixedHost(function("0000:e1:00.0")))
