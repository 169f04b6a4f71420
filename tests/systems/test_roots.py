"""The roots of other systems: where they come from, what becomes of one that is lost or broken, what is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.systems import roots
from tests.systems.pythons import find_python
from tests.systems.roots import CACHE, MIRROR, PACKAGES, CannotMake, cache_folder, mirror_in, root_of
from tests.tiers import IN_SYSTEMS, TIERS

# What stands in for mmdebstrap and for chroot: a root is a folder in which `programs` are said.
_MMDEBSTRAP = """#!/bin/sh
for word; do system=$root; root=$mirror; mirror=$word; done
echo "$system $mirror" >>"$LOG"
printf '%s\\n' "$@" >"$LOG.arguments"
mkdir -p "$root/made" && echo half >"$root/programs"
[ ! -e "$LOG.fail" ] || { echo "E: no network" >&2; exit 1; }
echo "Python 3.13.5" >"$root/programs"
"""
_CHROOT = '#!/bin/sh\nexec cat "$1/programs"\n'


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for mmdebstrap notes its calls; ``log.fail`` makes it fail."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"mmdebstrap": _MMDEBSTRAP, "chroot": _CHROOT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "log"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {CACHE: str(tmp_path / "cache"), MIRROR: "http://mirror.example/debian"}


def make(env: dict[str, str]) -> str:
    with root_of("sid", env) as (root, programs):
        assert root == Path(env[CACHE], "sid")
        assert (root / "programs").exists()
        return programs


def calls(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_a_root_is_made_once_and_found_again(log: Path, env: dict[str, str]) -> None:
    assert [make(env), make(env)] == ["Python 3.13.5"] * 2
    assert calls(log) == 1
    assert env[MIRROR] in log.read_text()


def _lose(root: Path) -> None:
    roots.remove(root)


def _lose_a_part(root: Path) -> None:
    (root / "programs").unlink()
    (root / "programs").mkdir()  # cat fails, as a program that is gone would


def _come_from_another_recipe(root: Path) -> None:
    (root / ".launcherkit").write_text("of yesterday's packages")


@pytest.mark.parametrize("breaks", [_lose, _lose_a_part, _come_from_another_recipe])
def test_a_root_that_is_lost_broken_or_of_another_recipe_is_made_again(
    log: Path, env: dict[str, str], breaks: Callable[[Path], None]
) -> None:
    make(env)
    breaks(Path(env[CACHE], "sid"))
    assert make(env) == "Python 3.13.5"
    assert calls(log) == 2


def test_a_root_that_can_not_be_made_leaves_nothing_and_says_why(log: Path, env: dict[str, str]) -> None:
    Path(f"{log}.fail").touch()
    with pytest.raises(
        CannotMake, match=r"(?s)sid can't be made; it comes from http://mirror\..* network\?.*no network"
    ):
        make(env)
    assert [path.name for path in Path(env[CACHE]).iterdir()] == ["sid.lock"]


def test_one_that_can_not_be_made_again_does_not_take_the_old_one_along(log: Path, env: dict[str, str]) -> None:
    make(env)
    _come_from_another_recipe(Path(env[CACHE], "sid"))
    Path(f"{log}.fail").touch()
    with pytest.raises(CannotMake):
        make(env)
    assert Path(env[CACHE], "sid", "made").is_dir()


def test_who_is_not_root_is_reported(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotMake, match="sudo"):
        make(env)


def test_the_mirror_is_the_one_of_this_machines_apt() -> None:
    targets = [
        "http://security.example/debian-security/ main",
        "http://mirror.example/debian/ contrib",
        "http://mirror.example/debian/ main",
    ]
    assert mirror_in(targets) == "http://mirror.example/debian/"


def test_a_machine_without_a_mirror_of_debian_is_told_how_to_name_one() -> None:
    with pytest.raises(CannotMake, match=f"{MIRROR}=http"):
        mirror_in(["http://archive.example/ubuntu/ main"])


def test_a_root_has_what_the_tiers_need_that_run_in_it() -> None:
    lacking = {
        (tier.name, program)
        for tier in TIERS
        if tier.name in IN_SYSTEMS
        for program, packages in (*tier.needs, *tier.builds)
        if not {"dpkg", *PACKAGES} & set(packages)  # dpkg is in every root
    }
    assert lacking == set()


def test_a_bare_root_has_what_the_readme_asks_for_and_no_more(log: Path, env: dict[str, str]) -> None:
    with root_of("bare-trixie", env):
        pass
    assert log.read_text() == f"trixie {env[MIRROR]}\n"
    options = Path(f"{log}.arguments").read_text().splitlines()
    assert [option for option in options if "include" in option or "hook" in option] == [
        "--include=ca-certificates,git,python3"
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({CACHE: "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/launcherkit/systems"),
        ({}, str(Path.home() / ".cache/launcherkit/systems")),
    ],
)
def test_the_cache_can_be_moved(given: dict[str, str], expected: str) -> None:
    assert str(cache_folder(given)) == expected


def test_a_python_on_path_counts_only_where_it_runs_and_is_of_the_version(tmp_path: Path) -> None:
    for name, text in {"python3.12": "echo 3.12", "python3.13": "echo no such version >&2; exit 127"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": str(tmp_path)}
    assert find_python("3.12", env) == str(tmp_path / "python3.12")
    assert find_python("3.13", env) is None
    assert find_python("3.14", env) is None


def test_a_python_of_pyenv_is_found_that_nobody_has_chosen(tmp_path: Path) -> None:
    (tmp_path / "3.12.1" / "bin").mkdir(parents=True)
    programs = {"pyenv": f"echo {tmp_path}/3.12.1", "3.12.1/bin/python3.12": "echo 3.12"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    assert find_python("3.12", {"PATH": str(tmp_path)}) == f"{tmp_path}/3.12.1/bin/python3.12"
