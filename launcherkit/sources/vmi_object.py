"""Finds the VMI in other objects that people give: a VirtualMachine, a List of one (Q4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcherkit.errors import BadVmi, shown
from launcherkit.model.note import Note

_VMI, _VM = "VirtualMachineInstance", "VirtualMachine"
_LISTS = {"List": "", f"{_VMI}List": _VMI, f"{_VM}List": _VM}
"""Kinds of lists, and the default kind of their items."""
_GROUP = "kubevirt.io"
_REMEDY = (
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
        BadVmi: the document is something else; the message says what.
    """
    item, path = document, ""
    if isinstance(document, Mapping) and _kind(document) in _LISTS:
        items = document.get("items")
        item, path = items[0] if isinstance(items, list | tuple) and len(items) == 1 else None, "items[0]."
        if isinstance(item, Mapping) and not _kind(item):
            item = {**item, "kind": _LISTS[_kind(document)]}
    if isinstance(item, Mapping) and _kind(item) in (_VMI, _VM) and _is_kubevirts(item):
        return (_of_vmi if _kind(item) == _VMI else _of_vm)(item, name, path)
    raise BadVmi(f"{name}: expected a {_VMI}, found {_described(document)}", _REMEDY, file=name)


def _of_vmi(vmi: Mapping[str, Any], name: str, path: str) -> FoundVmi:
    """Check that the VMI has a domain, without which its devices are unknown."""
    spec = vmi.get("spec")
    if spec is None or (isinstance(spec, Mapping) and spec.get("domain") is None):
        missing = "spec" if spec is None else "spec.domain"
        raise BadVmi(
            f"{name}, {path}{missing}: expected an object, found nothing", _REMEDY, file=name, key=f"{path}{missing}"
        )
    return FoundVmi(vmi, path, ())


def _of_vm(vm: Mapping[str, Any], name: str, path: str) -> FoundVmi:
    """KubeVirt makes the VMI from the template; devices of an instance type are not in the document."""
    spec = vm.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(template, Mapping):
        key = f"{path}spec.template"
        text = f"{name}, {key}: expected an object with the VMI's spec, found {shown(template)}"
        raise BadVmi(text, _REMEDY, file=name, key=key)
    found = _of_vmi(template, name, f"{path}spec.template.")
    instancetype = spec.get("instancetype")
    if not isinstance(instancetype, Mapping):
        return found
    text = (
        f"the VirtualMachine has the instance type {shown(instancetype.get('name'))}, whose devices are not in this "
        "document; the VMI has them: kubectl get vmi NAME -o json"
    )
    return found._replace(notes=(Note("instancetype", text),))


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
