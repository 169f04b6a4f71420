"""Reads the requests of a VirtualMachineInstance (Q1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from launcherkit.errors import BAD_VMI, Collector, shown
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.plan import Note
from launcherkit.model.request import DisplayOptions, DraClaim, Request, Section, SriovInterface

_SECTIONS: tuple[Section, ...] = ("gpus", "hostDevices")
_REMEDY = (
    "Give the whole VirtualMachineInstance as KubeVirt hands it to hooks, or what "
    "`kubectl get vmi NAME -o json` prints."
)


class Vmi(NamedTuple):
    """The parts of a VMI that rules use."""

    requests: tuple[Request, ...]
    annotations: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    """On the document itself, for the operator."""
    launcher_image: str = ""
    """The image of its pod, from its status; empty if unknown."""


def read_vmi(vmi: str | bytes | Mapping[str, Any], name: str = "the VMI", *, interfaces: bool = True) -> Vmi:
    """Read the requests of a VMI, given as JSON or parsed.

    Of a VirtualMachine the template is read, of a List of one VirtualMachineInstance or VirtualMachine the item (Q4).

    Args:
        vmi: the document.
        name: what messages call it, a file's path for example.
        interfaces: whether SR-IOV interfaces are requests, too (Q5); not for hooks, for which KubeVirt has made them.

    Raises:
        BAD_VMI: it is not JSON, not a VMI, or malformed; all such errors are raised together.
    """
    document = _parse(vmi, name) if isinstance(vmi, str | bytes) else vmi
    requests: list[Request] = []
    path = ""
    notes: tuple[Note, ...] = ()
    if not _is_vmi(document):
        document, path, notes = find_vmi(document, name)
    reader = _Reader(name, path)
    root = reader.mapping(document, "$")
    spec = reader.mapping(root.get("spec"), "spec")
    domain = reader.mapping(spec.get("domain"), "spec.domain")
    devices = reader.mapping(domain.get("devices"), "spec.domain.devices")
    claims = _claims(reader, spec.get("resourceClaims"))
    for section in _SECTIONS:
        entries = reader.listed(devices.get(section), f"spec.domain.devices.{section}")
        for index, entry in enumerate(entries):
            requests.append(_request(reader, section, index, entry, claims))
    metadata = reader.mapping(root.get("metadata"), "metadata")
    if interfaces:
        requests += _interfaces(reader, spec, devices, metadata.get("namespace"), claims)
    annotations = reader.mapping(metadata.get("annotations"), "metadata.annotations")
    reader.errors.raise_if_any()
    texts = {key: value for key, value in annotations.items() if isinstance(value, str)}
    status = root.get("status")
    image = status.get("launcherContainerImageVersion") if isinstance(status, Mapping) else None
    return Vmi(tuple(requests), texts, notes, image if isinstance(image, str) else "")


def _is_vmi(document: object) -> bool:
    """Whether it is a VMI; one without ``kind`` counts, because KubeVirt gives hooks such ones."""
    if type(document) is not dict and not isinstance(document, Mapping):
        return False
    if document.get("kind") not in (None, "", "VirtualMachineInstance"):
        return False
    version, spec = document.get("apiVersion") or "kubevirt.io/v1", document.get("spec")
    if not isinstance(version, str) or not version.startswith("kubevirt.io/"):
        return False
    return isinstance(spec, Mapping) and spec.get("domain") is not None


def _parse(text: str | bytes, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BAD_VMI(f"{name} is not JSON: {problem}", _REMEDY, file=name) from problem


class _Reader:
    """Checks shapes, and collects errors with their JSON paths."""

    def __init__(self, name: str, root: str) -> None:
        self._name = name
        self.errors = Collector()
        self._root = root

    def fault(self, path: str, value: object, expected: str) -> None:
        key = f"{self._root}{path}"
        text = f"{self._name}, {key}: expected {expected}, found {shown(value)}"
        self.errors.add(BAD_VMI(text, _REMEDY, file=self._name, key=key))

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        """A mapping; None counts as an empty one, as in Kubernetes."""
        if type(value) is dict or isinstance(value, Mapping):  # the first is the type from JSON, and quicker to check
            return value
        if value is not None or path == "$":
            self.fault(path, value, "an object")
        return {}

    def listed(self, value: object, path: str) -> Sequence[Any]:
        """A list; None counts as an empty one."""
        if isinstance(value, list | tuple):
            return value
        if value is not None:
            self.fault(path, value, "a list")
        return ()

    def optional_bool(self, value: object, path: str) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self.fault(path, value, "true or false")
        return None


_Claim: TypeAlias = tuple[Literal["claim", "template"], Any]


def _claims(reader: _Reader, value: object) -> dict[str, _Claim]:
    """``spec.resourceClaims``, by name within the pod: a ResourceClaim, or one that is made from a template."""
    claims: dict[str, _Claim] = {}
    for index, entry in enumerate(reader.listed(value, "spec.resourceClaims")):
        claim = reader.mapping(entry, f"spec.resourceClaims[{index}]")
        name, named = claim.get("name"), claim.get("resourceClaimName")
        if _is_text(name):
            claims[name] = ("claim", named) if _is_text(named) else ("template", name)
    return claims


def _request(
    reader: _Reader,
    section: Section,
    index: int,
    value: object,
    claims: Mapping[str, _Claim],
) -> Request:
    path = f"spec.domain.devices.{section}[{index}]"
    entry = reader.mapping({} if value is None else value, path)
    name, resource = entry.get("name"), entry.get("deviceName") or None
    if not _is_text(name):
        reader.fault(f"{path}.name", name, "the name of the device")
        name = ""
    claim = None
    if resource is None:
        claim = _claim(reader, path, entry, claims)
    elif not _is_text(resource):
        reader.fault(f"{path}.deviceName", resource, "a resource name such as nvidia.com/GA102")
        resource = None
    display = _display(reader, path, entry) if section == "gpus" else None
    return Request(section, index, name, resource, display, claim)


def _claim(
    reader: _Reader,
    path: str,
    entry: Mapping[str, Any],
    claims: Mapping[str, _Claim],
) -> DraClaim | None:
    """The claim of a request without a resource; its names become a path, so they must be valid names (E5)."""
    name, request = entry.get("claimName"), entry.get("requestName")
    if name is None and request is None:
        reader.fault(f"{path}.deviceName", entry.get("deviceName"), "a resource name such as nvidia.com/GA102")
        return None
    kind, named = claims.get(str(name), ("claim", name))
    for key, text in ("claimName", named), ("requestName", request):
        if not _is_text(text) or not text.replace("-", "").replace(".", "").isalnum() or text.startswith("."):
            reader.fault(f"{path}.{key}", text, "a name of letters, digits, - and .")
            return None
    return DraClaim(kind, str(named), str(request))


def _interfaces(
    reader: _Reader,
    spec: Mapping[str, Any],
    devices: Mapping[str, Any],
    namespace: object,
    claims: Mapping[str, _Claim],
) -> Iterator[Request]:
    """The SR-IOV interfaces, but for those that are ``absent``: KubeVirt is unplugging them (Q5)."""
    listed = reader.listed(devices.get("interfaces"), "spec.domain.devices.interfaces")
    entries = [reader.mapping(entry, f"spec.domain.devices.interfaces[{at}]") for at, entry in enumerate(listed)]
    asking = [at for at, each in enumerate(entries) if each.get("sriov") is not None and each.get("state") != "absent"]
    networks: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for index, value in enumerate(reader.listed(spec.get("networks"), "spec.networks") if asking else ()):
        network = reader.mapping(value, path := f"spec.networks[{index}]")
        if _is_text(called := network.get("name")):
            networks.setdefault(called, (path, network))
        else:
            reader.fault(f"{path}.name", called, "the name of the network")
    for at in asking:
        entry, path = entries[at], f"spec.domain.devices.interfaces[{at}]"
        name = entry.get("name")
        if not _is_text(name):
            reader.fault(f"{path}.name", name, "the name of the interface")
            continue
        where, network = networks.get(name, ("spec.networks", {}))
        multus = reader.mapping(network.get("multus"), f"{where}.multus")
        attachment = multus.get("networkName")
        if attachment is not None and not _is_text(attachment):
            reader.fault(f"{where}.multus.networkName", attachment, "the name of a NetworkAttachmentDefinition")
            attachment = None
        elif attachment and "/" not in attachment and _is_text(namespace):
            attachment = f"{namespace}/{attachment}"
        by_claim = reader.mapping(network.get("resourceClaim"), f"{where}.resourceClaim")
        claim = _claim(reader, f"{where}.resourceClaim", by_claim, claims) if by_claim else None
        guest = None if entry.get("pciAddress") in (None, "") else _guest(reader, path, entry["pciAddress"])
        order = entry.get("bootOrder")
        if order is not None and (type(order) is not int or not 0 < order < 1 << 31):
            reader.fault(f"{path}.bootOrder", order, "a number from 1 on")
            order = None
        sriov = SriovInterface(attachment, guest, order)
        yield Request("interfaces", at, name, None, None, claim, sriov)


def _guest(reader: _Reader, path: str, text: object) -> GuestAddress | None:
    try:
        return GuestAddress(*PciAddress.parse(text if _is_text(text) else ""))
    except ValueError:
        reader.fault(f"{path}.pciAddress", text, "a PCI address of the guest such as 0000:81:01.0")
        return None


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _display(reader: _Reader, path: str, entry: Mapping[str, Any]) -> DisplayOptions | None:
    if entry.get("virtualGPUOptions") is None:
        return None
    options = reader.mapping(entry["virtualGPUOptions"], f"{path}.virtualGPUOptions")
    if options.get("display") is None:
        return None
    path = f"{path}.virtualGPUOptions.display"
    display = reader.mapping(options["display"], path)
    ramfb = reader.mapping(display.get("ramFB"), f"{path}.ramFB")
    return DisplayOptions(
        reader.optional_bool(display.get("enabled"), f"{path}.enabled"),
        reader.optional_bool(ramfb.get("enabled"), f"{path}.ramFB.enabled"),
    )


# The VMI in other objects that people give: a VirtualMachine, a List of one (Q4).

_VMI, _VM = "VirtualMachineInstance", "VirtualMachine"
_LISTS = {"List": "", f"{_VMI}List": _VMI, f"{_VM}List": _VM}
"""Kinds of lists, and the default kind of their items."""
_GROUP = "kubevirt.io"
_NO_VMI_REMEDY = (
    "Give a VirtualMachineInstance as KubeVirt hands it to hooks or `kubectl get vmi NAME -o json` prints it, "
    "a VirtualMachine, or a List of one of them."
)


class FoundVmi(NamedTuple):
    """The VMI in a document."""

    document: Mapping[str, Any]
    path: str
    """Its path from the document's root, with a final dot; empty if it is the document itself."""
    notes: tuple[Note, ...]


