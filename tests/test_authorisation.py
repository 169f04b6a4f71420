"""Nothing goes to a guest but what was allocated, what its document names, and the siblings of these (S1a)."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from launcherkit import LauncherkitError, Policy, translate
from launcherkit.model.host import NO_FACTS, HostFacts, describe
from launcherkit.model.policy import PAIRING, SIBLINGS
from launcherkit.request.dra import DraFiles
from tests.fuzz.hosts import FactsHost
from tests.support.authorised import siblings_of
from tests.support.domains import domain, hostdevs, mdev_hostdev, pci_hostdev
from tests.support.facts import (
    AUDIO,
    BRIDGE,
    DISPLAY,
    NIC,
    NVME,
    UCSI,
    USB,
    UUID,
    UUID2,
    detail,
    facts,
    function,
    mdev,
)

CARDS = (
    (DISPLAY, AUDIO),
    (DISPLAY,),
    (DISPLAY, AUDIO, USB, UCSI),
    (AUDIO, DISPLAY),
    (NIC, NIC),
    (NIC, NIC, UCSI),
    (NVME,),
    (USB, UCSI),
    (BRIDGE, USB, UCSI),
    (0x060100, AUDIO, UCSI),
    (0x120000, 0x088000),
)
"""The classes of a slot's functions. Those of one class are of one model."""
VARIABLES = {
    "x.org/A": "PCI_RESOURCE_X_ORG_A",
    "x.org/B": "PCI_RESOURCE_X_ORG_B",
    "x.org/M": "MDEV_PCI_RESOURCE_X_ORG_M",
}
CLAIMS = ("one", "two")
PREFIXES = {"gpus": "gpu-", "hostDevices": "hostdevice-"}


# Drawn from hundreds of times for an example, which looks at a strategy anew where it is made each time.
MORE_CARDS = st.integers(0, 2)
CARD = st.sampled_from(CARDS)
ONE_IN_TWO, ONE_IN_THREE, ONE_IN_FOUR, ONE_IN_EIGHT, ONE_IN_TWENTY = (
    st.sampled_from((False,) * (number - 1) + (True,)) for number in (2, 3, 4, 8, 20)
)
SIBLINGS_OF_POLICY, PAIRING_OF_POLICY = st.sampled_from(SIBLINGS), st.sampled_from(PAIRING)


@st.composite
def hosts(draw: st.DrawFn) -> HostFacts:
    """Up to three cards, some with VFs, each in a group of its own or not, and perhaps a container's few nodes."""
    functions = []
    for bus in range(1, 2 + draw(MORE_CARDS)):
        group = 1 if draw(ONE_IN_FOUR) else bus
        card = draw(CARD)
        for number, kind in enumerate(card):
            split = 10 * bus + number if draw(ONE_IN_THREE) else group
            driver = None if kind == BRIDGE or draw(ONE_IN_FOUR) else "vfio-pci"
            functions.append(
                function(f"0000:{bus:02x}:00.{number}", kind, device=kind >> 8, driver=driver, group=split)
            )
        for number in (4, 5) if card[0] == NIC and draw(ONE_IN_TWO) else ():
            parent, own = f"0000:{bus:02x}:00.0", 10 * bus + number if draw(ONE_IN_TWO) else group
            functions.append(function(f"0000:{bus:02x}:00.{number}", NIC, device=9, group=own, physfn=parent))
    every = frozenset(f"/dev/vfio/{each.iommu_group}" for each in functions)
    nodes = draw(st.none() | st.just(every) | st.sets(st.sampled_from(sorted(every))))
    hidden = [each.address for each in functions if draw(ONE_IN_TWENTY)]
    host = facts(
        *(each for each in functions if each.address not in hidden),
        details={str(each.address): detail(header_type=1) for each in functions if each.class_code == BRIDGE},
        mdevs=[mdev(UUID), mdev(UUID2, group=91)],
        nodes=nodes,
        container_dev=nodes is not None and draw(st.booleans()),
    )
    return host._replace(unknown=dict.fromkeys(hidden, "it can't be read"))


class Asked(NamedTuple):
    """An entry of the VMI."""

    section: str
    name: str
    by: str
    """A resource, or a claim."""

    @property
    def entry(self) -> dict[str, str]:
        by = {"claimName": self.by, "requestName": "r"} if self.by in CLAIMS else {"deviceName": self.by}
        return {"name": self.name, **by}

    @property
    def alias(self) -> str:
        return f"ua-{'dra-' if self.by in CLAIMS else ''}{PREFIXES[self.section]}{self.name}"


