"""Five machines and the pictures that are expected of them: `python -m tests.show.machines` draws them anew."""

from __future__ import annotations

from launcherkit.colour import PLAIN
from launcherkit.host.source import open_host
from launcherkit.show.host import topology_of
from launcherkit.show.outline import outline
from launcherkit.show.picture import picture
from launcherkit.show.text import draw
from launcherkit.show.topology import HostTopology
from tests.support.imports import ROOT

DATA = ROOT / "tests" / "data"
PICTURES = ROOT / "tests" / "show" / "pictures"
HOSTS = {
    "rack-server": "rack-server.umockdev",
    "workstation": "hosts/workstation.json",
    "a2-vfs": "hosts/a2-vfs.json",
    "hgx": "hosts/hgx.json",
    "laptop": "hosts/laptop.json",
}
DRAWN = ROOT / "docs" / "images" / "topology.svg"
TABLES = (str(DATA / "hosts" / "pci.ids"),)
COLUMNS = 110


def topology(name: str, *, every: bool = False) -> HostTopology:
    """The tree of one of the machines."""
    return topology_of(open_host(str(DATA / HOSTS[name])).scan(), TABLES, every=every)


def drawn() -> str:
    """The picture in README.md."""
    return picture(outline(topology("workstation")), "PCI devices of a workstation")


def pictures() -> dict[str, str]:
    """File names and what is to be in the files."""
    return {f"{name}.txt": draw(outline(topology(name)), PLAIN, COLUMNS) for name in HOSTS}


if __name__ == "__main__":
    for file, text in pictures().items():
        (PICTURES / file).write_text(text, encoding="utf-8")
    DRAWN.write_text(drawn(), encoding="utf-8")
