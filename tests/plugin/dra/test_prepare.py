"""Claims are prepared and unprepared: what they get, what is refused, and what any interruption leaves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import UNWRITABLE_FILE, LauncherkitError
from launcherkit_plugin.dra.claim_queue import ANSWER_SECONDS
from launcherkit_plugin.model.device import ClaimRef, Holder, Usage
from launcherkit_plugin.model.errors import (
    BAD_CLAIM_RECORD,
    BAD_RESOURCE_CLAIM,
    CLAIM_FILES_FAILED,
    CLAIM_UNREADABLE,
    DEVICE_TAKEN,
    DEVICE_UNHEALTHY,
    GROUP_SPLIT,
    PREPARE_LATE,
    UNKNOWN_DEVICE,
    BadRecord,
)
from launcherkit_plugin.model.wakeups import Wakeup
from tests.plugin.dra.desk import AGAIN, CARDS, DRIVER, REF, ClaimDesk, Killed, dra_name
from tests.plugin.resources import RULE, rebind
from tests.support.errors import raises_code
from tests.support.looping import TimedLoop, run_timed, settled
from tests.support.provoked import provoked

ONE, TWO, THREE = (f"{slot}.0" for slot in CARDS)
CLAIM_FILE, RECORD = f"cdi/{DRIVER}_u-1.json", f"kubelet/plugins/{DRIVER}/claims/u-1.json"
METADATA = f"kubelet/plugins/{DRIVER}/dra-device-metadata/vms_gpu/gpu/metadata.json"
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
ALL = sorted([CLAIM_FILE, METADATA, RECORD])


@pytest.fixture
def desk(tmp_path: Path) -> ClaimDesk:
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    return desk


# What a claim gets


def test_the_kubelet_is_told_each_device_and_by_which_names_a_runtime_finds_it(desk: ClaimDesk) -> None:
    (device,) = desk.prepare()
    assert (device.request, device.pool, device.device) == ("gpu", "node-1", "pci-0000-01-00-0")
    assert device.cdi == (f"{DRIVER}/claim=u-1_pci-0000-01-00-0",)
    assert desk.files() == ALL
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}
    assert desk.woken == [Wakeup.ALLOCATED]


def test_a_container_gets_the_nodes_of_the_group_and_the_variable(desk: ClaimDesk) -> None:
    desk.prepare()
    assert desk.cdi(f"{DRIVER}_u-1.json") == {
        "cdiVersion": "0.5.0",
        "kind": f"{DRIVER}/claim",
        "devices": [
            {
                "name": "u-1_pci-0000-01-00-0",
                "containerEdits": {
                    "env": [f"PCI_RESOURCE_NVIDIA_COM_GPU={ONE}"],
                    "deviceNodes": [
                        {"path": "/dev/vfio/vfio", "permissions": "rwm"},
                        {"path": "/dev/vfio/7", "permissions": "rwm"},
                    ],
                    "mounts": [
                        {
                            "hostPath": str(desk.folder / METADATA),
                            "containerPath": f"{IN_CONTAINER}/resourceclaims/gpu/gpu/{DRIVER}-metadata.json",
                            "options": ["ro", "bind"],
                        }
                    ],
                },
            }
        ],
    }


def test_variables_are_the_operators_choice(desk: ClaimDesk) -> None:
    desk.environment = False
    desk.prepare()
    (device,) = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert "env" not in device["containerEdits"]


def test_metadata_is_a_stream_of_the_same_object_once_a_version(desk: ClaimDesk) -> None:
    desk.prepare()
    objects = [json.loads(line) for line in (desk.folder / METADATA).read_text().splitlines()]
    versions = [each.pop("apiVersion") for each in objects]
    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    assert objects[0] == objects[1]
    assert objects[0] == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "gpu", "namespace": "vms", "uid": "u-1", "generation": 3},
        "requests": [
            {
                "name": "gpu",
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": "node-1",
                        "name": "pci-0000-01-00-0",
                        "attributes": {
                            "functions": {"int": 2},
                            "model": {"string": "A"},
                            "siblings": {"string": "0000:01:00.1"},
                        },
                    }
                ],
            }
        ],
    }
    assert (desk.folder / METADATA).stat().st_mode & 0o777 == 0o644


def test_metadata_of_a_claim_from_a_template_is_where_the_pod_names_it(desk: ClaimDesk) -> None:
    desk.allocate(annotations={"resource.kubernetes.io/pod-claim-name": "card"})
    desk.prepare()
    (device,) = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    path = device["containerEdits"]["mounts"][0]["containerPath"]
    assert "/resourceclaimtemplates/card/gpu/" in path
    assert json.loads((desk.folder / METADATA).read_text().splitlines()[0])["podClaimName"] == "card"


def test_of_alternatives_the_request_itself_is_named(desk: ClaimDesk) -> None:
    desk.allocate(results={"gpu/large": [ONE]})
    assert desk.prepare()[0].request == "gpu"
    assert desk.files() == ALL


def test_the_variable_lists_the_cards_of_a_request_which_a_container_may_have_alone(desk: ClaimDesk) -> None:
    desk.allocate(results={"b": [TWO], "a": [THREE, ONE]})
    devices = desk.prepare()
    assert [each.request for each in devices] == ["b", "a", "a"]
    edits = {device["name"]: device["containerEdits"] for device in desk.cdi(f"{DRIVER}_u-1.json")["devices"]}
    assert ["mounts" in each for each in edits.values()] == [True, True, False]  # the metadata of each request, once
    variables = {name: each["env"] for name, each in edits.items()}
    assert variables == {
        f"u-1_{dra_name(card)}": [f"PCI_RESOURCE_NVIDIA_COM_GPU={listed}"]
        for card, listed in {ONE: f"{THREE},{ONE}", TWO: TWO, THREE: f"{THREE},{ONE}"}.items()
    }


def test_of_extended_resources_each_container_gets_its_own_alone(desk: ClaimDesk) -> None:
    desk.allocate(results={"container-0-request-0": [ONE], "container-1-request-0": [TWO]})
    desk.prepare()
    env = [device["containerEdits"]["env"] for device in desk.cdi(f"{DRIVER}_u-1.json")["devices"]]
    assert env == [[f"PCI_RESOURCE_NVIDIA_COM_GPU={ONE}"], [f"PCI_RESOURCE_NVIDIA_COM_GPU={TWO}"]]


def test_devices_of_other_drivers_in_the_claim_are_theirs(desk: ClaimDesk) -> None:
    other = {"request": "nic", "driver": "dra.net", "pool": "p", "device": "eth1"}
    desk.claims["vms/gpu"]["status"]["allocation"]["devices"]["results"].append(other)
    assert [device.device for device in desk.prepare()] == [dra_name(ONE)]


def test_two_cards_of_one_group_go_to_one_claim_together_and_never_to_two(desk: ClaimDesk) -> None:
    desk.allocate(REF, CARDS[1])
    desk.prepare()
    other = ClaimRef("vms", "other", "u-9")
    desk.allocate(other, CARDS[2])
    with raises_code(GROUP_SPLIT, match=r"ResourceClaim vms/gpu has 0000:02:00\.0, which shares IOMMU group 8"):
        desk.prepare(other)
    desk.unprepare()
    desk.prepare(other)
    both = ClaimRef("vms", "both", "u-8")
    desk.unprepare(other)
    desk.allocate(both, CARDS[1], CARDS[2])
    assert len(desk.prepare(both)) == 2


def test_a_device_that_is_listed_no_more_while_it_is_being_given_is_the_next_turns_business(desk: ClaimDesk) -> None:
    provider = desk.node.provider
    allocate = provider.allocate

    async def slow(*arguments: Any) -> Any:
        grant = await allocate(*arguments)
        desk.preparer.listed({})
        return grant

    provider.allocate = slow  # type: ignore[method-assign,assignment]
    assert desk.prepare()[0].device == dra_name(ONE)


# What is refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda claim: claim["metadata"].update(uid="u-2"), "its UID is 'u-2', not 'u-1': it was created again"),
        (lambda claim: claim["status"].pop("allocation"), "it isn't allocated: there is no status.allocation"),
        (lambda claim: claim.pop("status"), "it isn't allocated"),
        (lambda claim: _results(claim)[0].update(driver="gpu.x.io"), "none of its devices is of the driver"),
        (lambda claim: _results(claim)[0].update(adminAccess="yes"), r"results\[0\].adminAccess: 'yes' is not true or"),
        (lambda claim: _results(claim)[0].update(device="../x"), r"results\[0\].device: '../x' is not a DNS label"),
        (lambda claim: _results(claim)[0].update(request="../x"), r"results\[0\].request: '..' is not a DNS label"),
        (lambda claim: _results(claim)[0].pop("pool"), r"results\[0\].pool: nothing is not the name of a pool"),
        (lambda claim: _results(claim)[0].update(pool=""), r"results\[0\].pool: .* is not the name of a pool"),
        (lambda claim: claim["status"].update(allocation=7), "status.allocation: 7 is not an object"),
        (lambda claim: claim.update(metadata=None), "metadata: nothing is not an object"),
    ],
)
def test_a_claim_that_is_not_this_drivers_to_prepare_is_refused(
    desk: ClaimDesk, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    change(desk.claims["vms/gpu"])
    with raises_code(BAD_RESOURCE_CLAIM, match=why):
        desk.prepare()
    assert (desk.files(), desk.held()) == ([], {})


def _results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
    return found


@pytest.mark.parametrize("ref", [REF._replace(uid="../x"), REF._replace(namespace=""), REF._replace(name="a/b")])
def test_names_that_are_no_names_reach_no_path(desk: ClaimDesk, ref: ClaimRef) -> None:
    for call in (desk.prepare, desk.unprepare):
        with raises_code(BAD_RESOURCE_CLAIM, match="is not the"):
            call(ref)


def test_a_device_that_is_not_published_any_more_is_refused(desk: ClaimDesk) -> None:
    desk.allocate(REF, "0000:0f:00")
    with raises_code(UNKNOWN_DEVICE, match="ResourceClaim vms/gpu: there is no device 'pci-0000-0f-00-0'"):
        desk.prepare()


def test_a_device_that_is_unhealthy_now_is_refused_with_the_reason(desk: ClaimDesk) -> None:
    rebind(desk.tree, "0000:01:00.1", "snd_hda_intel")
    with raises_code(DEVICE_UNHEALTHY, match=r"0000:01:00\.1.*snd_hda_intel"):
        desk.prepare()
    assert (desk.files(), desk.held()) == ([], {})


def test_a_device_in_two_claims_is_refused_until_the_first_is_unprepared(desk: ClaimDesk) -> None:
    desk.prepare()
    other = ClaimRef("vms", "other", "u-9")
    desk.allocate(other)
    with raises_code(DEVICE_TAKEN, match="ResourceClaim vms/gpu has it"):
        desk.prepare(other)
    desk.unprepare()
    desk.prepare(other)


def test_a_device_that_a_pod_has_from_the_device_plugin_is_refused(desk: ClaimDesk) -> None:
    desk.usage = Usage("pod-resources", {"nvidia.com/OLD": {ONE: Holder("vms/launcher")}})
    desk.look()
    with raises_code(DEVICE_TAKEN, match="pod vms/launcher has it"):
        desk.prepare()


def test_nodes_of_both_kinds_never_go_into_one_container(tmp_path: Path) -> None:
    desk = ClaimDesk(tmp_path, {0x03: RULE._replace(dra=True), 0x02: RULE._replace(dra=True, name="x.io/NIC")})
    desk.tree.function("0000:04:00.0", class_code=0x020000, driver="vfio-pci", group=9, vfio_dev="vfio4")
    desk.tree.node("iommu")
    (desk.tree.root / "dev/vfio/9").unlink()
    desk.look()
    desk.allocate(results={"nic": ["0000:04:00.0"]})
    desk.prepare()
    desk.unprepare()
    desk.allocate(results={"gpu": [ONE], "nic": ["0000:04:00.0"]})
    with shown("LK816"):
        desk.prepare()
    assert (desk.files(), desk.held()) == ([], {})


# Again and again


def test_what_is_prepared_is_not_prepared_again_and_needs_no_api_server(desk: ClaimDesk) -> None:
    first = desk.prepare()
    assert desk.prepare() == first
    desk.claims.clear()
    assert desk.prepare() == first
    desk.restart()
    assert desk.prepare() == first
    assert desk.woken == [Wakeup.ALLOCATED]


def test_a_claim_that_was_allocated_again_gets_its_new_devices_and_keeps_none_of_the_old(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.allocate(REF, CARDS[1])
    (device,) = desk.prepare()
    assert device.device == dra_name(TWO)
    assert desk.held() == {TWO: "ResourceClaim vms/gpu"}
    assert dra_name(ONE) not in (desk.folder / CLAIM_FILE).read_text()


@pytest.mark.parametrize("lost", [CLAIM_FILE, METADATA])
def test_what_is_missing_of_it_is_made_again(desk: ClaimDesk, lost: str) -> None:
    first = desk.prepare()
    (desk.folder / lost).unlink()
    assert desk.prepare() == first
    assert desk.files() == ALL


def test_after_a_boot_all_is_made_again_with_the_nodes_of_now(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.boot = "boot-2"
    desk.restart()
    (desk.folder / CLAIM_FILE).write_text("of before")
    desk.prepare()
    assert desk.cdi(f"{DRIVER}_u-1.json")["devices"]


def test_a_claim_is_unprepared_with_the_api_server_and_the_claim_gone(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.claims.clear()
    desk.restart()
    desk.unprepare()
    desk.unprepare()
    assert (desk.files(), desk.held()) == ([], {})
    assert not list(Path(desk.places.metadata).iterdir())
    assert desk.woken == [Wakeup.ALLOCATED, Wakeup.PODS]


def test_a_claim_that_nobody_knows_is_unprepared_at_once(desk: ClaimDesk) -> None:
    desk.unprepare()
    assert desk.asked == 0


def test_a_claim_that_was_made_again_under_its_name_waits_for_the_end_of_the_first(desk: ClaimDesk) -> None:
    first = desk.prepare()
    desk.allocate(AGAIN, CARDS[1])
    with raises_code(BAD_RESOURCE_CLAIM, match="one of that name, with the UID 'u-1', still is"):
        desk.prepare(AGAIN)
    assert desk.files() == ALL
    assert desk.prepare() == first  # its pod runs on
    desk.unprepare(AGAIN)
    desk.unprepare()
    desk.prepare(AGAIN)
    desk.unprepare()
    assert '"u-2"' in (desk.folder / METADATA).read_text()
    desk.unprepare(AGAIN)
    assert desk.files() == []


# Interruptions


def kill_at(desk: ClaimDesk, number: int) -> None:
    """The process dies before its n-th change of a file."""
    left = iter(range(number, -1, -1))

    def step(_: str) -> None:
        if next(left, 0) == 0:
            raise Killed

    desk.step = step


def survives(desk: ClaimDesk, call: Callable[[], object]) -> bool:
    """Whether a call ended before the process was killed; else another process is started."""
    try:
        call()
    except Killed:
        desk.step = str
        desk.restart()
        return False
    desk.step = str
    return True


@pytest.mark.parametrize("number", range(5))
def test_a_prepare_that_is_killed_anywhere_is_undone_or_repeated(desk: ClaimDesk, number: int) -> None:
    kill_at(desk, number)
    done = survives(desk, desk.prepare)
    assert done == (number == 4)  # metadata, CDI file, the mark of the boot, record
    assert desk.files() == (ALL if done else [])
    assert desk.prepare()
    assert (desk.files(), desk.held()) == (ALL, {ONE: "ResourceClaim vms/gpu"})


@pytest.mark.parametrize("number", range(4))
def test_an_unprepare_that_is_killed_anywhere_is_completed_by_the_next_or_by_a_prepare(
    desk: ClaimDesk, number: int
) -> None:
    for again in (desk.unprepare, desk.prepare):
        desk.prepare()
        kill_at(desk, number)
        done = survives(desk, desk.unprepare)
        assert done == (number == 3)
        assert desk.held() == ({} if done else {ONE: "ResourceClaim vms/gpu"})
        again()
        assert desk.files() == ([] if again == desk.unprepare else ALL)


@pytest.mark.parametrize("number", range(4))
def test_on_a_full_disk_nothing_is_prepared_and_nothing_is_left(desk: ClaimDesk, number: int) -> None:
    left = iter(range(number, -1, -1))

    def full(path: str) -> None:
        if next(left, 1) == 0:
            raise UNWRITABLE_FILE(f"{path}: {os.strerror(errno.ENOSPC)}", "Make room.", file=path)

    desk.step = full
    with raises_code(CLAIM_FILES_FAILED, match="No space left"):
        desk.prepare()
    assert (desk.files(), desk.held()) == ([], {})
    desk.step = str
    desk.prepare()


def test_a_full_file_system_is_named(tmp_path: Path) -> None:
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    (tmp_path / "cdi").write_text("in the way of the folder")
    with raises_code(CLAIM_FILES_FAILED, match=r"_u-1.json: Not a directory"):
        desk.prepare()
    assert desk.held() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("full", ["cdi", f"kubelet/plugins/{DRIVER}"])
def test_a_file_system_that_is_really_full_keeps_nothing_and_unprepares(tmp_path: Path, full: str) -> None:
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    (tmp_path / full).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", tmp_path / full], check=True)
    try:
        filler = tmp_path / full / "filler"
        filler.write_bytes(bytes(64 * 1024))
        with raises_code(CLAIM_FILES_FAILED, match="No space left on device"):
            desk.prepare()
        assert (desk.held(), [name for name in desk.files() if "filler" not in name]) == ({}, [])
        filler.unlink()
        desk.prepare()
        filler.write_bytes(bytes(4096))
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        desk.unprepare()
        assert desk.held() == {}
    finally:
        desk.lock.close()
        subprocess.run(["umount", tmp_path / full], check=True)


BROKEN = ["", '{"version": 1, "boot": "', "[]", '{"version": 2}', '{"version": 1}']
OTHER = ClaimRef("vms", "other", "u-9")


def with_broken_record(desk: ClaimDesk, content: str = "") -> None:
    """The claim is prepared and its record breaks; another process starts."""
    desk.prepare()
    (desk.folder / RECORD).write_text(content)
    desk.restart()


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_record_concerns_its_own_devices_which_the_other_files_tell(desk: ClaimDesk, content: str) -> None:
    with_broken_record(desk, content)
    assert desk.allocator.usage().known
    assert desk.held() == {ONE: "ResourceClaim with the UID u-1"}
    desk.allocate(OTHER)
    with raises_code(BAD_CLAIM_RECORD, match=r"claims/u-1.json: the record of a prepared ResourceClaim can't be read"):
        desk.prepare(OTHER)
    desk.allocate(OTHER, CARDS[1])
    desk.prepare(OTHER)
    desk.prepare()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu", TWO: "ResourceClaim vms/other"}


def test_its_metadata_tell_them_if_the_cdi_file_is_gone_or_broken_too(desk: ClaimDesk) -> None:
    with_broken_record(desk)
    for damage in (lambda path: path.write_text("{"), Path.unlink):
        damage(desk.folder / CLAIM_FILE)
        desk.restart()
        assert desk.held() == {ONE: "ResourceClaim with the UID u-1"}
        assert desk.allocator.usage().known


def test_of_what_no_file_tells_anything_may_be_held_unless_there_is_none(desk: ClaimDesk) -> None:
    with_broken_record(desk)
    (desk.folder / CLAIM_FILE).write_text("{")
    (desk.folder / METADATA).write_text("{")
    desk.restart()
    assert not desk.allocator.usage().known
    desk.allocate(OTHER, CARDS[1])
    with raises_code(BAD_CLAIM_RECORD):
        desk.prepare(OTHER)
    (desk.folder / CLAIM_FILE).unlink()
    desk.restart()
    assert desk.allocator.usage().known
    desk.prepare(OTHER)


@pytest.mark.parametrize("name", ["u-7.json", "notes.json", "not a UID.json"])
@pytest.mark.parametrize("content", [*BROKEN, '{"version": 9}'])
def test_a_file_that_belongs_to_no_claim_is_in_nobodys_way(desk: ClaimDesk, name: str, content: str) -> None:
    file = Path(desk.places.records, name)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    desk.restart()
    assert desk.allocator.usage().known
    desk.prepare()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}


def test_a_claim_whose_record_is_broken_is_prepared_again_whatever_is_wrong_with_others(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.allocate(OTHER, CARDS[1])
    desk.prepare(OTHER)
    for uid in (REF.uid, OTHER.uid):
        Path(desk.places.records, f"{uid}.json").write_text("")
    desk.restart()
    desk.prepare()
    desk.prepare(OTHER)
    assert desk.held() == {ONE: "ResourceClaim vms/gpu", TWO: "ResourceClaim vms/other"}


def test_two_of_which_nothing_is_known_do_not_block_each_other(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.allocate(OTHER, CARDS[1])
    desk.prepare(OTHER)
    for root in (desk.folder / "cdi", Path(desk.places.metadata), Path(desk.places.records)):
        for path in root.rglob("*.json"):
            path.write_text("{")
    desk.restart()
    for _ in range(3):
        for ref in (REF, OTHER):
            with suppress(BadRecord):
                desk.prepare(ref)
    assert desk.held() == {ONE: "ResourceClaim vms/gpu", TWO: "ResourceClaim vms/other"}


@pytest.mark.parametrize("number", range(3))
def test_what_a_killed_prepare_has_half_written_gets_into_no_file(
    desk: ClaimDesk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It dies when a file is complete beside its place; then the claim is made again for fewer devices."""
    desk.prepare()
    expected = {name: (desk.folder / name).read_text() for name in ALL}
    desk.unprepare()
    desk.allocate(REF, *CARDS[:2])
    left = iter(range(number, -1, -1))

    def dies(rename: Callable[..., None]) -> Callable[..., None]:
        def instead(*arguments: Any, **more: Any) -> None:
            if next(left, 0) == 0:
                raise Killed
            rename(*arguments, **more)

        return instead

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(os, name, dies(getattr(os, name)))
        with pytest.raises(Killed):
            desk.prepare()
    desk.allocate()
    desk.prepare()  # by a process that runs already: one that starts would remove what it finds
    assert {name: (desk.folder / name).read_text() for name in ALL} == expected
    desk.restart()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}


