"""The sites of several versions in one folder, for a web server: ``./dev docs --web FOLDER``.

Each is below a folder named by its version. The two files of all, ``versions.js`` and ``index.html``, are made of the
folders that are there, so a version that was removed is in no choice after the next run.
"""

import json
import re
import shutil
from pathlib import Path

_CHOICE = Path(__file__).with_name("versions.js")
_VERSION = re.compile(r"\d+(\.\d+)+")


def add_version(site: Path, folder: Path) -> None:
    """Copy a site below the folder, in place of an earlier one of its version, and list the versions that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    version = _version(site)
    new, old = folder / f".{version}.new", folder / f".{version}.old"
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(site, new, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo*"))
    shutil.copyfile(_CHOICE, new / "_static" / _CHOICE.name)
    if (folder / version).exists():
        (folder / version).rename(old)
    new.rename(folder / version)
    shutil.rmtree(old, ignore_errors=True)
    _list_versions(folder)


def _list_versions(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if _VERSION.fullmatch(path.name)]
    names.sort(key=lambda name: [int(number) for number in name.split(".")], reverse=True)
    pages = {name: _pages(folder / name) for name in names}
    _replace(folder / "versions.js", f"launcherkitVersions({json.dumps(pages)});\n")
    leads = (
        f'<!doctype html><title>launcherkit</title><meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
    )
    _replace(folder / "index.html", leads)


def _version(site: Path) -> str:
    """The version that Sphinx wrote into its inventory: ``# Version: 0.1.0``."""
    with (site / "objects.inv").open("rb") as inventory:
        lines = [inventory.readline().decode() for _ in range(3)]
    return lines[2].removeprefix("# Version:").strip()


def _pages(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


def _replace(path: Path, text: str) -> None:
    """A reader of a web server sees the old file or the new one."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
