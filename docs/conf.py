"""The site of the documentation: ``./dev docs`` has Sphinx make it of the same pages that a checkout shows.

What a page needs in order to be read in a checkout is not changed: the table of contents is made of the links of the
index, and the API reference is added to its page here.
"""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugin")]

import launcherkit  # noqa: E402  # it is found only now

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["launcherkit"]

project = "launcherkit"
version = release = launcherkit.__version__
copyright = "the launcherkit authors, Apache-2.0"  # noqa: A001  # Sphinx's name
root_doc = "docs/README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "deploy/README.md",
    "tools/README.md",
    "tools/requirements/README.md",
]
exclude_patterns = [".*", "**/.*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = True
# Types of other projects, which have no inventory here: nothing is fetched when the site is made.
nitpick_ignore_regex = [("py:.*", r"(?!launcherkit).*"), ("py:class", r"launcherkit\.errors\.ErrorT_co")]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # they are in the signature
napoleon_use_ivar = True

suppress_warnings = ["misc.highlighting_failure"]  # what a command printed is in no language

# `./dev docs -- -b linkcheck` asks other sites whether what pages link to is there; these are none.
linkcheck_ignore = [r"http://127\.0\.0\.1", r"https://([\w-]+\.)*example[/.]", "https://example.org/"]

html_theme = "furo"
html_title = f"launcherkit {version}"
html_static_path = ["site"]
html_js_files = ["versions.js"]
html_css_files = ["versions.css"]
html_show_sourcelink = False
html_copy_source = False

CONTENTS = {root_doc: None, "docs/errors/README": "LK*", "docs/decisions/README": "[0-9]*"}
"""Pages that get a table of contents, and what is in it; None: what they link to, by heading."""
BESIDE_THEM = ["../README", "../CHANGELOG", "../CONTRIBUTING", "../SECURITY", "../deploy/README"]
BESIDE_THEM += ["../tools/README", "../tools/requirements/README"]
NAMES = runpy.run_path(str(ROOT / "docs" / "generate.py"))["public_names"]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_what_only_the_site_has)
    app.connect("autodoc-skip-member", is_described_by_its_class)
    app.connect("build-finished", begin_at_the_index)


def begin_at_the_index(app: Sphinx, failure: Exception | None) -> None:
    """Have the folder's own address lead to the index of the pages."""
    if failure is not None:
        return
    page = f'<!doctype html><title>launcherkit</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
    Path(app.outdir, "index.html").write_text(page)


def add_what_only_the_site_has(app: Sphinx, name: str, source: list[str]) -> None:
    """Append a table of contents, or the API reference, to pages that get one, and mend links out of the site."""
    source[0] = with_addresses(source[0], ROOT / f"{name}.md", app.env.found_docs)
    if name in CONTENTS:
        source[0] += contents(source[0], CONTENTS[name])
    elif name == "docs/reference/python-api":
        source[0] += api(source[0])


def is_described_by_its_class(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool:
    """Whether a field of a named tuple has no docstring but Python's: its class's says what it is."""
    return skip or (member.__doc__ or "").startswith("Alias for field number")


def contents(text: str, pattern: str | None) -> str:
    """Hidden tables of contents of a page: of each paragraph in bold its links, or what a pattern matches."""
    if pattern:
        return f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{pattern}\n```\n"
    tables = []
    for part in re.split(r"^\*\*", text, flags=re.MULTILINE)[1:]:
        caption, _, rest = part.partition("**")
        pages = dict.fromkeys(re.findall(r"\]\(([\w/.-]+)\.md\)", rest))
        tables.append(_toctree(caption, [page for page in pages if not page.startswith("..")]))
    return "".join([*tables, _toctree("The project", BESIDE_THEM)])


def _toctree(caption: str, entries: Sequence[str]) -> str:
    pages = "\n".join(entries)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def api(text: str) -> str:
    """The reference of the public names, from their docstrings."""
    directives = "\n\n".join(
        f".. automodule:: {module}\n   :members: {', '.join(names)}" for module, names in NAMES(text).items()
    )
    return f"\n## In full\n\n```{{eval-rst}}\n{directives}\n```\n"


def with_addresses(text: str, page: Path, pages: set[str]) -> str:
    """A page whose links to what is no page of the site lead to where the project is published."""

    def mended(link: re.Match[str]) -> str:
        target, anchor = link[2], link[3] or ""
        if "://" in target or not target:
            return link[0]
        path = (page.parent / target).resolve()
        if not path.is_relative_to(ROOT):
            return link[0]
        inside = path.relative_to(ROOT).as_posix()
        if inside.removesuffix(".md") in pages or path.suffix in (".svg", ".png"):
            return link[0]
        address = SETTINGS["page"].format(home=SETTINGS["home"], version=version, path=inside)
        return f"{link[1]}({address}{anchor})"

    return re.sub(r"(\])\(([^()#\s]*)(#[^()\s]*)?\)", mended, text)
