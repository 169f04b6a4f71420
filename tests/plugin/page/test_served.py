"""The page of a running daemon, `launcherkit-plugin serve --page`, over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcherkit_lab.kubelet import CHECKPOINT, Kubelet
from tests.plugin.daemon.test_serve import GPU, RULES, Node
from tests.plugin.kubelet.parts import until
from tests.plugin.resources import rebind
from tests.support.apiserver import ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.hooks import ServerProcess
from tests.support.pod_resources import write_checkpoint
from tests.support.provoked import provoked
from tests.support.webprocess import WebProcess


@contextmanager
def served(
    node: Node, *arguments: str | Path, env: Mapping[str, str] | None = None, web: tuple[str | Path, ...] = ()
) -> Iterator[tuple[ServerProcess, WebProcess]]:
    """A daemon and its web process, with further arguments for each."""
    path = node.folder / "w.sock"
    with (
        node.serving("--config", node.config, "--web-socket", path, *arguments, env=env) as process,
        WebProcess(path, *web) as site,
    ):
        process.wait_for("registered")
        yield process, site


def version(text: str) -> str:
    found = re.search('<main data-version="([0-9a-f-]+)"', text)
    assert found
    return found[1]


@pytest.mark.slow
def test_on_loopback_the_page_tells_what_there_is_and_its_stream_of_changes(node: Node, kubelet: Kubelet) -> None:
    with served(node, env={"NODE_NAME": "node-7"}) as (_, site):
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
    with served(node) as (_, site):
        kubelet.wait_for(GPU, {"0000:01:00.0": True, "0000:02:00.0": True})
        (held,) = kubelet.admit("virt-launcher-vm-x2x8p", [("compute", GPU, 1)])
        until(lambda: "a pod that is being started" in site.text())
        write_checkpoint(kubelet.plugins / CHECKPOINT, {"u-1": {GPU: held.ids}})
        until(lambda: "(VM vm)" in site.text())


def test_the_page_is_for_this_origin_alone_and_by_its_own_names(node: Node, kubelet: Kubelet) -> None:
    with served(node) as (_, site):
        headers = site.get().headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["Cache-Control"] == "no-store"
        for path in ("/", "/events"):
            assert site.get(path, Host="evil.example").status == 421
            assert site.get(path, Host="localhost:1").status == 200
        assert site.get("/metrics", Host="node-7:8080").status == 200, "those are for scrapers of any name"


@pytest.mark.slow
def test_outside_of_loopback_there_is_a_page_for_tokens_that_the_cluster_finds_good_alone(
    node: Node, kubelet: Kubelet, tmp_path: Path
) -> None:
    everywhere = ("--metrics-address", ":0")
    with served(node, web=everywhere) as (_, site):
        assert site.get().status == 404
    server = ApiServer()
    server.tokens = {"anns": {"audiences": ["page.launcherkit.io"], "user": {"username": "ann"}}}
    server.permitted = {("ann", "/launcherkit-plugin/page", "get")}
    path = node.folder / "c.sock"
    with (
        server.running(tmp_path) as kubeconfig,
        served(node, "--cluster-socket", path, web=(*everywhere, "--page", "token")) as (_, site),
    ):
        with ClusterProcess(path, "node-1", kubeconfig):
            assert site.get().status == 401
            assert site.get(Authorization="Bearer bobs").status == 401
            assert site.get(Authorization="Bearer anns").status == 200
            assert site.get("/events", Authorization="Basic OmFubnM=").status == 200
        assert site.get(Authorization="Bearer carols").status == 503
        assert site.get("/metrics").status == 200


def test_without_a_cluster_no_token_is_good(node: Node, kubelet: Kubelet) -> None:
    with served(node, web=("--page", "token")) as (_, site):
        answer = site.get(Authorization="Bearer anns")
        (reported,) = provoked("page", "LK852")
        assert (answer.status, answer.read().decode()) == (503, f"{reported}\n")


def test_while_there_is_no_daemon_it_is_said_so_and_a_new_one_is_found(node: Node) -> None:
    path = node.folder / "w.sock"
    with WebProcess(path) as site:
        answer = site.get("/metrics")
        assert (answer.status, answer.read()) == (
            503,
            f"{path}: the daemon doesn't answer: No such file or directory\n".encode(),
        )
        for _ in range(2):
            with node.serving("--config", node.config, "--web-socket", path) as process:
                until(lambda: site.get("/metrics").status == 200)
                with site.events() as versions:
                    next(versions)
                    assert process.end() == 0
                    assert list(versions) == [], "the stream ends with the daemon"
            until(lambda: site.get("/metrics").status == 503)


def test_the_daemon_has_no_port(node: Node, kubelet: Kubelet) -> None:
    with served(node, "--probe-socket", node.folder / "p.sock") as (process, site):
        assert site.get("/metrics").status == 200
        assert inet_sockets(process.process.pid) == set()
        assert inet_sockets(site.process.pid), "which would be seen"


def inet_sockets(pid: int) -> set[str]:
    """The links of a process's open sockets that are TCP's or UDP's."""
    process = Path(f"/proc/{pid}")
    tables = [(process / "net" / name).read_text() for name in ("tcp", "tcp6", "udp", "udp6")]
    links = {f"socket:[{line.split()[9]}]" for table in tables for line in table.splitlines()[1:]}
    return links & {os.readlink(link) for link in (process / "fd").iterdir()}


def test_a_socket_that_cannot_be_made_is_an_error_at_the_start(node: Node) -> None:
    path = node.folder / "none/w.sock"
    with node.serving("--config", node.config, "--web-socket", path) as process:
        assert process.wait() == 78
        (reported,) = provoked("page", "LK851")
        expected = reported.replace("LK851", "error[LK851]").replace("/run/launcherkit-web/daemon.sock", str(path))
        assert process.reported().splitlines()[0] == expected


@pytest.mark.parametrize("flag", ["--metrics-address", "--metrics-token-file", "--page"])
def test_an_option_of_the_web_process_is_not_one_of_the_daemon_and_it_is_said_whose_it_is(
    node: Node, flag: str
) -> None:
    with node.serving("--config", node.config, flag, "auto") as process:
        assert process.wait() == 2
        assert f"{flag} is an option of `launcherkit-plugin web`" in process.reported()
