"""Draws a host as one HTML file, without external resources or scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from launcherkit.show.outline import Item, outline
from launcherkit.show.topology import HostTopology

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


def page(topology: HostTopology, title: str, more: Sequence[Item] = ()) -> str:
    """The page; it is well-formed XML too.

    Args:
        topology: the host's.
        title: the page's.
        more: what to show below it.
    """
    body = f"<h1>{escape(title)}</h1>\n<main>\n{tree(topology, more)}\n</main>"
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


def tree(topology: HostTopology, more: Sequence[Item] = ()) -> str:
    """A host, a VM's guest, and what else is to be shown, as nested HTML."""
    return "\n".join(line for item in (*outline(topology), *more) for line in _item(item))


def _item(item: Item) -> Iterator[str]:
    """Items with other items in them can be folded; the keyboard reaches every visible item."""
    line = f'<span class="label">{escape(item.label)}</span>'
    if item.badge:
        line += f' <span class="badge {item.tone}">{escape(item.badge)}</span>'
    if item.name:
        line += f' <span class="name">{escape(item.name)}</span>'
    line += "".join(f" <span>{escape(detail)}</span>" for detail in item.details)
    if not item.items:
        yield f'<p class="{item.kind}" tabindex="0">{line}</p>'
        return
    yield f'<details class="{item.kind}" open=""><summary>{line}</summary>'
    for inner in item.items:
        yield from _item(inner)
    yield "</details>"


"""The colours of drawings: on white, on black if the reader prefers that, and on paper."""

_LIGHT = "--back:#fff;--text:#1b1f24;--dim:#57606a;--line:#8c959f;--good:#116329;--odd:#7d4e00;--bad:#a40e26"
_DARK = "--back:#0d1117;--text:#e6edf3;--dim:#9da7b3;--line:#6e7681;--good:#56d364;--odd:#e3b341;--bad:#ff7b72"

FALLBACK = {"plain": "#1b1f24", "good": "#116329", "odd": "#7d4e00", "bad": "#a40e26"}
"""The light colours by tone, for attributes."""

PAPER = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
"""
"""CSS for pages and pictures. Every text colour has a contrast of at least 4.5 on its background."""
