"""Whether the page of the node is served, with the metrics, and to whom."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcherkit.model.host import HostFacts
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.model.config import NODE, PageChoice
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.model.errors import PageNotServed
from launcherkit_plugin.page.view import RecentChanges
from launcherkit_plugin.telemetry.http import Page, Served
from launcherkit_plugin.telemetry.reporter import Log

if TYPE_CHECKING:
    from launcherkit_plugin.page.live import NodePage


_NO_METRICS = "Give --metrics-address ADDRESS: the page is served with the metrics."
_NO_CLUSTER = (
    "Add the component `cluster`, whose process has the cluster review tokens; or serve the metrics on loopback, where "
    "the page takes no token: `page: auto`."
)


class PageServing:
    """Opens and closes the page, as the command line and the configuration say.

    Args:
        option: the command line's choice; None: not given.
        env: of the process.
        root: of the host's file system.
        cluster: has tokens reviewed.
        log: receives the page's address.
    """

    def __init__(
        self, option: PageChoice | None, env: Mapping[str, str], root: str, cluster: ClusterSocket, log: Log
    ) -> None:
        self._option = option
        self._node = env.get(NODE) or os.uname().nodename
        self._root = root
        self._cluster = cluster
        self._log = log
        self._served: Served | None = None
        self._open: PageChoice = "off"
        self._page: NodePage | None = None
        self.recent = RecentChanges(cluster, time.time)
        self.pages: dict[str, Page] = {}
        """The pages of the metrics' server, by path; that of the node is added and removed."""

    def server_started(self, served: Served) -> None:
        """Note that the server of the metrics has started."""
        self._served = served

    def configure(self, choice: PageChoice) -> None:
        """Open or close the page, as a new configuration says.

        Raises:
            PageNotServed: the page can't be served as configured.
        """
        wanted = self._option or choice
        if wanted == "auto" and not (self._served and self._served.loopback):
            wanted = "off"
        if wanted == "token" and (self._served is None or not self._cluster.listens):
            flag, remedy = ("--cluster-socket", _NO_CLUSTER) if self._served else ("--metrics-address", _NO_METRICS)
            raise PageNotServed(f"the page requires a token, but {flag} isn't given", remedy, key=flag)
        if wanted == self._open:
            return
        self._open = wanted
        if wanted == "off":
            self.pages.pop("/", None)
            self.pages.pop("/events", None)
            self._page = None
            return
        self._open_for(wanted)

    def _open_for(self, wanted: PageChoice) -> None:
        from launcherkit_plugin.page.gate import TokenGate, loopback_gate
        from launcherkit_plugin.page.live import NodePage

        self._page = self._page or NodePage(self._node, self._root, self.recent, time.time)
        gate = TokenGate(self._cluster, time.monotonic) if wanted == "token" else loopback_gate
        self.pages.update(self._page.pages(gate))
        assert self._served is not None
        who = "for clients with a token" if wanted == "token" else "for this host only"
        self._log("info", f"the page of the node is served on http://{self._served.where}/, {who}")

    def saw(self, facts: HostFacts, resources: Sequence[Resource], usage: Usage) -> None:
        """Pass on the facts, resources and usage of the loop's last turn."""
        if self._page is not None:
            self._page.saw(facts, resources, usage)
