"""`launcherkit-plugin serve` as a process, on a built host, with a strict kubelet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit_lab.kubelet import Kubelet, NotAdmitted, running_kubelet
from launcherkit_plugin.cli.cluster_nodes import published
from launcherkit_plugin.host.open_files import CAPABILITIES, capabilities
from tests.plugin.kubelet.parts import until
from tests.plugin.resources import rebind, regroup
from tests.support import forked
from tests.support.apiserver import CONFIGMAPS, KUBEVIRTS, NODES, ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.forked import PLUGIN
from tests.support.hooks import ROOT, ServerProcess
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked
from tests.support.webprocess import WebProcess

HAS_BOTH = capabilities() & CAPABILITIES == CAPABILITIES
GPU = "nvidia.com/GPU"
AUTO = "nvidia.com/2204"
"""What a machine without pci.ids calls the cards of `HostTree.card`."""
ENV = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugin'}", "PATH": os.defpath}
NEVER = {"pydantic", "yaml", "kubernetes", "jinja2", "lxml", "libvirt", "grpc", "aiohttp"}
RULES = {"resources": [{"name": GPU, "select": [{"vendors": ["10de"], "classes": ["03"]}]}], "rescanSeconds": 1}


class Node:
    """A host with cards, and the kubelet's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet_dir = folder / "k"
        self.tree = HostTree(folder / "host")
        self.config = folder / "config" / "plugin.yaml"
        self.config.parent.mkdir()
        self.configure(RULES)

    def configure(self, values: Mapping[str, object]) -> None:
        """Replace the configuration, as editors do."""
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.rename(self.config)

    def serve(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> ServerProcess:
        places = {
            "--host": self.tree.root,
            "--dev-root": self.tree.root,
            "--kubelet-dir": self.kubelet_dir,
            "--ledger": self.folder / "ledger",
            "--state": self.folder / "state",
            "--features-dir": self.folder / "features.d",
        }
        given = [str(part) for pair in places.items() for part in pair]
        command = [PLUGIN, "serve", *given, *map(str, arguments)]
        return ServerProcess(command, ENV | dict(env or {}))

    @contextmanager
    def serving(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
        process = self.serve(*(arguments or ("--config", self.config)), env=env)
        try:
            yield process
        finally:
            process.close()


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        node = Node(Path(folder))
        node.tree.card("0000:01:00", group=10)
        node.tree.card("0000:02:00", group=11, numa=1)
        yield node


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    with running_kubelet(node.kubelet_dir) as kubelet:
        yield kubelet


BOTH = {"0000:01:00.0": True, "0000:02:00.0": True}


# From the command line to the pod


def test_a_usb_device_goes_to_a_pod_and_is_found_again_when_it_is_plugged_in_again(
    node: Node, kubelet: Kubelet
) -> None:
    name, key = "example.com/KEY", "usb-0000:00:14.0-2-2"
    node.tree.usb("1-2", "0529:0001", number=4)
    node.configure({"usb": [{"name": name, "selectors": [{"vendor": "0529", "product": "0001"}]}], "rescanSeconds": 1})
    with node.serving():
        kubelet.wait_for(name, {key: True})
        (holding,) = kubelet.admit("vm", [("compute", name, 1)])
        assert dict(holding.answer.envs) == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:4"}
        (device,) = holding.answer.devices
        assert (device.container_path, device.permissions) == ("/dev/bus/usb/001/004", "mrw")
        with pytest.raises(NotAdmitted):
            kubelet.admit("another", [("compute", name, 1)])
        node.tree.unplug("1-2")
        kubelet.wait_for(name, {key: False})
        kubelet.delete("vm")
        node.tree.usb("1-2", "0529:0001", number=5)
        kubelet.wait_for(name, {key: True})
        (holding,) = kubelet.admit("next", [("compute", name, 1)])
        assert dict(holding.answer.envs) == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:5"}


def test_it_asks_the_kubelet_at_the_socket_that_is_given(node: Node) -> None:
    socket = node.folder / "elsewhere.sock"
    with node.serving("--auto", "nvidia", "--pod-resources", socket) as process:
        assert f"LK721: {socket}: No such file" in process.wait_for("elsewhere.sock")


def test_without_a_configuration_it_gives_a_pod_its_cards(node: Node, kubelet: Kubelet) -> None:
    with node.serving("--auto", "nvidia") as process:
        kubelet.wait(lambda: kubelet.resources())
        (name,) = kubelet.resources()
        kubelet.wait_for(name, BOTH)
        assert kubelet.topology(name) == {"0000:01:00.0": 0, "0000:02:00.0": 1}
        (holding,) = kubelet.admit("vm", [("compute", name, 2)])
        (variable,) = holding.answer.envs
        assert variable.startswith("PCI_RESOURCE_NVIDIA_COM_")
        assert holding.answer.envs[variable] == "0000:01:00.0,0000:02:00.0"
        nodes = {device.container_path: device.host_path for device in holding.answer.devices}
        wanted = [f"/dev/vfio/{name}" for name in ("vfio", "10", "11")]
        assert nodes == {path: f"{node.tree.root}{path}" for path in wanted}
        assert all(Path(path).exists() for path in nodes.values())
        assert process.end() == 0
        assert "LK7" not in process.reported(), "nothing in the cluster was asked for"


def test_containers_share_a_card_that_keeps_its_driver(node: Node, kubelet: Kubelet) -> None:
    card, shared = "0000:01:00.0", f"{GPU}.shared"
    rebind(node.tree, card, "amdgpu")
    screen = node.tree.path(card) / "drm/card1"
    screen.mkdir(parents=True)
    (screen / "dev").write_text("226:1\n")
    (screen / "uevent").write_text("DEVNAME=dri/card1\n")
    sharing = {"replicas": 2, "renameByDefault": True}
    rule = {"name": GPU, "select": [{"addresses": [card]}], "use": "container", "sharing": sharing}
    node.configure({"resources": [rule | {"container": {"by": "nodes"}}], "rescanSeconds": 1})
    with node.serving():
        kubelet.wait_for(shared, {f"{card}::0": True, f"{card}::1": True})
        for pod in ("one", "other"):
            (holding,) = kubelet.admit(pod, [("cuda", shared, 1)])
            (given,) = holding.answer.devices
            where = (given.container_path, given.host_path, given.permissions)
            assert where == ("/dev/dri/card1", f"{node.tree.root}/dev/dri/card1", "rw")
            assert dict(holding.answer.envs) == {}
        rebind(node.tree, card, None)
        kubelet.wait_for(shared, {f"{card}::0": False, f"{card}::1": False})
        rebind(node.tree, card, "amdgpu")
        kubelet.wait_for(shared, {f"{card}::0": True, f"{card}::1": True})


def test_a_pod_of_two_containers_gets_devices_for_each(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        one, other = kubelet.admit("vm", [("compute", GPU, 1), ("side", GPU, 1)])
        given = [list(holding.answer.envs.values()) for holding in (one, other)]
        assert sorted(given) == [["0000:01:00.0"], ["0000:02:00.0"]]
        assert all(len(holding.answer.devices) == 2 for holding in (one, other))


def test_without_anything_to_advertise_it_says_what_to_give(node: Node) -> None:
    with node.serving("--probe-socket", node.folder / "p.sock") as process:
        assert process.wait() == 2
        assert "give --config FILE, or --auto nvidia, gpu or all" in process.reported()


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [(RULES, 0, ""), ({"resources": 7}, 78, "error[LK701]"), ({"auto": "everything"}, 78, "error[LK701]")],
)
def test_a_configuration_can_be_checked(node: Node, values: dict[str, object], code: int, text: str) -> None:
    node.configure(values)
    with node.serving("--config", node.config, "--check-config") as process:
        assert process.wait() == code
        assert text in process.reported()


@pytest.mark.parametrize(
    ("way", "code", "text"),
    [
        ("no host", 78, "error[LK501]"),
        ("no file", 65, "error[LK131]"),
        ("wrong file", 78, "error[LK701]"),
        ("two of a name", 78, "error[LK702]"),
        ("a name for no CDI kind", 78, "error[LK841]: nvidia.com/GPU.large"),
    ],
)
def test_what_keeps_it_from_starting_is_reported(node: Node, way: str, code: int, text: str) -> None:
    if way == "no host":
        shutil.rmtree(node.tree.root / "sys")
    elif way == "no file":
        node.config.unlink()
    elif way == "wrong file":
        node.configure({"resources": [{"name": "GPU"}]})
    elif way == "a name for no CDI kind":
        rule = {"name": "nvidia.com/GPU.large", "select": [{"vendors": ["10de"], "classes": ["03"]}]}
        node.configure({"resources": [rule], "cdi": {"kind": "resource", "folder": str(node.folder / "cdi")}})
    else:
        node.configure({"resources": [RULES["resources"][0], {**RULES["resources"][0], "name": "amd.com/GPU"}]})  # type: ignore[index]
    with node.serving() as process:
        assert process.wait() == code
        assert text in process.reported()


# Its life


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to_and_leaves_no_socket(node: Node, kubelet: Kubelet, number: int) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU)
        assert process.end(number) == 0
        assert os.listdir(kubelet.plugins) == ["kubelet.sock"]


def test_it_ends_too_while_it_waits_for_a_kubelet(node: Node) -> None:
    with node.serving() as process:
        process.wait_for("waiting")
        assert process.end() == 0


def test_it_ends_at_once_while_it_waits_for_the_cluster_at_its_start(node: Node) -> None:
    node.configure({"kubevirt": {"cluster": True}})
    socket = node.folder / "c.sock"
    with node.serving("--config", node.config, "--cluster-socket", socket) as process:
        until(socket.exists)
        assert process.end() == 0
        assert "LK7" not in process.reported()  # as it says once it has waited long enough


@pytest.mark.parametrize("milliseconds", range(20, 320, 60))
def test_it_ends_when_it_is_reported_so_while_it_starts(node: Node, kubelet: Kubelet, milliseconds: int) -> None:
    with node.serving() as process:
        time.sleep(milliseconds / 1000)  # wherever that is: before or after its handlers are there
        assert process.end() in (0, -signal.SIGTERM)
        assert os.listdir(kubelet.plugins) == ["kubelet.sock"]


@pytest.mark.skipif(not HAS_BOTH, reason="needs the capabilities SYS_PTRACE and DAC_READ_SEARCH")
def test_it_ends_with_the_process_that_reads_open_files_for_it(node: Node, kubelet: Kubelet) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU)
        pid = process.process.pid
        until(lambda: [helper for helper in children(pid) if permitted(helper) == CAPABILITIES])
        (helper,) = (child for child in children(pid) if permitted(child) == CAPABILITIES)
        assert permitted(str(pid)) & CAPABILITIES == 0
        os.kill(int(helper), signal.SIGKILL)
        assert process.wait() == 0
        assert f"the process that reads open files (PID {helper}) has ended" in process.reported()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def permitted(pid: str) -> int:
    """The capabilities that a process may use."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("CapPrm:")[2].split()[0], 16)


def test_a_second_signal_does_not_wait(node: Node, kubelet: Kubelet) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def test_however_often_it_is_told_to_end_it_ends_by_itself(node: Node, kubelet: Kubelet) -> None:
    """Up to its last moment."""
    with node.serving() as process:
        kubelet.wait_for(GPU)
        while process.process.poll() is None:
            process.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(0.001)  # or it has no time for anything but signals
        assert process.wait() == 0


def test_a_kubelet_that_starts_later_is_found(node: Node) -> None:
    with node.serving() as process:
        process.wait_for("waiting")
        with running_kubelet(node.kubelet_dir) as kubelet:
            kubelet.wait_for(GPU, BOTH)


@pytest.mark.slow
def test_killed_and_started_again_it_has_all_devices_and_gives_none_twice(node: Node, kubelet: Kubelet) -> None:
    for _ in range(5):
        with node.serving() as process:
            kubelet.wait_for(GPU, BOTH)
            if not kubelet.holdings:
                kubelet.admit("vm", [("compute", GPU, 1)])
            process.end(signal.SIGKILL)
            kubelet.wait(lambda: GPU not in kubelet.resources())
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        kubelet.admit("vm2", [("compute", GPU, 1)])
        with pytest.raises(NotAdmitted, match="available: 0"):
            kubelet.admit("vm3", [("compute", GPU, 1)])


@pytest.mark.slow
def test_it_serves_while_the_kubelet_is_restarted_again_and_again(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        kubelet.admit("vm", [("compute", GPU, 1)])
        for _ in range(5):
            kubelet.restart()
            kubelet.wait_for(GPU, BOTH)
        kubelet.admit("vm2", [("compute", GPU, 1)])


def test_what_takes_memory_is_not_in_its_process() -> None:
    needed_later = [
        *("binding.reconciler", "telemetry.prometheus", "http.exchange", "nodehook.service"),
        *("host.files", "vgpu.writer", "devices.cdi", "vgpu.maker", "vgpu.providers"),
    ]
    names = [f"launcherkit_plugin.{name}" for name in ("__main__", "cli.serve", "daemon.serve", *needed_later)]
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=ENV, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & NEVER == set()


# The configuration


def test_a_new_configuration_is_in_force_without_a_restart(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        node.configure({"resources": [{"name": "nvidia.com/FIRST", "select": [{"addresses": ["0000:01:00.*"]}]}]})
        kubelet.wait_for("nvidia.com/FIRST", {"0000:01:00.0": True})
        kubelet.wait(lambda: GPU not in kubelet.resources())


def test_a_wrong_one_is_reported_and_the_old_one_kept(node: Node, kubelet: Kubelet) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        node.configure({"resources": [{"name": "no name"}]})
        process.wait_for("LK701")
        kubelet.admit("vm", [("compute", GPU, 2)])
        node.configure(
            {"resources": [{"name": "nvidia.com/OTHER", "select": [{"vendors": ["10de"], "classes": ["03"]}]}]}
        )
        # The pod has them under their old name, and nobody else gets them.
        kubelet.wait_for("nvidia.com/OTHER", dict.fromkeys(BOTH, False))


def test_a_config_map_is_followed(node: Node, kubelet: Kubelet) -> None:
    """The kubelet makes a new folder of the files, and swaps a link to it."""
    mounted = node.folder / "mounted"
    for version, name in (("..1", GPU), ("..2", "nvidia.com/SECOND")):
        (mounted / version).mkdir(parents=True)
        values = {"resources": [{"name": name, "select": [{"vendors": ["10de"], "classes": ["03"]}]}]}
        (mounted / version / "plugin.yaml").write_text(json.dumps(values))
    (mounted / "..data").symlink_to("..1")
    (mounted / "plugin.yaml").symlink_to("..data/plugin.yaml")
    with node.serving("--config", mounted / "plugin.yaml"):
        kubelet.wait_for(GPU, BOTH)
        (mounted / "..data_tmp").symlink_to("..2")
        (mounted / "..data_tmp").rename(mounted / "..data")
        kubelet.wait_for("nvidia.com/SECOND", BOTH)


# Health


def test_a_node_that_goes_and_comes_back_is_seen_by_its_event(node: Node, kubelet: Kubelet) -> None:
    """And is no news of which devices there are."""
    node.configure(RULES | {"rescanSeconds": 3600})
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        (node.tree.root / "dev/vfio/10").unlink()
        kubelet.wait_for(GPU, {"0000:01:00.0": False, "0000:02:00.0": True})
        node.tree.node("vfio/10")
        kubelet.wait_for(GPU, BOTH)
        process.wait_for(f"advertised: 2 of {GPU}")
        assert process.reported().count(f"advertised: 2 of {GPU}") == 1


def test_a_driver_that_changes_is_seen_by_the_next_look(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        rebind(node.tree, "0000:01:00.0", "nouveau")
        kubelet.wait_for(GPU, {"0000:01:00.0": False, "0000:02:00.0": True})
        rebind(node.tree, "0000:01:00.0", "vfio-pci")
        kubelet.wait_for(GPU, BOTH)


def test_a_card_that_is_plugged_in_is_advertised(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        node.tree.card("0000:03:00", group=12)
        kubelet.wait_for(GPU, BOTH | {"0000:03:00.0": True})


def test_a_group_is_looked_at_when_it_is_given_away(node: Node, kubelet: Kubelet) -> None:
    node.configure(RULES | {"rescanSeconds": 3600})
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        regroup(node.tree, "0000:01:00", 10, 77)
        kubelet.wait_for(GPU, BOTH)
        (answer,) = kubelet.call_allocate(GPU, ["0000:01:00.0"]).container_responses
        assert [device.container_path for device in answer.devices] == ["/dev/vfio/vfio", "/dev/vfio/77"]


def test_an_id_that_is_not_or_no_longer_advertised_is_refused(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        with pytest.raises(NotAdmitted, match=r"NOT_FOUND: error\[LK712\]"):
            kubelet.call_allocate(GPU, ["0000:77:00.0"])
        rebind(node.tree, "0000:01:00.0", "nouveau")
        with pytest.raises(NotAdmitted, match=r"FAILED_PRECONDITION: error\[LK713\].*nouveau"):
            kubelet.call_allocate(GPU, ["0000:01:00.0"])


def test_mates_of_a_group_never_go_to_two_pods(node: Node, kubelet: Kubelet) -> None:
    node.tree.function("0000:04:00.0", driver="vfio-pci", group=20)
    node.tree.function("0000:05:00.0", driver="vfio-pci", group=20)
    every = BOTH | {"0000:04:00.0": True, "0000:05:00.0": True}
    with node.serving():
        kubelet.wait_for(GPU, every)
        kubelet.call_allocate(GPU, ["0000:04:00.0"])
        kubelet.wait_for(GPU, every | {"0000:05:00.0": False})
        with pytest.raises(NotAdmitted, match=r"FAILED_PRECONDITION: error\[LK71[34]\].*0000:04:00.0"):
            kubelet.call_allocate(GPU, ["0000:05:00.0"])


def test_two_cards_of_one_group_go_to_the_pod_that_asks_for_two(node: Node, kubelet: Kubelet) -> None:
    node.tree.function("0000:04:00.0", driver="vfio-pci", group=20)
    node.tree.function("0000:05:00.0", driver="vfio-pci", group=20)
    with node.serving():
        kubelet.wait_for(GPU, BOTH | {"0000:04:00.0": True, "0000:05:00.0": True})
        (single,) = kubelet.admit("single", [("compute", GPU, 1)])
        (pair,) = kubelet.admit("pair", [("compute", GPU, 2)])
        assert single.ids[0] in BOTH
        assert set(pair.ids) == {"0000:04:00.0", "0000:05:00.0"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk_below_the_cdi_folder_is_reported_to_the_kubelet(node: Node, kubelet: Kubelet) -> None:
    cdi = node.folder / "cdi"
    cdi.mkdir()
    node.configure(RULES | {"cdi": {"folder": str(cdi)}, "rescanSeconds": 3600})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "full", cdi], check=True)
    try:
        (cdi / "filler").write_bytes(bytes(4096))
        with node.serving():
            kubelet.wait_for(GPU, BOTH)
            with pytest.raises(
                NotAdmitted, match=r"UNAVAILABLE: error\[LK746\]: the CDI file can't be written: .*No space"
            ):
                kubelet.call_allocate(GPU, ["0000:01:00.0"])
            (cdi / "filler").unlink()
            kubelet.call_allocate(GPU, ["0000:01:00.0"])
    finally:
        subprocess.run(["umount", cdi], check=True)


# What it tells


def page(address: str, path: str, **headers: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        asked = urllib.request.Request(f"http://{address}{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def probe(path: Path, what: str) -> tuple[int, str]:
    """Exit code and output of a probe, as the kubelet runs it."""
    command = [PLUGIN, "probe", what, "--probe-socket", str(path)]
    done = forked.run(command, env=ENV, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_it_is_ready_once_it_is_registered_and_not_while_the_kubelet_is_away(node: Node) -> None:
    path = node.folder / "p.sock"
    with node.serving("--config", node.config, "--probe-socket", path) as process:
        process.wait_for("waiting")
        assert probe(path, "healthz") == (0, "ok\n")
        until(lambda: probe(path, "readyz") == (1, f"not registered with the kubelet: {GPU}\n"))
        with running_kubelet(node.kubelet_dir) as kubelet:
            kubelet.wait_for(GPU, BOTH)
            until(lambda: probe(path, "readyz") == (0, "ok\n"))
        until(lambda: probe(path, "readyz")[0] == 1)
    path = node.folder / "none"
    code, said = probe(path, "healthz")
    (reported,) = provoked("cluster", "LK745")
    assert (code, said.splitlines()[0]) == (
        69,
        reported.replace("LK745", "error[LK745]").replace("/run/launcherkit-probe/probe.sock", str(path)),
    )


def test_what_it_does_is_counted_for_who_has_the_token(node: Node, kubelet: Kubelet) -> None:
    token, path = node.folder / "token", node.folder / "w.sock"
    token.write_text("secret")
    with (
        node.serving("--config", node.config, "--web-socket", path),
        WebProcess(path, "--metrics-token-file", token) as site,
    ):
        kubelet.wait_for(GPU, BOTH)
        kubelet.admit("vm", [("compute", GPU, 1)])
        assert site.get("/metrics").status == 401
        lines = site.get("/metrics", Authorization="Bearer secret").read().decode().splitlines()
        assert f'launcherkit_plugin_devices{{health="healthy",resource="{GPU}"}} 2.0' in lines
        assert f'launcherkit_plugin_allocations_total{{outcome="done",resource="{GPU}"}} 1.0' in lines
        assert site.get("/readyz").status == 404, "probes have a socket of their own"


def says(site: WebProcess, words: str) -> bool:
    return words in site.get("/metrics").read().decode()


def test_metrics_name_the_pod_that_has_a_device_where_that_is_wanted(node: Node, kubelet: Kubelet) -> None:
    path = node.folder / "w.sock"
    for names, said in (((), '""'), (("--name-holders",), '"default"')):
        with node.serving("--config", node.config, "--web-socket", path, *names), WebProcess(path) as site:
            kubelet.wait_for(GPU, BOTH)
            if not names:
                kubelet.admit("vm", [("compute", GPU, 1)])

            until(partial(says, site, 'state="held"'))
            lines = site.get("/metrics").read().decode().splitlines()
            namespaces = {
                line.partition("namespace=")[2].partition(",")[0] for line in lines if "_device_info{" in line
            }
            assert namespaces == {'""', said}


def test_node_feature_discovery_is_reported_while_it_runs(node: Node, kubelet: Kubelet) -> None:
    (node.folder / "features.d").mkdir()
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        file = node.folder / "features.d" / "launcherkit"
        until(file.exists)
        assert "devices.launcherkit.io/GPU=2" in file.read_text().splitlines()
        assert process.end() == 0
        assert not file.exists()


def test_options_can_be_variables(node: Node, kubelet: Kubelet) -> None:
    env = {"LAUNCHERKIT_PLUGIN_CONFIG": str(node.config), "LAUNCHERKIT_LOG_FORMAT": "json"}
    with node.serving("--auto", "nvidia", env=env) as process:
        kubelet.wait_for(GPU, BOTH)
        line = json.loads(process.wait_for(f"registered {GPU}"))
        assert line["level"] == "info"


# The cluster


def kubevirt(*resources: str) -> dict[str, Any]:
    """KubeVirt's resource, which leaves these to another device plugin: one has each model."""
    models = ("10DE:2204", "10DE:2230")
    devices = [
        {"pciVendorSelector": model, "resourceName": name, "externalResourceProvider": True}
        for model, name in zip(models, resources, strict=False)
    ]
    configuration = {"permittedHostDevices": {"pciHostDevices": devices}}
    return {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {"configuration": configuration}}


