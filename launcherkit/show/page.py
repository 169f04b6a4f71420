"""Writes an outline as one HTML file, without external resources or scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape

from launcherkit.show.item import NOTHING_FOR_GUESTS, Item, ItemKind, Outline, part

_LIGHT = "--back:#fff;--text:#1b1f24;--dim:#57606a;--line:#8c959f;--good:#116329;--odd:#7d4e00;--bad:#a40e26"
_DARK = "--back:#0d1117;--text:#e6edf3;--dim:#9da7b3;--line:#6e7681;--good:#56d364;--odd:#e3b341;--bad:#ff7b72"

FALLBACK = {"plain": "#1b1f24", "good": "#116329", "odd": "#7d4e00", "bad": "#a40e26"}
"""The light colours by tone, for attributes."""

PAPER = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
"""
"""CSS for pages and pictures. Every text colour has a contrast of at least 4.5 on its background."""

TREE_STYLE = """
details,p.function,p.guest{margin:0 0 0 1.4rem}main>details{margin:0 0 1rem}p.function,p.guest{padding-left:1rem}
summary{cursor:pointer}:focus-visible{outline:2px solid currentColor;outline-offset:1px;border-radius:3px}
.node>summary{font-size:1.2em;font-weight:600}.branch>summary{color:var(--dim)}
.group{border:1px solid var(--line);border-radius:6px;padding:.2rem .6rem;margin:.2rem 0 .4rem 1.4rem}
.function .label,.guest .label,.slot .label{font-family:ui-monospace,monospace}
.badge,.name{font-weight:600}.good{color:var(--good)}.odd{color:var(--odd)}.bad{color:var(--bad)}
.label~span{margin-left:.8em}p,summary{overflow-wrap:anywhere}
@media (max-width:40rem){details,p.function,p.guest,.group{margin-left:.4rem}.label~span{margin-left:.5em}}
@media print{body{margin:0;max-width:none;font-size:10pt}.group{break-inside:avoid}
details::details-content{content-visibility:visible;display:block}}
"""
"""CSS for `tree`, with the colours of `PAPER`."""

_STYLE = """
body{margin:2rem auto;max-width:80rem;padding:0 1rem;background:var(--back);color:var(--text);
font:15px/1.6 system-ui,sans-serif}
"""


CLASSES: Mapping[ItemKind, str] = {"complex": "branch", "vfs": "function", "mdevs": "function"}
"""CSS classes of items that are not named after their kind."""


def page(outline: Outline, title: str) -> str:
    """The page; it is well-formed XML too."""
    body = f"<h1>{escape(title)}</h1>\n<main>\n{tree(outline)}\n</main>"
    return sheet(title, PAPER + _STYLE + TREE_STYLE, body)


def sheet(title: str, style: str, body: str) -> str:
    """An HTML file without external resources.

    Args:
        title: the page's.
        style: CSS.
        body: HTML.
    """
    return (
        "<!DOCTYPE html>\n"
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def tree(outline: Outline) -> str:
    """A host, with a VM's guest if there is one, as nested HTML."""
    return "\n".join(line for item in drawn_items(outline) for line in _item(item))


def drawn_items(outline: Outline) -> Iterator[Item]:
    """The items of a drawing from top to bottom; a root complex that leads only to one bridge is one item with it."""
    if outline.blockers:
        yield Item("node", (part("label", "in the way"),), outline.blockers)
    for node in outline.nodes:
        yield replace(node, items=tuple(map(_joined, node.items)))
    if not outline.nodes:
        yield Item("node", (part("label", NOTHING_FOR_GUESTS),))
    if outline.guest is not None:
        yield outline.guest


def _joined(root: Item) -> Item:
    if [item.kind for item in root.items] != ["branch"]:
        return root
    (bridge,) = root.items
    return replace(bridge, parts=(part("label", f"{root.label} > {bridge.label}"),))


def _item(item: Item) -> Iterator[str]:
    """Items with other items in them can be folded; the keyboard reaches every visible item."""
    line = f'<span class="label">{escape(item.label)}</span>'
    if item.badge:
        line += f' <span class="badge {item.tone}">{escape(item.badge)}</span>'
    if item.name:
        line += f' <span class="name">{escape(item.name)}</span>'
    line += "".join(f" <span>{escape(detail)}</span>" for detail in item.details)
    kind = CLASSES.get(item.kind, item.kind)
    if not item.items:
        yield f'<p class="{kind}" tabindex="0">{line}</p>'
        return
    yield f'<details class="{kind}" open=""><summary>{line}</summary>'
    for inner in item.items:
        yield from _item(inner)
    yield "</details>"
