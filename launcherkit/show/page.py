"""Writes a picture as one HTML file, with a filter, parts that fold, and details at hand."""

from __future__ import annotations

from html import escape

from launcherkit.show.boxes import place
from launcherkit.show.contents import Contents
from launcherkit.show.layout import visible
from launcherkit.show.picture import colours, drawn, keys_of, marks, resource
from launcherkit.show.state import LOOKS, CardState

WIDTHS = (1392, 976, 1872)
"""For windows of 1440, 1024 and 1920 pixels; the first is what is shown without a script."""
_HIGH = 800


def page(contents: Contents, title: str) -> str:
    """The page; it is well-formed XML too."""
    code = f"<script>\n//<![CDATA[\n{script()}//]]>\n</script>"
    return sheet(title, style(), f"<h1>{escape(title)}</h1>\n<main>\n{figure(contents, title)}\n</main>\n{code}")


def style() -> str:
    """CSS for `figure`."""
    return colours() + resource("picture.css") + resource("page.css")


def script() -> str:
    """What the tools of `figure` do."""
    return resource("picture.js")


def figure(contents: Contents, title: str) -> str:
    """HTML of a picture, with its tools; what they do is in ``picture.js``."""
    first = place(contents, WIDTHS[0], _HIGH)
    others = [first, *(place(contents, across, 0, (first.level,)) for across in WIDTHS[1:])]
    across, high, scale = first.across + 2, first.high + 2, first.level.scale
    keys = "".join(_key(state, text) for state, text in keys_of(contents).items())
    note = '<span class="keynote">g12: IOMMU group 12</span>' if first.level.name == "dense" else ""
    return (
        f'<div class="tools"><div class="keys" role="group" aria-label="show only">{keys}</div>'
        '<input type="search" id="filter" placeholder="filter: address, driver, group 12, VM ... ( / )" '
        f'aria-label="filter cards"/><output id="hits" for="filter"></output>{note}</div>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="-1 -1 {across} {high}" '
        f'width="{round(across * scale)}" height="{round(high * scale)}" role="group" aria-label="{escape(title)}" '
        f'fill-rule="evenodd" data-scale="{scale:g}" '
        f'data-at="{",".join(f"{each.across} {each.high}" for each in others)}">\n'
        f"{drawn(first, others)}\n</svg>\n"
        '<aside id="details" aria-live="polite" hidden=""></aside>'
    )


def _key(state: CardState, text: str) -> str:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12" fill-rule="evenodd">'
    return (
        f'<button type="button" class="key {state}" data-state="{state}" aria-pressed="false" '
        f'title="{escape(LOOKS[state].meaning)}">{svg}{marks(state, [(0, 0)])}</svg> {text}</button>'
    )


def html_of(text: str) -> str:
    """HTML of a text, which may have any characters."""
    return escape(visible(text))


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