@pytest.fixture
def cluster() -> ApiServer:
    made = ApiServer()
    made.put(NODES, {"metadata": {"name": "node-1", "labels": {}}})
    made.put(KUBEVIRTS, kubevirt("nvidia.com/FROM_KUBEVIRT"))
    return made


@pytest.fixture
def in_cluster(cluster: ApiServer, node: Node) -> Iterator[tuple[str, ...]]:
    """Options of a daemon beside which a process speaks to it."""
    path = node.folder / "c.sock"
    with cluster.running(node.folder) as kubeconfig, ClusterProcess(path, "node-1", kubeconfig):
        yield ("--config", str(node.config), "--cluster-socket", str(path))


def test_what_kubevirt_permits_is_advertised_and_followed(
    node: Node, kubelet: Kubelet, cluster: ApiServer, in_cluster: tuple[str, ...]
) -> None:
    node.tree.function("0000:04:00.0", device=0x2230, driver="vfio-pci", group=20)
    node.configure({"kubevirt": {"cluster": True}})
    with node.serving(*in_cluster):
        kubelet.wait_for("nvidia.com/FROM_KUBEVIRT", BOTH)
        cluster.put(KUBEVIRTS, kubevirt("nvidia.com/FROM_KUBEVIRT", "nvidia.com/ANOTHER"))
        kubelet.wait_for("nvidia.com/ANOTHER", {"0000:04:00.0": True})
        cluster.put(KUBEVIRTS, kubevirt())
        kubelet.wait(lambda: kubelet.resources() == set())


