"""A policy has values that it knows, and help() says what a plan is made of."""

from __future__ import annotations

import pickle
import pydoc
from typing import Any

import pytest

from launcherkit import Plan, Policy
from launcherkit.errors import BAD_POLICY
from launcherkit.model.policy import AliasPrefixes
from tests.support.errors import raises_code


@pytest.mark.parametrize(
    "said",
    [
        {"siblings": "all"},
        {"pairing": ""},
        {"managed": "no"},
        {"managed": 1},
        {"node_check": True},
        {"annotations": None},
        {"rom": {"0000:65:00.0": "no"}},
        {"rom": {"65:00.0": "off"}},
        {"driver": {"10DE:2342": "vfio-pci"}},
        {"driver": {"10de:2342": "nouveau"}},
        {"driver": {"10de:2342": 5}},
        {"rom": {1: "on"}},
        {"rom": None},
        {"alias_prefixes": "ua-"},
        {"alias_prefixes": AliasPrefixes(gpu="gpu-")},
        {"extra_prefixes": "PCIDEVICE"},
        {"extra_prefixes": ("PCI-DEVICE",)},
        {"extra_prefixes": (1,)},
        {"sysfs_root": None},
        {"sysfs_root": ""},
    ],
    ids=str,
)
def test_a_policy_refuses_what_it_does_not_know(said: dict[str, Any]) -> None:
    (field,) = said
    with raises_code(BAD_POLICY, match=f"^policy, {field}: "):
        Policy(**said)
    with raises_code(BAD_POLICY, match=f"^policy, {field}: "):
        Policy()._replace(**said)


def test_a_policy_is_a_value() -> None:
    policy = Policy(siblings="group", managed=True)
    assert pickle.loads(pickle.dumps(policy)) == policy == Policy()._replace(siblings="group", managed=True)
    assert policy != Policy()


def test_help_says_what_each_field_of_a_plan_is() -> None:
    reported = pydoc.plain(pydoc.render_doc(Plan))
    assert "Paths of the device nodes that QEMU will open" in reported
