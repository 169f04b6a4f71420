"""Every file of state, broken in every way: what is lost, what is said, and whether it heals without hands (T5)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError, UnwritableFile
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.ledger import Entry, Ledger, Record
from launcherkit_plugin.devices.cdi import CdiFiles
from launcherkit_plugin.devices.container_card import CardUuids
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.telemetry.node_features import FeatureFile
from tests.plugin.dra.desk import CARDS, REF, ClaimDesk, dra_name

GPU, OTHER = f"{CARDS[0]}.0", f"{CARDS[1]}.0"
NOBODY = 65534


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _foreign(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def _twice(path: Path) -> None:
    text = path.read_text()
    path.write_text("{" + f'"{next(iter(json.loads(text)))}": 1, ' + text.lstrip()[1:])


def _wrong_types(path: Path) -> None:
    path.write_text(json.dumps({key: [1] for key in json.loads(path.read_text())}))


def _newer(path: Path) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 99, "cdiVersion": "99"}))


WAYS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "newer version": _newer,
    "foreign owner": _foreign,
    "fifo": _fifo,
    "folder": _folder,
    "link": _link,
    "huge": lambda path: path.write_bytes(path.read_bytes() + b" " * (2 << 20)),
    "no rights": lambda path: path.chmod(0),
    "key twice": _twice,
    "wrong types": _wrong_types,
}

ways = pytest.mark.parametrize("way", WAYS)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away, and read one without rights")


# Records of claims


@needs_root
@ways
def test_the_record_of_a_claim(tmp_path: Path, way: str) -> None:
    """Root reads a file without rights. Otherwise the device stays with its claim, and others get theirs."""
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    desk.prepare()
    record = Path(desk.places.records, "u-1.json")
    WAYS[way](record)
    desk.restart()
    others = ClaimRef("vms", "other", "u-9")
    desk.allocate(others, CARDS[1])
    desk.prepare(others)
    whole = way == "no rights"
    broken = desk.preparer.held().broken
    assert list(broken) == ([] if whole else ["u-1"])
    assert desk.held()[GPU] == ("ResourceClaim vms/gpu" if whole else "ResourceClaim with the UID u-1")
    if not whole:
        assert broken["u-1"].error.message.startswith(f"{record}: the record of a prepared ResourceClaim can't be read")
        assert broken["u-1"].devices == frozenset([dra_name(GPU)])
    if way == "newer version":
        with pytest.raises(LauncherkitError, match="its version is 99"):
            desk.prepare()
        desk.unprepare()
    desk.prepare()
    assert desk.held() == {GPU: "ResourceClaim vms/gpu", OTHER: "ResourceClaim vms/other"}
    desk.restart()
    assert desk.preparer.held().broken == {}
    desk.unprepare()
    assert GPU not in desk.held()
    assert not os.path.lexists(record)


@needs_root
@ways
def test_the_record_of_a_claim_after_a_boot(tmp_path: Path, way: str) -> None:
    """Void, whatever it was: its pods have ended."""
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    desk.prepare()
    WAYS[way](Path(desk.places.records, "u-1.json"))
    desk.boot = "boot-2"
    desk.restart()
    assert desk.preparer.held().broken == {}
    others = ClaimRef("vms", "other", "u-9")
    desk.allocate(others)
    desk.prepare(others)
    assert desk.held() == {GPU: "ResourceClaim vms/other"}


@needs_root
@ways
def test_the_mark_of_the_boot(tmp_path: Path, way: str) -> None:
    """Without it a broken record may be of this boot. It is written again with the next record."""
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    desk.prepare()
    WAYS[way](Path(desk.places.records, "boot"))
    desk.restart()
    assert desk.held() == {GPU: "ResourceClaim vms/gpu"}
    others = ClaimRef("vms", "other", "u-9")
    desk.allocate(others, CARDS[1])
    desk.prepare(others)
    assert json.loads(Path(desk.places.records, "boot").read_text())["boot"] == "boot-1"


@needs_root
@ways
@pytest.mark.parametrize("name", ["cdi", "metadata"])
def test_a_file_of_a_claim(tmp_path: Path, way: str, name: str) -> None:
    """The claim keeps its device, and the file is written again when the kubelet asks."""
    desk = ClaimDesk(tmp_path)
    desk.allocate()
    first = desk.prepare()
    path = Path(desk.places.of_claim("u-1") if name == "cdi" else desk.places.metadata_file(REF, first[0].request))
    good = path.read_bytes()
    WAYS["garbage" if name == "metadata" and way in ("key twice", "wrong types", "newer version") else way](path)
    desk.restart()
    assert desk.held() == {GPU: "ResourceClaim vms/gpu"}
    assert desk.prepare() == first
    if way not in ("no rights", "newer version"):  # it is as it was, and readable for the runtime, which is root
        assert (path.is_symlink(), path.read_bytes()) == (False, good)
    desk.unprepare()
    assert [left for left in desk.files() if not left.endswith("/elsewhere")] == []  # where the link led is nobody's


# Records of what was bound


@needs_root
@ways
def test_the_record_of_what_was_bound(tmp_path: Path, way: str) -> None:
    """Only its own group is concerned; it is void after a boot, and else a person must say what was before."""
    ledger = Ledger(str(tmp_path / "binding"), "boot-1")
    records = [
        Record(address, "vfio-pci", "configuration", (), (Entry(address, "nvidia", None, "bound"),))
        for address in map(PciAddress.parse, (GPU, OTHER))
    ]
    for record in records:
        ledger.write(record)
    WAYS[way](tmp_path / f"binding/{GPU}.json")
    ledger = Ledger(str(tmp_path / "binding"), "boot-1")
    if way == "no rights":
        assert ledger.records() == records
        return
    assert ledger.records() == records[1:]
    assert ledger.find([PciAddress.parse(OTHER)]) == records[1]
    with pytest.raises(LauncherkitError) as caught:
        ledger.find([PciAddress.parse(GPU)])
    assert caught.value.code == "LK729"
    assert list(ledger.unreadable()) == [PciAddress.parse(GPU)]
    later = Ledger(str(tmp_path / "binding"), "boot-2")
    assert (later.records(), later.unreadable()) == ([], {})
    later.remove_void()
    assert sorted(os.listdir(tmp_path / "binding")) == sorted(["boot", *(["elsewhere"] if way == "link" else [])])


# What is learnt or made again


@needs_root
@ways
def test_the_uuids_of_cards(tmp_path: Path, way: str) -> None:
    """They are learnt again when the cards have their driver; until then that is said."""
    CardUuids(str(tmp_path), "boot-1").update(GPU, "GPU-1")
    WAYS[way](tmp_path / "gpu-uuids")
    after = CardUuids(str(tmp_path), "boot-1")
    assert (after.problem is None) == (way == "no rights") == (after.get(GPU) is not None)
    after.update(GPU, "GPU-2")
    healed = CardUuids(str(tmp_path), "boot-1")
    assert (healed.problem, healed.get(GPU)) == (None, "GPU-2")


@needs_root
@ways
def test_the_cdi_file_of_a_resource(tmp_path: Path, way: str) -> None:
    """It is written again at the next turn of the daemon that wrote it, and by the next daemon."""
    for daemons in (1, 2):
        folder = tmp_path / str(daemons)
        files = CdiFiles(str(folder), "pci")
        wanted = {"x.io/GPU": {GPU: ["/dev/vfio/1"]}}
        files.replace(wanted)
        path = Path(files.path())
        good = path.read_bytes()
        WAYS[way](path)
        (files if daemons == 1 else CdiFiles(str(folder), "pci")).replace(wanted)
        assert (path.is_symlink(), path.read_bytes(), path.stat().st_mode & 0o777) == (False, good, 0o644)


@needs_root
@ways
def test_the_labels_of_the_node(tmp_path: Path, way: str) -> None:
    file = FeatureFile(str(tmp_path))
    labels = {"launcherkit.io/iommu": "true"}
    file.write(labels)
    path = Path(file.path)
    good = path.read_bytes()
    WAYS[way if way not in ("key twice", "wrong types", "newer version") else "garbage"](path)
    assert file.write(labels)
    assert (path.is_symlink(), path.read_bytes(), path.stat().st_mode & 0o777) == (False, good, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_read_a_record_takes_it_for_broken() -> None:
    # Not in pytest's own folder: each pytest of this user that begins takes it from all others.
    with tempfile.TemporaryDirectory(prefix="lk-") as folder:
        desk = ClaimDesk(Path(folder))
        desk.allocate()
        desk.prepare()
        Path(folder).chmod(0o755)
        Path(desk.places.records, "u-1.json").chmod(0)
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            held = desk.preparer.held()
            os._exit(0 if list(held.broken) == ["u-1"] else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_uuid_that_could_not_be_kept_is_kept_the_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.write_text("in the way")
    uuids = CardUuids(str(folder), "boot-1")
    with pytest.raises(UnwritableFile):
        uuids.update(GPU, "GPU-1")
    folder.unlink()
    uuids.update(GPU, "GPU-1")
    assert CardUuids(str(folder), "boot-1").get(GPU) == "GPU-1"