def damaged(value: Any) -> Iterator[Any]:
    """A document with one value of another type, empty, or gone, for each of its values but the boot's."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key in ("boot", "share_id"):
            continue
        for instead in (7, [], {}, None, *damaged(item)):
            changed = value.copy()
            changed[key] = instead
            yield changed
        if isinstance(value, dict):
            yield {other: each for other, each in value.items() if other != key}


def test_a_record_with_any_damage_never_frees_its_device(desk: ClaimDesk) -> None:
    """T5: whatever of it is wrong, another claim doesn't get the card."""
    desk.prepare()
    path = desk.folder / RECORD
    whole = path.read_text()
    other = ClaimRef("vms", "other", "u-9")
    desk.allocate(other, CARDS[0])
    texts = [json.dumps(document) for document in damaged(json.loads(whole)) if document != json.loads(whole)]
    texts += [whole.replace("u-1", "u-2"), whole[:-20], whole + whole, "\0" * len(whole)]
    assert len(texts) > 30
    for text in texts:
        path.write_text(text)
        desk.restart()
        with pytest.raises(LauncherkitError):
            desk.prepare(other)
        assert not any("u-9" in name for name in desk.files()), text


def test_the_record_of_another_claim_is_not_taken_for_a_claims_own(desk: ClaimDesk) -> None:
    """As a file that was copied, or restored under a wrong name, has it."""
    desk.prepare()
    path = desk.folder / RECORD
    path.write_text(path.read_text().replace("u-1", "u-2"))
    desk.restart()
    desk.prepare()
    assert "u-2" not in path.read_text()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}