def find_vmi(document: object, name: str) -> FoundVmi:
    """The VMI that a document is or contains.

    Args:
        document: the parsed document.
        name: what messages call it.

    Raises:
        BAD_VMI: the document is something else; the message says what.
    """
    item, path = document, ""
    if isinstance(document, Mapping) and _kind(document) in _LISTS:
        items = document.get("items")
        item, path = items[0] if isinstance(items, list | tuple) and len(items) == 1 else None, "items[0]."
        if isinstance(item, Mapping) and not _kind(item):
            item = {**item, "kind": _LISTS[_kind(document)]}
    if isinstance(item, Mapping) and _kind(item) in (_VMI, _VM) and _is_kubevirts(item):
        return (_of_vmi if _kind(item) == _VMI else _of_vm)(item, name, path)
    raise BAD_VMI(f"{name}: expected a {_VMI}, found {_described(document)}", _NO_VMI_REMEDY, file=name)


def _of_vmi(vmi: Mapping[str, Any], name: str, path: str) -> FoundVmi:
    """Check that the VMI has a domain, without which its devices are unknown."""
    spec = vmi.get("spec")
    if spec is None or (isinstance(spec, Mapping) and spec.get("domain") is None):
        missing = "spec" if spec is None else "spec.domain"
        raise BAD_VMI(
            f"{name}, {path}{missing}: expected an object, found nothing",
            _NO_VMI_REMEDY,
            file=name,
            key=f"{path}{missing}",
        )
    return FoundVmi(vmi, path, ())


