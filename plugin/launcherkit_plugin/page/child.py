"""The short-lived process that draws the page; it reads the host itself."""

from __future__ import annotations

from time import process_time

from launcherkit.errors import LauncherkitError
from launcherkit.render.host import topology_of
from launcherkit.sources.pci_ids import PATHS
from launcherkit.topology.host_topology import HostTopology
from launcherkit_plugin.host.child import answer_with
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.page.drawing import draw_page
from launcherkit_plugin.page.view import load_view


def drawn(question: bytes) -> bytes:
    """The answer to a view: a line with the seconds of CPU time, one with the Content-Security-Policy, and the page."""
    view = load_view(question)
    policy, text = draw_page(view, _topology(view.host) if view.host else None)
    return f"{process_time()}\n{policy}\n{text}".encode("utf-8", "backslashreplace")


def _topology(root: str) -> HostTopology | None:
    try:
        host = node_host(root)
        return topology_of(host.scan()._replace(recorded=host.recorded), PATHS, every=False)
    except LauncherkitError:  # the page still shows what the daemon knows
        return None


if __name__ == "__main__":
    answer_with(drawn)