def test_a_whole_record_of_another_claim_is_not_taken_for_a_claims_own_either(desk: ClaimDesk) -> None:
    desk.prepare()
    other = ClaimRef("vms", "other", "u-2")
    desk.allocate(other, CARDS[1])
    desk.prepare(other)
    path = desk.folder / RECORD
    path.write_text(Path(desk.places.records, "u-2.json").read_text())
    desk.restart()
    third = ClaimRef("vms", "third", "u-3")
    desk.allocate(third)
    with raises_code(BAD_CLAIM_RECORD, match="it is the record of the claim with the UID u-2"):
        desk.prepare(third)


def test_a_broken_record_goes_with_its_claim(desk: ClaimDesk) -> None:
    with_broken_record(desk)
    desk.unprepare()
    assert desk.files() == []
    assert desk.allocator.usage().known


def test_a_broken_record_that_can_not_be_replaced_stays_and_holds_its_devices(desk: ClaimDesk) -> None:
    with_broken_record(desk)
    desk.step = partial(_full, "u-1.json")
    with raises_code(CLAIM_FILES_FAILED):
        desk.prepare()
    desk.step = str
    assert desk.held() == {ONE: "ResourceClaim with the UID u-1"}
    assert desk.files() == ALL


def test_a_broken_record_of_an_earlier_boot_is_void(desk: ClaimDesk) -> None:
    desk.prepare()
    (desk.folder / RECORD).write_text("")
    desk.boot = "boot-2"
    desk.restart()
    assert desk.held() == {}
    desk.allocate(OTHER)
    desk.prepare(OTHER)
    assert not (desk.folder / RECORD).exists()


