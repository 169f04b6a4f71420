"""Properties of QEMU's devices that libvirt has no element for, in ``<qemu:override>`` (libvirt 8.2 and later)."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

from launcherkit.domain.xml import Document, Edit, Style, append_children, attribute_value, escaped, remove
from launcherkit.model.plan import Plan

_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
_CLIQUE = "x-nv-gpudirect-clique"


def override_edits(document: Document, style: Style, plan: Plan) -> tuple[list[Edit], list[str]]:
    """Edits of the document's ``<qemu:override>``, and the text of a new one for the end of a document that has none.

    Args:
        document: of the domain.
        style: of the document.
        plan: with the cliques of GPUs, and the aliases of their functions (P8).
    """
    functions = [function for device in plan.devices for function in device.functions]
    cliques = {each.alias: plan.cliques[each.source] for each in functions if each.source in plan.cliques}
    present = document.root.find(f"{{{_QEMU}}}override")
    if present is None:
        numbers = {alias: clique for alias, clique in cliques.items() if clique is not None}
        return [], _override(numbers, document, style) if numbers else []
    edits: list[Edit] = []
    of_alias = {each.get("alias"): each for each in present.iterchildren(f"{{{_QEMU}}}device")}
    missing: list[str] = []
    for alias, clique in cliques.items():
        device = of_alias.get(alias)
        if device is not None:
            edits += _completed(document, style, device, clique)
        elif clique is not None:
            missing.append(_device(alias, clique, present.prefix, style, style.indent))
    if missing:
        edits.append(append_children(document.data, document.span(present), missing, style, depth=0))
    return edits, []


def _completed(document: Document, style: Style, device: etree._Element, clique: int | None) -> list[Edit]:
    """Edits of a device's element, whose other properties stay."""
    properties = device.findall(f"{{{_QEMU}}}frontend/{{{_QEMU}}}property")
    own = [each for each in properties if each.get("name") == _CLIQUE]
    if clique is None:  # nothing is left of an element without properties
        lost = own if len(properties) > len(own) else [device] if own else []
        return [remove(document.data, document.span(each)) for each in lost]
    if own:
        place = attribute_value(document.data, document.span(own[0]), "value")
        same = own[0].get("value") == str(clique)
        return [] if same or place is None else [(*place, str(clique).encode("ascii"))]
    frontend = device.find(f"{{{_QEMU}}}frontend")
    if frontend is None:
        lead = _deeper(style.indent, style, 1)
        texts = [_frontend(clique, device.prefix, style, lead)]
        return [append_children(document.data, document.span(device), texts, _at(style, lead), depth=0)]
    lead = _deeper(style.indent, style, 2)
    texts = [style.quoted(_property(clique, device.prefix))]
    return [append_children(document.data, document.span(frontend), texts, _at(style, lead), depth=0)]


def _override(cliques: Mapping[str, int], document: Document, style: Style) -> list[str]:
    """A new element. The namespace is declared on it, unless the document has its usual prefix."""
    declared = "" if document.root.nsmap.get("qemu") == _QEMU else f" xmlns:qemu='{_QEMU}'"
    lead = style.indent or ""
    devices = "".join(lead + _device(alias, clique, "qemu", style, style.indent) for alias, clique in cliques.items())
    end = lead[: len(lead) - len(style.step)]
    return [style.quoted(f"<qemu:override{declared}>") + devices + f"{end}</qemu:override>"]


def _device(alias: str, clique: int, prefix: str | None, style: Style, indent: str | None) -> str:
    name, deeper = _name(prefix, "device"), _deeper(indent, style, 1)
    opening = style.quoted(f"<{name} alias='{escaped(alias)}'>")
    return f"{opening}{deeper or ''}{_frontend(clique, prefix, style, deeper)}{indent or ''}</{name}>"


def _frontend(clique: int, prefix: str | None, style: Style, indent: str | None) -> str:
    name, deeper = _name(prefix, "frontend"), _deeper(indent, style, 1) or ""
    return f"<{name}>{deeper}{style.quoted(_property(clique, prefix))}{indent or ''}</{name}>"


def _property(clique: int, prefix: str | None) -> str:
    return f"<{_name(prefix, 'property')} name='{_CLIQUE}' type='unsigned' value='{clique}'/>"


def _name(prefix: str | None, name: str) -> str:
    return f"{prefix}:{name}" if prefix else name


def _deeper(indent: str | None, style: Style, steps: int) -> str | None:
    return None if indent is None else indent + style.step * steps


def _at(style: Style, indent: str | None) -> Style:
    return style._replace(indent=indent)