def test_what_a_node_has_is_published_where_that_is_wanted_and_a_vm_rehearsed_on_it(
    node: Node, kubelet: Kubelet, cluster: ApiServer, in_cluster: tuple[str, ...]
) -> None:
    """And by the pod that has a card, which is not to be had then."""
    env = {"KUBECONFIG": str(node.folder / "kubeconfig")}
    with node.serving(*in_cluster):
        kubelet.wait_for(GPU, BOTH)
        kubelet.admit("vm", [("compute", GPU, 1)])
    assert not cluster.objects[CONFIGMAPS]
    with node.serving(*in_cluster, "--publish-node"):
        cluster.wait_for("a record", lambda: cluster.objects[CONFIGMAPS])
        (candidate,) = published("launcherkit", None, env)
        assert [device.id for device in candidate.allocate({GPU: 1}).devices] == ["0000:02:00.0"]
        with pytest.raises(LauncherkitError, match="2 devices, 1 of them in use"):
            candidate.allocate({GPU: 2})


def test_it_may_be_wanted_later(node: Node, kubelet: Kubelet, in_cluster: tuple[str, ...]) -> None:
    with node.serving(*in_cluster):
        kubelet.wait_for(GPU, BOTH)
        node.configure({"kubevirt": {"cluster": True}})
        kubelet.wait_for("nvidia.com/FROM_KUBEVIRT", BOTH)


