"""The page of a running daemon, `launcherkit-plugin serve --page`, over HTTP."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.plugin.daemon.test_serve import GPU, RULES, Node
from tests.plugin.kubelet.parts import until
from tests.plugin.resources import rebind
from tests.support.apiserver import ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.hooks import ServerProcess
from tests.support.kubelet import CHECKPOINT, Kubelet
from tests.support.pod_resources import write_checkpoint

SECONDS = 60.0


class Site:
    """A daemon's HTTP."""

    def __init__(self, process: ServerProcess) -> None:
        process.wait_for("the page of the node is served on")
        (self.where,) = set(re.findall(r"the page of the node is served on http://([\d.:]+)/", process.reported()))

    def get(self, path: str = "/", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.where, timeout=SECONDS)
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def text(self) -> str:
        with closing(self.get()) as answer:
            assert answer.status == 200, answer.read()
            return answer.read().decode()

    @contextmanager
    def events(self) -> Iterator[Iterator[str]]:
        """The versions that the stream tells of."""
        with closing(self.get("/events")) as answer:
            assert answer.getheader("Content-Type") == "text/event-stream"
            yield (line[6:].decode().strip() for line in iter(answer.readline, b"") if line.startswith(b"data: "))


LOOPBACK = ("--metrics-address", "127.0.0.1:0")


def version(text: str) -> str:
    found = re.search('<main data-version="([0-9a-f-]+)"', text)
    assert found
    return found[1]


@pytest.mark.slow
def test_on_loopback_the_page_tells_what_there_is_and_its_stream_of_changes(node: Node, kubelet: Kubelet) -> None:
    with node.serving("--config", node.config, *LOOPBACK, env={"NODE_NAME": "node-7"}) as process:
        site = Site(process)
        kubelet.wait_for(GPU, {"0000:01:00.0": True, "0000:02:00.0": True})
        with site.events() as versions:
            assert version(site.text()) == next(versions)
            text = site.text()
            assert "<h1>node-7</h1>" in text
            assert "Nothing is Unhealthy." in text
            assert "Nobody holds anything." in text
            kubelet.admit("virt-launcher-vm-x2x8p", [("compute", GPU, 1)])
            next(versions)
            until(lambda: "(VM vm)" in site.text())
            rebind(node.tree, "0000:02:00.1", "snd_hda_intel")
            next(versions)
            until(lambda: "IOMMU group 11 is not viable" in site.text())
            text = site.text()
            assert "launcherkit explain LK204" in text
            assert "DeviceUnhealthy" in text
            since = re.findall(r"since <time.*?</time>", text)
            rebind(node.tree, "0000:01:00.1", "snd_hda_intel")
            until(lambda: "IOMMU group 10 is not viable" in site.text())
            assert since[0] in site.text(), "what was Unhealthy has been so since then"
            rebind(node.tree, "0000:02:00.1", "vfio-pci")
            until(lambda: "DeviceHealthy" in site.text())


def test_a_pod_has_its_name_as_soon_as_the_kubelet_has_written_down_what_it_got(node: Node, kubelet: Kubelet) -> None:
    """Not only at the next look, which is an hour away here."""
    node.configure({**RULES, "rescanSeconds": 3600})
    with node.serving("--config", node.config, *LOOPBACK) as process:
        site = Site(process)
        kubelet.wait_for(GPU, {"0000:01:00.0": True, "0000:02:00.0": True})
        (held,) = kubelet.admit("virt-launcher-vm-x2x8p", [("compute", GPU, 1)])
        until(lambda: "a pod that is being started" in site.text())
        write_checkpoint(kubelet.plugins / CHECKPOINT, {"u-1": {GPU: held.ids}})
        until(lambda: "(VM vm)" in site.text())


def test_the_page_is_for_this_origin_alone_and_by_its_own_names(node: Node, kubelet: Kubelet) -> None:
    with node.serving("--config", node.config, *LOOPBACK) as process:
        site = Site(process)
        headers = site.get().headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["Cache-Control"] == "no-store"
        for path in ("/", "/events"):
            assert site.get(path, Host="evil.example").status == 421
            assert site.get(path, Host="localhost:1").status == 200
        assert site.get("/metrics", Host="node-7:8080").status == 200, "those are for scrapers of any name"


def test_the_page_goes_and_comes_with_the_configuration(node: Node, kubelet: Kubelet) -> None:
    values = {"resources": [{"name": GPU, "select": [{"vendors": ["10de"], "classes": ["03"]}]}], "rescanSeconds": 1}
    with node.serving("--config", node.config, *LOOPBACK) as process:
        site = Site(process)
        node.configure({**values, "page": "off"})
        until(lambda: site.get().status == 404)
        node.configure({**values, "page": "token"})
        process.wait_for("LK851")
        assert site.get().status == 404
        node.configure(values)
        until(lambda: site.get().status == 200)


@pytest.mark.slow
def test_outside_of_loopback_there_is_a_page_for_tokens_that_the_cluster_finds_good_alone(
    node: Node, kubelet: Kubelet, tmp_path: Path
) -> None:
    with node.serving("--config", node.config, "--metrics-address", "0.0.0.0:0") as process:
        process.wait_for("metrics are served on")
        (where,) = re.findall(r"metrics are served on 0\.0\.0\.0:(\d+)", process.reported())
        connection = http.client.HTTPConnection("127.0.0.1", int(where), timeout=SECONDS)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404
    server = ApiServer()
    server.tokens = {"anns": {"audiences": ["page.launcherkit.io"], "user": {"username": "ann"}}}
    server.permitted = {("ann", "/launcherkit-plugin/page", "get")}
    path = node.folder / "c.sock"
    given = ("--config", node.config, "--metrics-address", "0.0.0.0:0", "--cluster-socket", path, "--page", "token")
    with server.running(tmp_path) as kubeconfig, node.serving(*given) as process:
        with ClusterProcess(path, "node-1", kubeconfig):
            site = Site(process)
            assert site.get().status == 401
            assert site.get(Authorization="Bearer bobs").status == 401
            assert site.get(Authorization="Bearer anns").status == 200
            assert site.get("/events", Authorization="Basic OmFubnM=").status == 200
        assert site.get(Authorization="Bearer carols").status == 503
        assert site.get("/metrics").status == 200


def test_a_page_for_tokens_without_a_cluster_is_an_error_at_the_start(node: Node) -> None:
    with node.serving("--config", node.config, *LOOPBACK, "--page", "token") as process:
        assert process.wait() == 78
        assert "error[LK851]" in process.reported()