def test_one_that_breaks_after_the_first_record_of_this_boot_is_not_void(desk: ClaimDesk) -> None:
    desk.boot = "boot-2"
    desk.restart()
    with_broken_record(desk)
    assert desk.held() == {ONE: "ResourceClaim with the UID u-1"}


@pytest.mark.parametrize("boot", ["boot-1", "boot-0"])
def test_a_record_of_a_newer_version_blocks_its_own_claim_alone_and_goes_with_its_boot(
    desk: ClaimDesk, boot: str
) -> None:
    with_broken_record(desk, json.dumps({"version": 3, "boot": boot, "content": {}}))
    desk.allocate(OTHER, CARDS[1])
    desk.prepare(OTHER)
    if boot == "boot-0":
        desk.prepare()
        return
    with raises_code(BAD_CLAIM_RECORD, match="its version is 3, and this program knows 2"):
        desk.prepare()
    desk.allocate(OTHER)
    with raises_code(BAD_CLAIM_RECORD, match="its version is 3"):
        desk.prepare(OTHER)
    desk.unprepare()
    desk.prepare(OTHER)


def test_a_record_of_before_checksums_is_read_and_its_claim_keeps_its_devices(desk: ClaimDesk) -> None:
    first = desk.prepare()
    stored = json.loads((desk.folder / RECORD).read_text())
    (desk.folder / RECORD).write_text(json.dumps({"version": 1, "boot": stored["boot"], **stored["content"]}) + "\n")
    desk.restart()
    desk.claims.clear()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}
    assert desk.prepare() == first


