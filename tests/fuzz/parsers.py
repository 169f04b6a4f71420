"""Everything that is parsed out of text: the first byte says by what, the rest is the text."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from launcherkit import LauncherkitError
from launcherkit.errors import Collector
from launcherkit.host.facts import scan_all
from launcherkit.host.snapshot import dump, load
from launcherkit.host.umockdev import parse_recording
from launcherkit.model.address import MdevAddress, PciAddress, UsbAddress
from launcherkit.model.policy import Policy
from launcherkit.model.request import DraClaim, Request
from launcherkit.request.dra import DraFiles
from launcherkit.request.envfile import read_env_file
from launcherkit.request.environment import Environment
from launcherkit.request.policy import policy_of, read_policy_annotation, resolve_policy
from launcherkit.request.vmi import Vmi, read_vmi
from tests.support.authorised import is_within

_CLAIM = os.path.join("resourceclaims", "c", "r")


@cache
def _scratch(process: int) -> str:
    """A folder of a process's own: others are forked from one that has imported this, and parse at the same time."""
    folder = tempfile.mkdtemp(prefix="launcherkit-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, _CLAIM))
    return folder


def addresses(data: bytes) -> None:
    """What parses is written as something that parses to the same."""
    text = data.decode("utf-8", "surrogateescape")
    for kind in PciAddress, MdevAddress, UsbAddress:
        with suppress(ValueError):
            address = kind.parse(text)
            assert kind.parse(str(address)) == address


def environment(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for prefix in "PCI_RESOURCE", "MDEV_PCI_RESOURCE", "USB_RESOURCE":
        found = Environment({f"{prefix}_X": text})
        allocation, _, errors = found.read(f"{prefix}_X")
        assert len(set(allocation.entries)) == len(allocation.entries)
        Collector(errors).raise_if_any()


def env_file(data: bytes) -> None:
    path = _write("env", data)
    for name in read_env_file(path).variables:
        assert name.replace("=", "") == name != ""


def vmi(data: bytes) -> None:
    for request in read_vmi(data).requests:
        assert request.name
        if request.dra_claim is not None:  # becomes a path
            assert not {"/", "\0"} & set(request.dra_claim.name + request.dra_claim.request_name)
            assert not {".", ".."} & {request.dra_claim.name, request.dra_claim.request_name}


def annotation(data: bytes) -> None:
    """Whatever is written, no policy comes of it that the operator's doesn't cover (T1)."""
    text = data.decode("utf-8", "replace")
    read_policy_annotation(text)
    for operator in policy_of({}), policy_of({"siblings": "none", "managed": True}), Policy("group", "positional"):
        with suppress(LauncherkitError):
            flags = {"siblings": operator.siblings, "pairing": operator.pairing, "managed": operator.managed}
            found = resolve_policy(flags, {}, Vmi((), {"launcherkit.io/policy": text}), None)
            assert is_within(found, operator)


def metadata(data: bytes) -> None:
    _write(os.path.join(_CLAIM, "x-metadata.json"), data)
    DraFiles(_scratch(os.getpid())).read(Request("gpus", 0, "a", None, None, DraClaim("claim", "c", "r")))


def snapshot(data: bytes) -> None:
    """What is read is written as it is read."""
    facts = load(data.decode("utf-8", "replace"))
    assert load(dump(facts)) == facts


def recording(data: bytes) -> None:
    scan_all(parse_recording(data.decode("utf-8", "replace")))


PARSERS: tuple[Callable[[bytes], None], ...] = (
    addresses,
    environment,
    env_file,
    vmi,
    annotation,
    metadata,
    snapshot,
    recording,
)


def run(data: bytes) -> None:
    """Parse; what is refused is refused in short lines."""
    if not data:
        return
    try:
        PARSERS[data[0] % len(PARSERS)](data[1:])
    except LauncherkitError as error:
        for leaf in error.leaves():
            assert all((leaf.code, leaf.remedy)), repr(leaf)
            assert len(leaf.message) < 2000, f"a message of {len(leaf.message)} characters: {leaf.message[:200]}"


def _write(name: str, data: bytes) -> str:
    path = os.path.join(_scratch(os.getpid()), name)
    with open(path, "wb") as file:
        file.write(data)
    return path
