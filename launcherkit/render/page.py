"""A host as one HTML file: nothing in it comes from elsewhere, and no script is needed."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from launcherkit.render.outline import Item, outline
from launcherkit.render.paper import PAPER
from launcherkit.topology.tree import HostTopology

_STYLE = """
body{margin:2rem auto;max-width:80rem;padding:0 1rem;background:var(--back);color:var(--text);
font:15px/1.6 system-ui,sans-serif}
details,p{margin:0 0 0 1.4rem}main>details{margin:0 0 1rem}p{padding-left:1rem}
summary{cursor:pointer}summary:focus-visible,p:focus-visible{outline:2px solid currentColor}
.node>summary{font-size:1.2em;font-weight:600}.branch>summary{color:var(--dim)}
.group{border:1px solid var(--line);border-radius:6px;padding:.2rem .6rem;margin:.2rem 0 .4rem 1.4rem}
.function .label,.guest .label,.slot .label{font-family:ui-monospace,monospace}
.badge{font-weight:600}.good{color:var(--good)}.odd{color:var(--odd)}.bad{color:var(--bad)}
.word{margin-left:.8em}
@media print{body{margin:0;max-width:none;font-size:10pt}.group{break-inside:avoid}
details::details-content{content-visibility:visible;display:block}}
"""


def page(topology: HostTopology, title: str) -> str:
    """The page; it is well-formed XML too.

    Args:
        topology: of a host.
        title: of the page.
    """
    body = "\n".join(line for item in outline(topology) for line in _item(item, "  "))
    return (
        "<!DOCTYPE html>\n"
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{escape(title)}</title>\n<style>{PAPER}{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _item(item: Item, indent: str) -> Iterator[str]:
    """What has something in it can be folded; all that is seen can be reached by the keyboard."""
    line = f'<span class="label">{escape(item.label)}</span>'
    if item.badge:
        line += f' <span class="badge {item.tone} word">{escape(item.badge)}</span>'
    line += "".join(f' <span class="word">{escape(word)}</span>' for word in item.words)
    if not item.items:
        yield f'{indent}<p class="{item.kind}" tabindex="0">{line}</p>'
        return
    yield f'{indent}<details class="{item.kind}" open="open"><summary>{line}</summary>'
    for inner in item.items:
        yield from _item(inner, indent + "  ")
    yield f"{indent}</details>"
