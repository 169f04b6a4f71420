"""Reads the requests of a VirtualMachineInstance (Q1)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from launcherkit.errors import BAD_VMI, LauncherkitError, shown
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.plan import Note
from launcherkit.model.request import DisplayOptions, DraClaim, Request, Section, SriovInterface
from launcherkit.request.fields import DocumentErrors, Fields, flag, strict_json, text

THE_VMI = "the VMI"
"""What messages call one that has no other name."""
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


def read_vmi(vmi: str | bytes | Mapping[str, Any], name: str = THE_VMI, *, interfaces: bool = True) -> Vmi:
    """Read the requests of a VMI, given as JSON or parsed.

    Of a VirtualMachine the template is read, of a List of one VirtualMachineInstance or VirtualMachine the item (Q4).

    Args:
        vmi: the document.
        name: what messages call it, a file's path for example.
        interfaces: whether SR-IOV interfaces are requests, too (Q5); not for hooks, for which KubeVirt has made them.

    Raises:
        BAD_VMI: it is not JSON, not a VMI, or malformed; all such errors are raised together.
    """
    document = parse_vmi(vmi, name) if isinstance(vmi, (str, bytes)) else vmi
    path, notes = "", tuple[Note, ...]()
    if not _is_vmi(document):
        document, path, notes = find_vmi(document, name)
    problems = VmiErrors(name, BAD_VMI, _REMEDY)
    root = Fields(document, path, problems)
    spec, metadata = root.inner("spec"), root.inner("metadata")
    devices = spec.inner("domain").inner("devices")
    claims = _claims(spec.objects("resourceClaims"))
    requests = [
        _request(section, index, entry, claims)
        for section in _SECTIONS
        for index, entry in enumerate(devices.objects(section))
    ]
    if interfaces:
        requests += _interfaces(devices.objects("interfaces"), spec, metadata.pop("namespace"), claims)
    annotations = {key: value for key, value in metadata.mapping("annotations").items() if isinstance(value, str)}
    image = root.inner("status").pop("launcherContainerImageVersion")
    problems.raise_if_any()
    return Vmi(tuple(requests), annotations, notes, image if isinstance(image, str) else "")


def _is_vmi(document: object) -> bool:
    """Whether it is a VMI; one without ``kind`` counts, because KubeVirt gives hooks such ones."""
    if not isinstance(document, Mapping) or document.get("kind") not in (None, "", "VirtualMachineInstance"):
        return False
    version, spec = document.get("apiVersion") or "kubevirt.io/v1", document.get("spec")
    if not isinstance(version, str) or not version.startswith("kubevirt.io/"):
        return False
    return isinstance(spec, Mapping) and spec.get("domain") is not None


def parse_vmi(document: str | bytes, name: str) -> Any:
    """The values of the JSON of a VMI.

    Raises:
        BAD_VMI: it isn't JSON.
    """
    try:
        return strict_json(document)
    except ValueError as problem:
        raise BAD_VMI(f"{name} is not JSON: {problem}", _REMEDY, file=name) from problem


class VmiErrors(DocumentErrors):
    """What is wrong in a VMI."""

    def error(self, where: str, message: str) -> LauncherkitError:
        return BAD_VMI(f"{self.path}, {where}: {message}", self.remedy, file=self.path, key=where)

    def wrong(self, where: str, value: object, expected: str) -> None:
        self.add(where, f"expected {expected}, found {shown(value)}")


_Claim: TypeAlias = tuple[Literal["claim", "template"], Any]


def _claims(entries: list[Fields]) -> dict[str, _Claim]:
    """``spec.resourceClaims``, by name within the pod: a ResourceClaim, or one that is made from a template."""
    claims: dict[str, _Claim] = {}
    for entry in entries:
        name, claim = entry.pop("name"), entry.pop("resourceClaimName")
        if _is_text(name):
            claims[name] = ("claim", claim) if _is_text(claim) else ("template", name)
    return claims


_RESOURCE = "a resource name such as nvidia.com/GA102"


def _request(section: Section, index: int, entry: Fields, claims: Mapping[str, _Claim]) -> Request:
    name = entry.required("name", text, "the name of the device", "")
    resource, claim = entry.pop("deviceName"), None
    if not resource:
        resource, claim = None, _claim(entry, resource, claims)
    elif not _is_text(resource):
        entry.problem("deviceName", resource, _RESOURCE)
        resource = None
    display = _display(entry) if section == "gpus" else None
    return Request(section, index, name, resource, display, claim)


def _claim(entry: Fields, resource: object, claims: Mapping[str, _Claim]) -> DraClaim | None:
    """The claim of a request without a resource; its names become a path, so they must be valid names (E5)."""
    name, request = entry.pop("claimName"), entry.pop("requestName")
    if name is None and request is None:
        entry.problem("deviceName", resource, _RESOURCE)
        return None
    kind, claim = claims.get(str(name), ("claim", name))
    for key, value in ("claimName", claim), ("requestName", request):
        if not _is_text(value) or not value.replace("-", "").replace(".", "").isalnum() or value.startswith("."):
            entry.problem(key, value, "a name of letters, digits, - and .")
            return None
    return DraClaim(kind, str(claim), str(request))


def _interfaces(
    entries: list[Fields], spec: Fields, namespace: object, claims: Mapping[str, _Claim]
) -> Iterator[Request]:
    """The SR-IOV interfaces, but for those that are ``absent``: KubeVirt is unplugging them (Q5)."""
    asking = [
        (index, entry)
        for index, entry in enumerate(entries)
        if entry.pop("sriov") is not None and entry.pop("state") != "absent"
    ]
    networks: dict[str, Fields] = {}
    for network in spec.objects("networks") if asking else ():
        networks.setdefault(network.required("name", text, "the name of the network", ""), network)
    for index, entry in asking:
        name = entry.required("name", text, "the name of the interface", "")
        attachment = claim = None
        if (its_network := networks.get(name)) is not None:
            attachment = _attachment(its_network, namespace)
            if its_network.peek("resourceClaim"):
                claim = _claim(its_network.inner("resourceClaim"), None, claims)
        guest = entry.optional("pciAddress", _guest, "a PCI address of the guest such as 0000:81:01.0")
        order = entry.optional("bootOrder", _order, "a number from 1 on")
        yield Request("interfaces", index, name, None, None, claim, SriovInterface(attachment, guest, order))


def _attachment(network: Fields, namespace: object) -> str | None:
    """The NetworkAttachmentDefinition of a network: ``namespace/name``; one without a namespace is in the VMI's."""
    expected = "the name of a NetworkAttachmentDefinition"
    name = network.inner("multus").optional("networkName", text, expected)
    return f"{namespace}/{name}" if name and "/" not in name and _is_text(namespace) else name


