"""Writes the plan into a domain document, as edits of its bytes (X1-X4)."""

from __future__ import annotations

from collections.abc import Sequence

from launcherkit.domain import elements
from launcherkit.domain.completion import Completion
from launcherkit.domain.controllers import cells_edit
from launcherkit.domain.hostdev import kind_of_element
from launcherkit.domain.reader import hostdev_elements
from launcherkit.domain.window import cpu_with_bits, window_edits
from launcherkit.domain.xml import (
    MAX_BYTES,
    Document,
    Edit,
    Places,
    Style,
    append_children,
    apply_edits,
    remove,
    style_of,
)
from launcherkit.errors import DOMAIN_TOO_LARGE
from launcherkit.model.plan import Plan


def write_plan(document: Document, plan: Plan, *, hook: bool = False) -> bytes:
    """The document with the plan's hostdevs and controllers; all other bytes stay as they are (X4).

    Args:
        document: from `read_document`.
        plan: from the pipeline, for this document.
        hook: as for `translate`.

    Raises:
        DOMAIN_TOO_LARGE: the result would be larger than `read_document` accepts (X5).
    """
    places = Places(document)
    style = style_of(places)
    edits: list[Edit] = []
    added = [elements.pci_controller(controller, style) for controller in plan.controllers]
    completion = Completion(places, style)
    hostdevs = hostdev_elements(document.root)
    cpu: list[str] = []
    for device in plan.devices:
        for function in device.functions:
            if function.attachment.hostdev is None:
                added.append(elements.hostdev(function, style))
            elif device.kept and not hook:
                continue
            elif device.kept:
                edits += completion.essentials(hostdevs[function.attachment.hostdev], device.kind)
            else:
                edits += completion.edits(hostdevs[function.attachment.hostdev], function)
    edits += [remove(document.data, places.of(hostdevs[index])) for index, _ in plan.removed]
    if plan.window is not None:
        cpu = cpu_with_bits(document.root, style, plan.window)
        more, roots = window_edits(document.root, places, style, plan.window)
        edits += more
        added = [*roots, *added]
    if plan.cells:
        edits.append(cells_edit(document.root, places, style, plan.cells))
    of_domain = [*cpu, _wrap(added, style)] if places.devices is None else cpu
    if of_domain:
        edits.append(append_children(document.data, places.spans[0], of_domain, style, depth=-1))
    if added and places.devices is not None:
        edits.append(append_children(document.data, places.of(places.devices), added, style, depth=0))
    size = len(document.data) + sum([len(edit.text) - (edit.end - edit.start) for edit in edits])
    if size > MAX_BYTES:
        raise DOMAIN_TOO_LARGE(
            f"with the hostdevs that are added the domain document would have {size} bytes, more than {MAX_BYTES}",
            "Ask for fewer devices, or look for what was put into the document by mistake.",
            key="devices",
        )
    return apply_edits(document.data, edits)


def with_essentials(document: Document, *, hook: bool) -> bytes:
    """The document of a VM that asks for nothing: as it came, but for hostdevs without ``mode`` or ``type`` (Q3).

    PCI functions get them, because KubeVirt writes these without; in a hook, every hostdev gets them.
    """
    hostdevs = [(each, kind_of_element(each, each.find("source"))) for each in hostdev_elements(document.root)]
    asked = [(each, kind) for each, kind in hostdevs if kind == "pci" or (kind and hook)]
    lacking = [(each, kind) for each, kind in asked if not (each.get("mode") and each.get("type"))]
    if not lacking:
        return document.data
    places = Places(document)
    completion = Completion(places, style_of(places))
    return apply_edits(document.data, [edit for each, kind in lacking for edit in completion.essentials(each, kind)])


def _wrap(added: Sequence[str], style: Style) -> str:
    if not added:
        return "<devices/>"
    lead = style.indent or ""
    return f"<devices>{''.join(lead + text for text in added)}{lead[: len(lead) - len(style.step)]}</devices>"