def test_a_cluster_that_is_wanted_and_not_there_is_reported_and_what_is_known_is_advertised(
    node: Node, kubelet: Kubelet
) -> None:
    node.configure(RULES | {"kubevirt": {"cluster": True}})
    with node.serving() as process:
        assert "component `cluster`" in process.wait_for("LK741")
        kubelet.wait_for(GPU, BOTH)
        (rule,) = RULES["resources"]  # type: ignore[misc]
        node.configure({"resources": [rule | {"name": "nvidia.com/LATER"}], "kubevirt": {"cluster": True}})  # type: ignore[has-type]
        kubelet.wait_for("nvidia.com/LATER", BOTH)


def test_a_cluster_that_is_wanted_later_and_not_there_is_reported_as_well(node: Node, kubelet: Kubelet) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        (rule,) = RULES["resources"]  # type: ignore[misc]
        node.configure({"resources": [rule | {"name": "nvidia.com/LATER"}], "kubevirt": {"cluster": True}})  # type: ignore[has-type]
        assert "component `cluster`" in process.wait_for("LK741")
        kubelet.wait_for("nvidia.com/LATER", BOTH)


def test_a_device_that_falls_ill_is_an_event_on_the_node(
    node: Node, kubelet: Kubelet, cluster: ApiServer, in_cluster: tuple[str, ...]
) -> None:
    with node.serving(*in_cluster):
        kubelet.wait_for(GPU, BOTH)
        (node.tree.root / "dev/vfio/10").unlink()
        cluster.wait_for("an Event", lambda: any(each["type"] == "Warning" for each in cluster.events.values()))
    (event,) = [each for each in cluster.events.values() if each["type"] == "Warning"]
    assert event["reason"] == "DeviceUnhealthy"
    assert event["message"].startswith(f"{GPU}: ")
    assert "0000:01:00.0" in event["message"]