def _guest(value: object) -> GuestAddress | None:
    """An address; the empty text counts as none."""
    return None if value == "" else GuestAddress(*PciAddress.parse(text(value)))


def _order(value: object) -> int:
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ValueError
    return value


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _display(entry: Fields) -> DisplayOptions | None:
    options = entry.child("virtualGPUOptions")
    display = None if options is None else options.child("display")
    if display is None:
        return None
    expected = "true or false"
    return DisplayOptions(
        display.optional("enabled", flag, expected), display.inner("ramFB").optional("enabled", flag, expected)
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


def find_vmi(document: object, name: str) -> tuple[Mapping[str, Any], str, tuple[Note, ...]]:
    """The VMI that a document is or contains; its path from the document's root, empty if it is that; and notes.

    Args:
        document: the parsed document.
        name: what messages call it.

    Raises:
        BAD_VMI: the document is something else; the message says what.
    """
    item, path = document, ""
    if isinstance(document, Mapping) and _kind(document) in _LISTS:
        items = document.get("items")
        item, path = items[0] if isinstance(items, list | tuple) and len(items) == 1 else None, "items[0]"
        if isinstance(item, Mapping) and not _kind(item):
            item = {**item, "kind": _LISTS[_kind(document)]}
    if not isinstance(item, Mapping) or _kind(item) not in (_VMI, _VM) or not _is_kubevirts(item):
        raise BAD_VMI(f"{name}: expected a {_VMI}, found {_described(document)}", _NO_VMI_REMEDY, file=name)
    notes: tuple[Note, ...] = ()
    problems = VmiErrors(name, BAD_VMI, _NO_VMI_REMEDY, most=1)
    if _kind(item) == _VM:
        vm = Fields(item, path, problems).inner("spec")
        path, item = vm.at("template"), _template(vm)
        notes = _notes_on(vm.pop("instancetype"))
    # Without a domain it isn't known which devices it has.
    Fields(item, path, problems).inner("spec", required=True).inner("domain", required=True)
    return item, path, notes


def _template(vm: Fields) -> Mapping[str, Any]:
    """What KubeVirt makes the VMI from."""
    template = vm.pop("template")
    if not isinstance(template, Mapping):
        vm.problem("template", template, "an object with the VMI's spec")
    result: Mapping[str, Any] = template
    return result


def _notes_on(instancetype: object) -> tuple[Note, ...]:
    """A note on an instance type, whose devices are not in the document."""
    if not isinstance(instancetype, Mapping):
        return ()
    message = (
        f"the VirtualMachine has the instance type {shown(instancetype.get('name'))}, whose devices are not in this "
        "document; the VMI has them: kubectl get vmi NAME -o json"
    )
    return (Note("instancetype", message),)


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