def test_a_changed_record_is_not_believed(desk: ClaimDesk) -> None:
    desk.prepare()
    text = (desk.folder / RECORD).read_text()
    (desk.folder / RECORD).write_text(text.replace(f'"{ONE}"', f'"{TWO}"'))
    desk.restart()
    assert desk.held() == {ONE: "ResourceClaim with the UID u-1"}


@pytest.mark.parametrize("again", [ClaimRef("vms", "other", "u-9"), AGAIN], ids=["device", "name"])
def test_who_had_a_device_or_name_before_the_boot_has_it_no_more_once_it_is_another_claims(
    desk: ClaimDesk, again: ClaimRef
) -> None:
    """The kubelet has lost that claim: it neither prepares nor unprepares it."""
    desk.prepare()
    desk.boot = "boot-2"
    desk.restart()
    assert desk.held() == {ONE: "ResourceClaim vms/gpu"}
    desk.allocate(again)
    desk.prepare(again)
    assert desk.held() == {ONE: f"ResourceClaim {again}"}


@pytest.mark.parametrize("broken", [CLAIM_FILE, METADATA])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"devices": [1]}'])
def test_a_broken_file_of_a_claim_is_written_again(desk: ClaimDesk, broken: str, content: str) -> None:
    first = desk.prepare()
    good = (desk.folder / broken).read_bytes()
    (desk.folder / broken).write_text(content)
    assert desk.prepare() == first
    assert (desk.folder / broken).read_bytes() == good


