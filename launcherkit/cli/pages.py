"""The pages of codes and of the reference that ``launcherkit explain`` prints: in a package, or in a checkout."""

from __future__ import annotations

import os
import re
from contextlib import suppress

import launcherkit
from launcherkit.request.fields import read_file

_PACKAGE = os.path.dirname(os.path.abspath(launcherkit.__file__))
PLACES = (os.path.join(_PACKAGE, "_pages"), os.path.join(os.path.dirname(_PACKAGE), "docs"))
"""Where pages may be: first as in a wheel, then as in a checkout."""
_ERRORS, _REFERENCE = "errors", "reference"
_COMMENT = re.compile(r"^ *<!-- .* -->\n", re.MULTILINE)
"""Comments in a page that say how the tests run an example."""
_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|\[(?P<text>(?:`[^`\n]*`|[^]`])*)\]\((?P<target>[^)\s]+)\)|`[^`\n]*`", re.DOTALL | re.MULTILINE
)


def all_codes() -> list[str]:
    """The codes that have a page, sorted: those of the device plugin too, which may not be installed."""
    return [name for name in _names(_ERRORS) if name.startswith("LK")]


def all_topics() -> list[str]:
    """The pages of the reference, sorted: ``golden``, ``plugin-configuration``, ``policy``."""
    return _names(_REFERENCE)


def _names(folder: str) -> list[str]:
    for place in PLACES:
        with suppress(OSError):
            return sorted(name.removesuffix(".md") for name in os.listdir(os.path.join(place, folder)))
    return []


def code_of(text: str) -> str:
    """The code meant by ``LK204``, ``lk204`` or ``204``, whether it exists or not."""
    text = text.strip().upper()
    return f"LK{text}" if text.isdecimal() else text


def titles() -> dict[str, str]:
    """Each code and each topic that has a page, with its title, in order."""
    heads = {name: read_file(page_of(name)).partition(b"\n")[0].decode() for name in (*all_codes(), *all_topics())}
    return {name: head.removeprefix("# ").removeprefix(f"{name}: ") for name, head in heads.items()}


def page_of(name: str) -> str:
    """The path of the page of a code or topic; without a page, the path where an installed package would have it."""
    folder = _ERRORS if name.startswith("LK") else _REFERENCE
    paths = [os.path.join(place, folder, f"{name}.md") for place in PLACES]
    return next((path for path in paths if os.path.isfile(path)), paths[0])


def read_page(name: str) -> str:
    """The page of a code or topic, without comments.

    Its links are commands and addresses, because a package has no other files.
    """
    folder = _ERRORS if name.startswith("LK") else _REFERENCE
    bundled = {f"{_ERRORS}/{code}.md" for code in all_codes()} | {f"{_REFERENCE}/{topic}.md" for topic in all_topics()}

    def followed(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"]
        if target is None or "://" in target:
            return link[0]
        file, hash_sign, heading = target.partition("#")
        path = os.path.normpath(f"{folder}/{file}") if file else page
        if path == page:
            return text
        if path in bundled:
            stem = os.path.basename(path).removesuffix(".md")
            return text if stem in text else f"{text} (`launcherkit explain {stem}`)"
        return f"{text} ({_published()}{os.path.normpath(f'docs/{path}')}{hash_sign}{heading})"

    page = f"{folder}/{name}.md"
    return _CODE_OR_LINK.sub(followed, _COMMENT.sub("", read_file(page_of(name)).decode("utf-8", "replace")))


def _published() -> str:
    """Where the files of this version are; empty if launcherkit isn't an installed package."""
    from importlib.metadata import PackageNotFoundError, metadata

    with suppress(PackageNotFoundError):
        for line in metadata("launcherkit").get_all("Project-URL", []):
            label, _, address = str(line).partition(", ")
            if label == "Documentation":
                return address.removesuffix("docs/README.md")
    return ""
