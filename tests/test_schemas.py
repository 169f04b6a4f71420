"""The schemas in ``schemas/`` are those of the models, and take what launcherkit writes and no more."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from lxml import etree

from deploy.claim_policy import POLICY, policy

SCHEMAS = Path(__file__).parents[1] / "schemas"

SOURCE = "<source><address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/></source>"
MDEV = "mode='subsystem' type='mdev' managed='no'"
USB = "mode='subsystem' type='usb' managed='no'"
ALIAS = "<alias name='ua-gpu-gpu1'/>"
MDEV_SOURCE = "<source><address uuid='b4f0fe60-9b5e-4b53-9d5f-5f0a83f21f0d'/></source>"


GENERATOR = runpy.run_path(str(SCHEMAS / "generate.py"))


def test_every_schema_has_a_model() -> None:
    assert {path.name for path in SCHEMAS.glob("*.json")} == set(GENERATOR["MODELS"])


@pytest.mark.parametrize("name", GENERATOR["MODELS"])
def test_schema_is_that_of_the_model(name: str) -> None:
    generated = GENERATOR["schema_text"](name)
    written = (SCHEMAS / name).read_text(encoding="utf-8")
    assert json.loads(written) == json.loads(generated), "stale: run python schemas/generate.py"


def test_the_policy_of_claims_parameters_is_that_of_their_schema() -> None:
    assert POLICY.read_text() == policy(), "run `python -m deploy.claim_policy`"


@pytest.fixture(scope="module")
def hostdev() -> etree.RelaxNG:
    return etree.RelaxNG(etree.parse(SCHEMAS / "hostdev.rng"))


def pci(
    *, attributes: str = "", inside: str = "", source: str = SOURCE, alias: str = ALIAS, managed: str = "no"
) -> str:
    return f"<hostdev mode='subsystem' type='pci' managed='{managed}'{attributes}>{source}{alias}{inside}</hostdev>"


def address(function: int, multifunction: str = "") -> str:
    said = multifunction and f" multifunction='{multifunction}'"
    return f"<address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x{function}'{said}/>"


@pytest.mark.parametrize(
    "element",
    [
        pytest.param(pci(), id="a function that libvirt places"),
        pytest.param(pci(inside=address(0, "on")), id="function 0 of a shared slot"),
        pytest.param(
            pci(managed="yes", inside="<rom bar='off'/><boot order='1'/>"), id="a completed one with rom and boot"
        ),
        pytest.param(pci().replace("<source>", "<driver iommufd='no'/><source>", 1), id="iommufd"),
        pytest.param(pci(inside="<address type='unassigned'/>"), id="one that is not in the guest"),
        pytest.param(pci(inside="<acpi nodeset='2-9'/>"), id="a generic initiator"),
        pytest.param(
            f"<hostdev {MDEV} model='vfio-pci' display='on' ramfb='on'>{MDEV_SOURCE}{ALIAS}</hostdev>",
            id="an mdev with display",
        ),
        pytest.param(
            f"<hostdev {USB}><source><address bus='1' device='4'/></source>{ALIAS}</hostdev>",
            id="a USB device",
        ),
        pytest.param("<controller type='pci' index='7' model='pcie-root-port'/>", id="a root port"),
    ],
)
def test_hostdev_schema_takes(hostdev: etree.RelaxNG, element: str) -> None:
    assert hostdev.validate(etree.fromstring(element)), hostdev.error_log


@pytest.mark.parametrize(
    "element",
    [
        pytest.param(pci().replace(" mode='subsystem'", ""), id="without mode"),
        pytest.param(pci().replace(" managed='no'", ""), id="without managed"),
        pytest.param(pci(managed="off"), id="another word for managed"),
        pytest.param(pci(source=""), id="without a source"),
        pytest.param(pci(source=MDEV_SOURCE), id="with the source of another type"),
        pytest.param(pci(alias=""), id="without an alias"),
        pytest.param(pci(alias="<alias name='gpu1'/>"), id="an alias that libvirt drops"),
        pytest.param(pci(alias="<alias name='ua-gpu.1'/>"), id="an alias with a dot, which libvirt drops"),
        pytest.param(pci(inside=address(0, "yes")), id="another word for multifunction"),
        pytest.param(pci(inside=address(8)), id="a ninth function"),
        pytest.param(pci(attributes=" model='vfio-pci'"), id="a PCI function with a model"),
        pytest.param(
            f"<hostdev {MDEV}>{MDEV_SOURCE}{ALIAS}</hostdev>",
            id="an mdev without model",
        ),
        pytest.param("<controller type='pci' index='0' model='pcie-root'/>", id="the root, which is not ours"),
        pytest.param("<controller type='pci' index='256' model='pcie-root-port'/>", id="a bus that there is not"),
    ],
)
def test_hostdev_schema_refuses(hostdev: etree.RelaxNG, element: str) -> None:
    assert not hostdev.validate(etree.fromstring(element))