def test_where_the_api_server_is_away_nothing_is_prepared(desk: ClaimDesk) -> None:
    desk.claims.clear()
    with raises_code(CLAIM_UNREADABLE):
        desk.prepare()
    assert (desk.files(), desk.held()) == ([], {})


# Time


def test_a_call_that_takes_too_long_is_answered_and_goes_on(desk: ClaimDesk) -> None:
    desk.patience = ANSWER_SECONDS
    desk.restart()

    async def calls(loop: TimedLoop) -> None:
        gate = asyncio.Event()
        ask = desk.get_claim

        async def slow(namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]:
            await gate.wait()
            return await ask(namespace, name, uid, seconds)

        desk.get_claim = slow  # type: ignore[method-assign]
        for call in (desk.preparer.prepare, desk.preparer.unprepare):
            with shown("LK813"):
                await too_late(loop, call(REF))
        other = ClaimRef("vms", "other", "u-9")
        await desk.preparer.unprepare(other)  # nobody waits for another's claim
        gate.set()
        (device,) = await desk.preparer.prepare(REF)
        assert device.device == dra_name(ONE)
        assert desk.woken == [Wakeup.ALLOCATED]  # prepared once

    run_timed(calls)


async def too_late(loop: TimedLoop, call: Coroutine[Any, Any, object]) -> None:
    """A call whose time is over before it has done anything more."""
    calling = asyncio.create_task(call)
    await settled()
    loop.skip(ANSWER_SECONDS)
    await calling