def _of_vm(vm: Mapping[str, Any], name: str, path: str) -> FoundVmi:
    """KubeVirt makes the VMI from the template; devices of an instance type are not in the document."""
    spec = vm.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(template, Mapping):
        key = f"{path}spec.template"
        text = f"{name}, {key}: expected an object with the VMI's spec, found {shown(template)}"
        raise BAD_VMI(text, _NO_VMI_REMEDY, file=name, key=key)
    vmi = _of_vmi(template, name, f"{path}spec.template.")
    instancetype = spec.get("instancetype")
    if not isinstance(instancetype, Mapping):
        return vmi
    text = (
        f"the VirtualMachine has the instance type {shown(instancetype.get('name'))}, whose devices are not in this "
        "document; the VMI has them: kubectl get vmi NAME -o json"
    )
    return vmi._replace(notes=(Note("instancetype", text),))


def _kind(document: object) -> str:
    kind = document.get("kind") if isinstance(document, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _is_kubevirts(document: Mapping[str, Any]) -> bool:
    version = document.get("apiVersion")
    return not version or (isinstance(version, str) and version.startswith(_GROUP + "/"))


def _described(document: object) -> str:
    """What it is: ``a Pod (v1)``, ``a List of 2 items (1 VirtualMachine, 1 Pod)``."""
    if not isinstance(document, Mapping):
        return shown(document)
    kind, items = _kind(document), document.get("items")
    if kind in _LISTS and isinstance(items, list | tuple):
        kinds = Counter(_kind(item)[:60] or _LISTS[kind] or "of no kind" for item in items)
        held = ", ".join(f"{count} {each}" for each, count in kinds.items())
        number = f"{len(items)} item" + "s" * (len(items) > 1)
        return f"a {kind} of {number} ({held})" if held else f"an empty {kind}"
    if kind:
        version = document.get("apiVersion")
        return f"a {kind[:60]}" + (f" ({version[:60]})" if isinstance(version, str) else "")
    return "an object without a kind and without spec.domain" if document else "an empty object"
