"""The plan as a document."""

from __future__ import annotations

import json

from launcherkit import translate
from launcherkit.show.documents import PLAN_FORMAT, plan_document
from tests.support.domains import domain, pci_hostdev
from tests.support.facts import AUDIO, UUID, FixedHost, card, function, mdev

HOST = FixedHost(
    *card("0000:e1:00", 44),
    function("0000:01:00.0", group=12),
    function("0000:01:00.1", AUDIO, group=13),
    mdevs=[mdev()],
)
FACTS = HOST.facts([])
ENV = {"PCI_RESOURCE_X_GPU": "0000:e1:00.0,0000:01:00.0,0000:e1:00.0", "MDEV_PCI_RESOURCE_X_M": UUID}
VMI = {
    "spec": {
        "domain": {
            "devices": {
                "gpus": [{"name": "a", "deviceName": "x/gpu"}],
                "hostDevices": [{"name": "m", "deviceName": "x/m"}],
            }
        }
    }
}


def test_the_plan_says_who_asked_what_answers_and_where_it_goes() -> None:
    translation = translate(domain(pci_hostdev("0000:01:00.0")), env=ENV, host=HOST, vmi=VMI)
    document = plan_document(translation, FACTS)
    assert document["format"] == PLAN_FORMAT == "launcherkit.io/plan/v1"
    gpu, mediated, third = document["devices"]
    assert gpu["request"] == {
        "origin": "vmi",
        "section": "gpus",
        "name": "a",
        "resource": "x/gpu",
        "variable": "PCI_RESOURCE_X_GPU",
    }
    assert [
        (each["host"], each["role"], each["guest"], each["multifunction"], each["present"]) for each in gpu["functions"]
    ] == [
        ("0000:e1:00.0", "primary", "0000:04:00.0", True, False),
        ("0000:e1:00.1", "sibling", "0000:04:00.1", False, False),
    ]
    assert gpu["functions"][1]["request"] is None
    assert (mediated["kind"], mediated["functions"][0]["host"], mediated["functions"][0]["model"]) == (
        "mdev",
        UUID,
        "vfio-pci",
    )
    assert "display" not in mediated["functions"][0]
    assert third["functions"][0]["present"] is True
    assert [each["host"] for each in third["stayed"]] == ["0000:01:00.1"]
    assert document["rootPorts"] == [4, 5]
    assert [group["number"] for group in document["groups"]] == [12, 44, 90]
    assert document["groups"][1]["members"][0] == {"host": "0000:e1:00.0", "driver": "vfio-pci", "attached": True}
    assert document["nodes"][0] == "/dev/vfio/vfio"
    assert gpu["migration"] == {"can": False, "why": "vfio-pci can't save a device's state"}
    assert mediated["migration"]["can"] is None
    assert document["leftAlone"] == []
    assert {note["topic"] for note in document["notes"]} == {"repeat", "stayed"}


def test_the_plan_is_json_and_the_same_every_time() -> None:
    texts = {json.dumps(plan_document(translate(domain(), env=ENV, host=HOST, vmi=VMI), FACTS)) for _ in range(3)}
    assert len(texts) == 1


def test_what_is_left_alone_stands_in_the_plan() -> None:
    """C4."""
    document = plan_document(translate(domain(), env=ENV, host=HOST, vmi=VMI), FACTS)
    assert document["leftAlone"] == ["0000:01:00.0"]


def test_where_nothing_was_asked_for_the_plan_is_empty() -> None:
    """Q3."""
    document = plan_document(translate(domain(), env={}, host=HOST, vmi={"spec": {"domain": {}}}), FACTS)
    assert {key: value for key, value in document.items() if value} == {"format": PLAN_FORMAT}