def test_another_process_of_the_driver_is_waited_for(desk: ClaimDesk) -> None:
    other = ClaimDesk.__new__(ClaimDesk)
    other.__dict__.update(desk.__dict__)
    other.patience = ANSWER_SECONDS
    other.restart()

    async def calls(loop: TimedLoop) -> None:
        async with desk.lock:
            with raises_code(PREPARE_LATE, match="waiting for another process of this driver"):
                await too_late(loop, other.preparer.prepare(REF))
        await desk.preparer.prepare(REF)
        third = ClaimRef("vms", "third", "u-9")
        desk.allocate(third)
        with raises_code(DEVICE_TAKEN):  # the other has been told by the record
            await other.preparer.prepare(third)

    run_timed(calls)


# What the pages of these errors show


@contextmanager
def shown(code: str, **real: str) -> Iterator[None]:
    """The block says what the page of an error shows, but for these words."""
    with raises_code(LauncherkitError.codes()[code]) as caught:
        yield
    said = caught.value.message
    for page, here in real.items():
        said = said.replace(here, {"kubelet": "/var/lib/kubelet", "cdi": "/var/run/cdi"}[page])
    assert [f"{code}: {said}"] == provoked("dra-node", code)


def test_the_pages_show_what_is_said(desk: ClaimDesk) -> None:
    claim = desk.claims["vms/gpu"]["metadata"]
    with shown("LK811"):
        claim["uid"] = "u-2"
        desk.prepare()
    claim["uid"] = "u-1"
    with shown("LK815", cdi=desk.places.cdi):
        desk.step = partial(_full, f"{DRIVER}_{REF.uid}.json")
        desk.prepare()
    desk.step = str
    desk.prepare()
    (desk.folder / RECORD).write_text("")
    other = ClaimRef("vms", "other", "u-9")
    desk.allocate(other)
    with shown("LK814", kubelet=desk.places.kubelet_dir):
        desk.prepare(other)


def _full(name: str, path: str) -> None:
    if path.endswith(name):
        raise UNWRITABLE_FILE(f"{path}: {os.strerror(errno.ENOSPC)}", "Make room.", file=path)
