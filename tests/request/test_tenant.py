"""A tenant can only narrow the operator's policy (T1), by what is attached and not just by what the fields say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from launcherkit import LauncherkitError, Policy, translate
from launcherkit.errors import ANNOTATION_WIDENS, OPERATORS_KEY, SeveralErrors
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit.model.policy import POLICY_KEYS, REPLACE, SIBLINGS, AliasPrefixes, Replace, Siblings
from launcherkit.request.policy import narrow, policy_of, resolve_policy
from launcherkit.request.vmi import Vmi
from tests.support.authorised import WITHIN, is_within
from tests.support.errors import raises_code

CHOICES: dict[str, Any] = {key.field: st.sampled_from(key.kind.choices) for key in POLICY_KEYS if key.kind.choices}
policies = st.builds(
    Policy,
    alias_prefixes=st.just(AliasPrefixes()) | st.just(AliasPrefixes(gpu="ua-g-")),
    extra_prefixes=st.sampled_from(((), ("PCIDEVICE",))),
    sysfs_root=st.sampled_from(("/", "/host")),
    rom=st.sampled_from(({}, {"10de:2204": "off"})),
    driver=st.sampled_from(({}, {"10de:2204": "vfio-pci"})),
    **CHOICES,
)

# What somebody writes who knows the policy's keys, and what each of them would like to hear.
_KEYS: dict[str, tuple[Any, ...]] = {
    **{key.name: (*key.kind.choices, "yes", "all", "Group", True, 1, ["group"], None) for key in POLICY_KEYS},
    "aliasPrefixes": ({"gpu": "ua-sriov-"}, {"gpu": "ua-"}, {}, None),
    "extraPrefixes": (["AWS_SECRET"], ["AWS_SECRET", "PCIDEVICE"], [], None),
    "sysfsRoot": ("/proc/self/root", "/", "", None),
    "rom": ({"10de:2204": "/etc/shadow"}, {}, None),
    "driver": ({"10de:2204": "vfio-pci"}, None),
    # As the fields are called inside, and misspelt.
    "extra_prefixes": (["AWS_SECRET"],),
    "node_check": ("never",),
    "Siblings": ("group",),
    "<<": ({"managed": True},),
}
hostile_values = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in _KEYS.items()})
hostile_annotations = hostile_values.map(json.dumps) | st.text(max_size=40)


def test_the_generator_knows_every_key_of_a_policy() -> None:
    assert {key.name.partition(".")[0] for key in POLICY_KEYS} <= set(_KEYS)


def resolved(operator: Policy, annotation: str) -> Policy | None:
    """What holds for a VM with this annotation; None where it is an error."""
    flags: dict[str, Any] = {**operator._asdict(), **operator.alias_prefixes._asdict()}
    del flags["alias_prefixes"]
    assert policy_of(flags) == operator
    try:
        return resolve_policy(flags, {}, Vmi((), {"launcherkit.io/policy": annotation}), None)
    except LauncherkitError:
        return None


@given(policies, hostile_annotations)
def test_whatever_a_tenant_writes_is_an_error_or_within_the_operators_policy(operator: Policy, annotation: str) -> None:
    result = resolved(operator, annotation)
    assert result is None or is_within(result, operator)


@given(policies, st.sampled_from(SIBLINGS), hostile_annotations)
def test_under_a_narrower_policy_an_annotation_never_gets_more(
    second: Policy, siblings: Siblings, annotation: str
) -> None:
    first = second._replace(siblings=siblings)
    assume(is_within(first, second))
    narrower, wider = resolved(first, annotation), resolved(second, annotation)
    if narrower is not None and wider is not None:
        assert is_within(narrower, wider)


@given(policies, *[st.sampled_from(SIBLINGS)] * 3)
def test_within_is_an_order(policy: Policy, first: Siblings, second: Siblings, third: Siblings) -> None:
    a, b, c = (policy._replace(siblings=siblings) for siblings in (first, second, third))
    assert is_within(a, a)
    assert not (is_within(a, b) and is_within(b, a)) or a == b
    assert not (is_within(a, b) and is_within(b, c)) or is_within(a, c)


@pytest.mark.parametrize("other", [Policy(managed=True), Policy(sysfs_root="/host"), Policy(pairing="positional")])
def test_a_policy_that_differs_in_what_is_the_operators_is_not_within(other: Policy) -> None:
    assert not is_within(Policy("none"), other)
    assert not is_within(other, Policy())


@pytest.mark.parametrize("asked", SIBLINGS)
@pytest.mark.parametrize("operator", SIBLINGS)
def test_siblings_are_ordered_by_what_they_attach(operator: Siblings, asked: Siblings) -> None:
    if asked in WITHIN[operator]:
        assert narrow(Policy(operator), {"siblings": asked}) == Policy(asked)
    else:
        with raises_code(ANNOTATION_WIDENS, match=f"siblings: {asked!r} is not within .*siblings: {operator}"):
            narrow(Policy(operator), {"siblings": asked})


def test_pairing_can_be_repeated_and_not_changed() -> None:
    assert narrow(Policy(pairing="positional"), {"pairing": "positional"}) == Policy(pairing="positional")
    for held, asked in ("class", "positional"), ("positional", "class"):
        with raises_code(ANNOTATION_WIDENS, match="pairing"):
            narrow(policy_of({"pairing": held}), {"pairing": asked})


def test_all_that_would_widen_is_reported_at_once() -> None:
    with pytest.raises(SeveralErrors) as raised:
        narrow(Policy("none"), {"siblings": "group", "pairing": "positional"})
    assert [leaf.code for leaf in raised.value.leaves()] == ["LK106", "LK106"]


# The same of devices: cards that lie across slots and groups as hardware has them, and everything on vfio-pci.


@st.composite
def hosts(draw: st.DrawFn) -> HostFacts:
    """Up to three slots of up to three functions, each in one of three groups, all bound, all nodes there."""
    functions: dict[PciAddress, PciFunction] = {}
    for bus in range(1, 1 + draw(st.integers(1, 3))):
        for number in range(draw(st.integers(1, 3))):
            class_code = draw(st.sampled_from((0x030000, 0x030000, 0x040300, 0x020000)))
            device = draw(st.sampled_from((0x2204, 0x1AEF)))
            address = PciAddress(0, bus, 0, number)
            group = draw(st.integers(1, 3))
            functions[address] = PciFunction(address, 0x10DE, device, 0, 0, class_code, "vfio-pci", group, None, None)
    groups: dict[int, tuple[PciAddress, ...]] = {}
    for function in functions.values():
        assert function.iommu_group is not None
        groups[function.iommu_group] = (*groups.get(function.iommu_group, ()), function.address)
    nodes = frozenset({"/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in groups)})
    return HostFacts(True, functions, {}, groups, {}, {}, nodes)


class FactsHost:
    """A host of which the facts are given."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        return self._facts


DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"


def attached(policy: Policy, facts: HostFacts, listed: list[PciAddress], count: int) -> set[Any] | None:
    gpus = [{"name": f"gpu{number}", "deviceName": "x.org/X"} for number in range(count)]
    env = {"PCI_RESOURCE_X_ORG_X": ",".join(map(str, listed))}
    vmi = {"spec": {"domain": {"devices": {"gpus": gpus}}}}
    try:
        done = translate(DOMAIN, env=env, host=FactsHost(facts), vmi=vmi, policy=policy)
    except LauncherkitError:
        return None
    return {function.source for device in done.plan.devices for function in device.functions}


@given(hosts(), st.booleans(), policies, st.sampled_from(SIBLINGS), st.data())
def test_a_policy_within_another_attaches_nothing_that_the_other_would_not(
    facts: HostFacts, known: bool, second: Policy, siblings: Siblings, data: st.DataObject
) -> None:
    narrower = second._replace(siblings=siblings)
    assume(is_within(narrower, second))
    listed = data.draw(st.lists(st.sampled_from(sorted(facts.functions)), min_size=1, unique=True))
    count = data.draw(st.integers(1, len(listed)))
    host = facts if known else NO_FACTS
    less, more = attached(narrower, host, listed, count), attached(second, host, listed, count)
    assert less is None or more is None or less <= more


def test_the_annotation_that_took_a_network_card_of_the_host_is_refused() -> None:
    vmi = Vmi((), {"launcherkit.io/policy": "{managed: yes, siblings: group}"})
    with raises_code(OPERATORS_KEY, match="managed: only the operator can set it"):
        resolve_policy({"siblings": "none", "managed": False}, {}, vmi, None)


def test_the_annotation_that_read_a_secret_is_refused_and_says_nothing_of_it() -> None:
    vmi = Vmi((), {"launcherkit.io/policy": "extraPrefixes: [AWS_SECRET]"})
    with raises_code(OPERATORS_KEY) as raised:
        resolve_policy({}, {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}, vmi, None)
    assert "AWS" not in str(raised.value)


@pytest.mark.parametrize(
    ("operator", "within"), [("no", {"no"}), ("model", {"no", "model"}), ("yes", {"no", "model", "yes"})]
)
def test_a_tenant_can_demand_a_device_like_the_one_before(operator: Replace, within: set[str]) -> None:
    """And may not let another come that the operator refuses."""
    for asked in REPLACE:
        if asked in within:
            assert narrow(Policy(replace=operator), {"replace": asked}).replace == asked
        else:
            with raises_code(ANNOTATION_WIDENS, match="replace"):
                narrow(Policy(replace=operator), {"replace": asked})
