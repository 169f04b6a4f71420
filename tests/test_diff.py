"""Unified diffs that `patch` takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from launcherkit.diff import unified_diff

PAIRS = [
    (b"a\nb\n", b"a\nc\n"),
    (b"a\nb", b"a\nc"),
    (b"a", b"a\n"),
    (b"a\n", b"a"),
    (b"", b"a\n"),
    (b"a\r\nb\r\n", b"a\r\nc\r\n"),
    ("x\u2028y\x0bz\u0085\nb\n".encode(), "x\u2028y\x0bz\u0085\nc\n".encode()),
    (b"a\rb\nc\n", b"a\rb\nd\n"),
    ("caf\u00e9\n".encode("latin-1") + b"b\n", "caf\u00e9\n".encode("latin-1") + b"c\n"),
]


def test_equal_documents_differ_in_nothing() -> None:
    assert unified_diff(b"a\n", b"a\n", "vm.xml") == b""


def test_the_header_names_the_document() -> None:
    assert unified_diff(b"a\n", b"b\n", "vm.xml").splitlines()[:2] == [b"--- vm.xml", b"+++ vm.xml (translated)"]
    assert unified_diff(b"a\n", b"b\n", "old", "new").splitlines()[:2] == [b"--- old", b"+++ new"]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_every_line_says_what_becomes_of_it(before: bytes, after: bytes) -> None:
    body = unified_diff(before, after, "x").split(b"\n")[2:-1]
    assert all(line[:1] in (b" ", b"+", b"-", b"@", b"\\") for line in body)


@pytest.mark.skipif(not shutil.which("patch"), reason="no patch here")
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_patch_makes_the_one_of_the_other(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(before)
    done = subprocess.run(
        ["patch", "--binary", str(file)], input=unified_diff(before, after, "x"), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert (file.read_bytes() if file.exists() else b"") == after
