"""Who holds what: the kubelet's answer, in every picture of the host."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from grpclib.server import Stream

from launcherkit.model.address import PciAddress
from launcherkit.rpc.proto.podresources_v1_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from launcherkit.show.topology import HeldDevice, vm_of, with_holders
from launcherkit_plugin.allocation.keeper import records_in
from launcherkit_plugin.binding.lent import Lent, LentDevices, LentState
from launcherkit_plugin.codec import encode
from launcherkit_plugin.model.same_device import Kept, Owner
from tests.show.machines import topology
from tests.support import forked
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT
from tests.support.pod_resources import PodResourcesLister, PodResourcesService, serving_pod_resources
from tests.support.provoked import provoked

DEMO = ROOT / "launcherkit" / "demo_data" / "host.json"
LAUNCHER = "team/virt-launcher-gpu-vm-x2x8p"


async def run(*arguments: str, host: Path | str = DEMO) -> tuple[int, str, str]:
    command = [forked.LAUNCHERKIT, "topology", "--host", str(host), "--pods", *arguments]
    done = await asyncio.to_thread(forked.run, command, env={"COLUMNS": "300"}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def asked(path: Path, service: PodResourcesLister, *arguments: str) -> tuple[int, str, str]:
    async def ask() -> tuple[int, str, str]:
        async with serving_pod_resources(path, service):
            return await run("--kubelet-socket", str(path), *arguments)

    return asyncio.run(ask())


PODS = {LAUNCHER: {"nvidia.com/GA102": ["0000:e1:00.0"]}, "team/web": {"cpu": ["3"], "x/y": ["GPU-5"]}}


@pytest.mark.parametrize("form", ["--all", "--svg", "--html"])
def test_each_picture_says_who_holds_a_device(tmp_path: Path, form: str) -> None:
    code, out, err = asked(tmp_path / "k.sock", PodResourcesService(PODS), form)
    assert (code, err) == (0, "")
    (line,) = (line for line in out.splitlines() if "held by" in line)
    assert "0000:e1:00.0" in line
    assert f"held by pod {LAUNCHER} (VM gpu-vm)" in line


def test_the_json_has_the_resource_and_the_container(tmp_path: Path) -> None:
    held = json.loads(asked(tmp_path / "k.sock", PodResourcesService(PODS), "--json")[1])["held"]
    words = {"resource": "nvidia.com/GA102", "pod": LAUNCHER, "container": "compute", "claim": "", "vm": "gpu-vm"}
    assert held == [{"device": "0000:e1:00.0", **words}]


class Claims(PodResourcesLister):
    """A pod with a device of a claim, as the kubelet lists it from 1.34 on."""

    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await stream.recv_message()
        answer = ListPodResourcesResponse()
        container = answer.pod_resources.add(namespace="team", name="virt-launcher-gpu-vm-x2x8p").containers.add(
            name="c"
        )
        claim = container.dynamic_resources.add(claim_namespace="team", claim_name="card")
        claim.claim_resources.add(driver_name="launcherkit.io", pool_name="node1", device_name="pci-0000-e1-00-0")
        await stream.send_message(answer)


def test_the_device_of_a_claim_is_found_by_the_address_in_its_name(tmp_path: Path) -> None:
    (held,) = json.loads(asked(tmp_path / "k.sock", Claims(), "--json")[1])["held"]
    assert (held["device"], held["claim"], held["vm"]) == ("0000:e1:00.0", "team/card", "gpu-vm")


def test_where_there_is_no_kubelet_the_error_says_so() -> None:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        Path(folder, "sys/bus/pci/devices").mkdir(parents=True)
        code, out, err = asyncio.run(run(host=Path(folder)))
    assert (code, out) == (69, "")
    (reported,) = provoked("kubelet", "LK871")
    assert reported.replace("LK871: ", "error[LK871]: ") == err.splitlines()[0].replace(folder, "")


def test_a_socket_at_which_nobody_listens_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        code, out, err = asyncio.run(run("--kubelet-socket", str(path)))
    assert (code, out) == (69, "")
    assert "Connection refused" in err


def test_of_a_snapshot_no_kubelet_is_asked_that_was_not_named() -> None:
    code, out, err = asyncio.run(run())
    assert (code, out) == (2, "")
    assert "give --kubelet-socket" in err


def held(device: str, pod: str = "a/b", *, claim: str = "") -> HeldDevice:
    return HeldDevice(device, "x/y", pod, "compute", claim, None)


def on(name: str, *each: HeldDevice) -> list[str]:
    tree = with_holders(topology(name), each)
    assert tree.held is not None
    return [held.device for held in tree.held]


@pytest.mark.parametrize(
    ("device", "claim", "found"),
    [
        ("0000:01:00.0", "", ["0000:01:00.0"]),
        ("0000:01:00.0", "a/c", []),
        ("B1AF2C5A-0000-4000-8000-000000000001", "", ["b1af2c5a-0000-4000-8000-000000000001"]),
        ("mdev-b1af2c5a-0000-4000-8000-000000000001", "a/c", ["b1af2c5a-0000-4000-8000-000000000001"]),
        ("gpu-0000-01-00-0", "a/c", ["0000:01:00.0"]),
        ("gpu-0", "a/c", []),
        ("kvm12", "", []),
    ],
)
def test_a_device_is_known_by_its_address_or_its_uuid(device: str, claim: str, found: list[str]) -> None:
    assert on("workstation", held(device, claim=claim)) == found


def test_the_number_of_an_iommu_group_stands_for_all_of_it_unless_guests_cannot_have_it() -> None:
    groups = {each.number: each for each in topology("workstation").groups}
    viable = next(each for each in groups.values() if not each.blockers)
    blocked = next(each for each in groups.values() if each.blockers)
    assert on("workstation", held(str(viable.number))) == list(map(str, viable.members))
    assert on("workstation", held(str(blocked.number)), held("99999")) == []


@pytest.mark.parametrize(
    ("pod", "vm"),
    [
        ("team/virt-launcher-gpu-vm-x2x8p", "gpu-vm"),
        ("team/virt-launcher-a-bcdef-x2x8p", "a-bcdef"),
        ("team/web-x2x8p", None),
        ("uid:2f6", None),
        (f"team/virt-launcher-{'v' * 44}x2x8p", None),
        (f"team/virt-launcher-{'v' * 43}-x2x8p", None),
    ],
)
def test_the_vm_is_that_of_the_launchers_name_unless_that_may_have_been_cut(pod: str, vm: str | None) -> None:
    assert vm_of(pod) == vm


# What the device plugin withholds, by its records


NOW = int(datetime.now(UTC).timestamp())
OWNER = Owner("vms", "one")


@pytest.fixture
def node() -> Iterator[Path]:
    """A node with three cards: one is kept, one cleaned, one in quarantine; and records of what is neither."""
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        tree = HostTree(Path(folder), nodes=False)
        for number, bus in enumerate(("01", "41", "e1", "e2", "e3")):
            tree.card(f"0000:{bus}:00", group=10 + number)
        state = f"{folder}/var/lib/launcherkit-plugin"
        kept = Kept("0000:01:00.0", "x/y", OWNER, "required", "vms/launcher", NOW - 90, NOW - 60, 86400.0)
        expired = kept._replace(device="0000:e2:00.0", seconds=30.0)
        running = kept._replace(device="0000:e3:00.0", ended=None)
        records = records_in(state)
        for each in (kept, expired, running):
            records.write(each.device, encode(each))
        devices = LentDevices(f"{state}/lent")
        devices.write(lent("0000:41:00", "cleaning", "nvme format: exit status 1"))
        devices.write(lent("0000:e1:00", "quarantined", "its config space reads all ones"))
        devices.write(lent("0000:e3:00", "used", ""))
        yield Path(folder)


def lent(slot: str, state: LentState, text: str) -> Lent:
    functions = PciAddress.parse(f"{slot}.0"), PciAddress.parse(f"{slot}.1")
    return Lent(functions, "x/y", (f"{slot}.0",), state, NOW - 60, text)


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


KEPT = f"kept for VM vms/one since {moment(NOW - 60)} until {moment(NOW - 60 + 86400)}"
CLEANING = f"cleaning since {moment(NOW - 60)}: nvme format: exit status 1"
QUARANTINED = f"quarantined since {moment(NOW - 60)}: its config space reads all ones"


def of_node(node: Path, *arguments: str) -> str:
    async def ask() -> tuple[int, str, str]:
        async with serving_pod_resources(node / "k.sock", PodResourcesService({})):
            return await run("--kubelet-socket", str(node / "k.sock"), *arguments, host=node)

    code, out, err = asyncio.run(ask())
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("form", ["--all", "--svg", "--html"])
def test_each_picture_says_what_is_withheld_since_when_and_until_when(node: Path, form: str) -> None:
    out = of_node(node, form)
    for text in (KEPT, CLEANING, QUARANTINED):
        assert text in out
    assert "vms/launcher" not in out
    assert out.count("kept for VM vms/one") == out.count(KEPT)


def test_the_text_has_the_word_where_ready_would_be(node: Path) -> None:
    lines = of_node(node).splitlines()
    words = {
        address: next(line.split(address)[1].split()[0] for line in lines if address in line)
        for address in ("0000:01:00.0", "0000:41:00.1", "0000:e1:00.0", "0000:e2:00.0", "0000:e3:00.0")
    }
    assert [*words.values()] == ["kept", "cleaning", "quarantined", "ready", "ready"]


def test_the_json_has_the_times_in_seconds(node: Path) -> None:
    withheld = json.loads(of_node(node, "--json"))["withheld"]
    assert withheld[0] == {
        "device": "0000:01:00.0",
        "state": "kept",
        "since": NOW - 60,
        "until": NOW - 60 + 86400,
        "text": KEPT,
    }
    assert [(each["device"], each["state"], each["until"]) for each in withheld[1:]] == [
        ("0000:41:00.0", "cleaning", None),
        ("0000:41:00.1", "cleaning", None),
        ("0000:e1:00.0", "quarantined", None),
        ("0000:e1:00.1", "quarantined", None),
    ]


def test_without_pods_nobody_asks_the_device_plugin(node: Path) -> None:
    done = forked.run([forked.LAUNCHERKIT, "topology", "--host", str(node)], env={}, capture_output=True, text=True)
    assert "cleaning" not in done.stdout