def test_a_node_without_a_device_says_so_in_its_log_and_by_an_event_and_once(
    node: Node, kubelet: Kubelet, cluster: ApiServer, in_cluster: tuple[str, ...]
) -> None:
    no_names = node.config.with_name("pci.ids")  # the machine may have some
    no_names.touch()
    node.configure({"auto": "gpu", "rescanSeconds": 1, "pciIds": str(no_names)})
    for slot in ("0000:01:00", "0000:02:00"):
        rebind(node.tree, f"{slot}.0", "nvidia")
    with node.serving(*in_cluster) as process:
        said = process.wait_for("nothing to advertise among 4 PCI functions; not advertised: 0000:01:00.0 display")
        assert said.endswith("0000:02:00.0 display controller 10de:2204 (driver nvidia)")
        cluster.wait_for("an Event", lambda: cluster.events)
        node.tree.card("0000:03:00", group=12)
        process.wait_for(f"advertised: 1 of {AUTO}; not advertised: 0000:01:00.0 display")
        cluster.wait_for("another", lambda: "DevicesFound" in {each["reason"] for each in cluster.events.values()})
        assert process.reported().count(said) == 1
    first = next(iter(cluster.events.values()))
    assert (first["type"], first["reason"], first["count"]) == ("Normal", "NothingToAdvertise", 1)


