"""How large a file may be: one that is larger is refused, and never read in part."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from launcherkit.cli.main import PROGRAM
from launcherkit.errors import LauncherkitError, SeveralErrors
from launcherkit.host.source import Host
from launcherkit.process.program import run_program
from launcherkit.request.fields import read_file
from launcherkit.request.policy import read_policy_file
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.webhook.injection import read_injections

KIB, MIB = 1 << 10, 1 << 20


def test_no_more_is_read_than_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert [read_file(str(path), limit) for limit in (3, 10, 11)] == [b"012", b"0123456789", b"0123456789"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0123456789")))
    assert read_file("-", 3) == b"012"


def test_a_file_without_end_is_not_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_file(str(path))) == 64 * MIB


@pytest.mark.parametrize("read", [Host.from_snapshot, Host.from_umockdev])
def test_a_host_of_more_than_64_mib_is_refused_for_that(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "host"
    with path.open("wb") as file:
        file.truncate(64 * MIB + 1)
    with pytest.raises(LauncherkitError, match=f"{path}: larger than 64 MiB"):
        read(path)


def translated(path: Path) -> object:
    return run_program(PROGRAM, ["translate", "--domain", str(path), "--host", "none", "--output", f"{path}.out"], {})


def injection(path: Path) -> object:
    return read_injections(path.parent)


class Reader(NamedTuple):
    name: str
    text: bytes
    limit: int
    """In bytes."""
    read: Callable[[Path], object]


READERS = [
    Reader("domain.xml", b"<domain><devices/></domain>", 8 * MIB, translated),
    Reader("policy.yaml", b"siblings: none\n", 64 * KIB, lambda path: read_policy_file(str(path))),
    Reader("plugin.yaml", b"resources: [{select: [{vendors: [10de]}]}]\n", MIB, lambda path: read_config(str(path))),
    Reader("injection.yaml", b"name: one\nwhen: {}\nadd: {volumes: [{name: a}]}\n", MIB, injection),
]


def filled(reader: Reader, size: int) -> bytes:
    """A file of so many bytes that says the same; its comment is of long characters, for YAML is read one by one."""
    begin, end = (b"<!--", b"-->") if reader.name.endswith(".xml") else (b"#", b"\n")
    characters, odd = divmod(size - len(reader.text + begin + end), 4)
    return reader.text + begin + b" " * odd + "\N{MUSICAL SYMBOL G CLEF}".encode() * characters + end


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_file_may_have_so_many_bytes_and_not_one_more(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / reader.name
    path.write_bytes(filled(reader, reader.limit))
    reader.read(path)
    path.write_bytes(filled(reader, reader.limit + 1))
    with pytest.raises((LauncherkitError, SeveralErrors), match=rf"{reader.name}.* more than {reader.limit} bytes"):
        reader.read(path)