class Case(NamedTuple):
    """What one container gets."""

    host: HostFacts
    held: dict[str, list[str]]
    """The sources of each resource and claim; nothing at all in a sidecar (Q2)."""
    asked: list[Asked] | None
    """None without a VMI (Q1)."""
    there: dict[str, str | None]
    """The document's hostdevs, with their aliases."""
    policy: Policy

    def __repr__(self) -> str:
        on_host = [f"{describe(each)} {each.driver} group {each.iommu_group}" for each in self.host.functions.values()]
        nodes = self.host.nodes and sorted(self.host.nodes)
        siblings, pairing, managed = self.policy[:3]
        return f"{on_host} {nodes=} {self.held=} {self.asked=} {self.there=} {siblings=} {pairing=} {managed=}"

    @property
    def document(self) -> str:
        return domain(
            *(
                pci_hostdev(source, alias=alias) if "." in source else mdev_hostdev(source, alias=alias or "")
                for source, alias in self.there.items()
            )
        )

    @property
    def allocated(self) -> set[str]:
        """What was in the variables and claims that count."""
        return {source for by, held in self.held.items() if self._counts(by) for source in held}

    def _counts(self, by: str) -> bool:
        return by not in CLAIMS if self.asked is None else by in [each.by for each in self.asked]

    @property
    def replaced(self) -> set[str]:
        """What the document has under the alias of a request that got another device here, siblings too (X2)."""
        found = set()
        for each in self.asked or () if self.held else ():
            for source, alias in self.there.items():
                if alias == each.alias and source not in self.held.get(each.by, ()):
                    mates = {mate for mate, name in self.there.items() if name and name.startswith(f"{alias}-fn")}
                    found |= {source, *(mate for mate in mates if mate[:-1] == source[:-1])}
        return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    host = draw(hosts())
    functions = st.sampled_from([str(address) for address in (*host.functions, *host.unknown)])
    lists = {by: st.lists(functions, min_size=1, max_size=3, unique=True) for by in ("x.org/A", "x.org/B")}
    lists |= {by: functions.map(lambda one: [one]) | st.just([UUID]) for by in CLAIMS}
    lists["x.org/M"] = st.sampled_from(([UUID], [UUID, UUID2]))
    held = draw(st.just({}) | st.fixed_dictionaries({}, optional=lists))
    entries = st.tuples(st.sampled_from(tuple(PREFIXES)), st.sampled_from([*held] or [*VARIABLES, *CLAIMS]))
    chosen = draw(st.none() | st.lists(entries, min_size=1, max_size=3))
    asked = None if chosen is None else [Asked(section, "abc"[n], by) for n, (section, by) in enumerate(chosen)]
    aliases = st.sampled_from((None, "hostdev0", *(each.alias + end for each in asked or () for end in ("", "-fn1"))))
    there = draw(st.dictionaries(functions | st.just(UUID2), aliases, max_size=2))
    policy = Policy(draw(SIBLINGS_OF_POLICY), draw(PAIRING_OF_POLICY), draw(st.booleans()))
    return Case(NO_FACTS if draw(ONE_IN_EIGHT) else host, held, asked, there, policy._replace(node_check="never"))


def translated(case: Case) -> bytes | None:
    """The document that the guest gets, or None if there is an error."""
    env = {VARIABLES[by]: ",".join(held) for by, held in case.held.items() if by in VARIABLES}
    devices = {kind: [each.entry for each in case.asked or () if each.section == kind] for kind in PREFIXES}
    claims = [{"name": name, "resourceClaimName": name} for name in CLAIMS]
    vmi = None if case.asked is None else {"spec": {"resourceClaims": claims, "domain": {"devices": devices}}}
    with TemporaryDirectory() as folder:
        held = {name: case.held[name] for name in CLAIMS if name in case.held}
        for name, (device,) in held.items():
            attribute = "resource.kubernetes.io/pciBusID" if "." in device else "mdevUUID"
            write_metadata(Path(folder), f"resourceclaims/{name}/r", {attribute: {"string": device}})
        dra = DraFiles(folder if held else "/nowhere")
        try:
            host = FactsHost(case.host)
            return translate(case.document, env=env, host=host, vmi=vmi, policy=case.policy, dra=dra).domain_xml
        except LauncherkitError as error:
            event(next(error.leaves()).code)
            return None


def write_metadata(root: Path, folder: str, attributes: dict[str, dict[str, str]]) -> None:
    """A file as a DRA driver writes it (E5)."""
    (root / folder).mkdir(parents=True)
    requests = [{"name": "r", "devices": [{"attributes": attributes}]}]
    document = {"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1beta1", "requests": requests}
    (root / folder / "x.org-metadata.json").write_text(json.dumps(document))


@settings(max_examples=10 * settings().max_examples)
@given(cases())
def test_every_hostdev_was_allocated_or_named_or_is_a_sibling_of_the_best_function(case: Case) -> None:
    result = translated(case)
    if result is None:
        return
    event("translated")
    attached = {each.source: each.attributes.get("managed") == "yes" for each in hostdevs(result)}
    assert len(attached) == len(hostdevs(result))  # C5
    given = case.allocated | {*case.there}
    listed = case.allocated if case.held else given
    siblings = siblings_of(attached, given, listed, case.host, case.policy.siblings)
    assert {*attached} <= given | siblings
    if case.host.known and case.asked is not None:  # whoever asks for one gets one
        assert len({*attached} - {*case.there} - siblings) <= len(case.asked)


@given(cases())
def test_nothing_stays_under_the_alias_of_a_request_that_got_another_device(case: Case) -> None:
    result = translated(case)
    if result is None:
        return
    attached = {each.source for each in hostdevs(result)}
    given = case.allocated | {*case.there} - case.replaced
    assert attached & case.replaced <= given | siblings_of(
        dict.fromkeys(attached, True), given, case.allocated, case.host, case.policy.siblings
    )