# Memory


def resident(process: ServerProcess) -> int:
    """In KB."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


@pytest.mark.slow
def test_ten_thousand_allocates_leave_no_memory_behind(node: Node, kubelet: Kubelet) -> None:
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        for _ in range(4_000):  # until all that is kept is there
            kubelet.call_allocate(GPU, list(BOTH))
        before = resident(process)
        for _ in range(10_000):
            kubelet.call_allocate(GPU, list(BOTH))
        assert resident(process) - before < 1_000, "100 bytes a call would be a leak"


# Between two pods


CLEAN = """#!/bin/sh -eu
echo "begin $LAUNCHERKIT_ADDRESSES" >>"$1/log"
while [ ! -e "$1/gate" ]; do sleep 0.1; done
echo "cleaned $LAUNCHERKIT_ADDRESSES" >>"$1/log"
"""


def test_cards_are_offered_again_once_they_are_clean_even_if_the_daemon_is_killed_meanwhile(
    node: Node, kubelet: Kubelet
) -> None:
    program, log = node.folder / "clean", node.folder / "log"
    program.write_text(CLEAN)
    program.chmod(0o700)
    kthreadd = node.tree.root / "proc/2"
    kthreadd.mkdir(parents=True)
    (kthreadd / "fd").mkdir()
    (kthreadd / "comm").write_text("kthreadd\n")
    select = [{"vendors": ["10de"], "classes": ["03"]}]
    rule = {"name": GPU, "select": select, "release": {"command": [str(program), str(node.folder)]}}
    node.configure({"resources": [rule], "rescanSeconds": 1})
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH)
        (holding,) = kubelet.admit("first", [("compute", GPU, 1)])
        (card,) = holding.ids
        process.end(signal.SIGKILL)
    kubelet.delete("first")
    with node.serving() as process:
        kubelet.wait_for(GPU, BOTH | {card: False})
        until(log.exists)
        process.end(signal.SIGKILL)
    (node.folder / "gate").touch()
    with node.serving():
        kubelet.wait(lambda: f"cleaned {card}" in log.read_text())
        kubelet.wait_for(GPU, BOTH)
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["begin", "begin", "cleaned"]
