"""``./dev test``: which tests run, where, and what has to be there before."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tiers import API, BROWSER, IMAGES, IN_SYSTEMS, SLOW, TIERS, Tier
from tools.dev.console import UNAVAILABLE, fail
from tools.dev.environment import ROOT, bind_libvirt, call, get_helm, get_pyright, get_sphinx, make_environment
from tools.dev.packages import apt_get, get_tiers


def run_tests(arguments: argparse.Namespace, passed_on: list[str]) -> int:
    """Run what was asked for, and return the exit code."""
    if arguments.system or arguments.python or arguments.bare:
        return _elsewhere(arguments, passed_on)
    if arguments.without and not arguments.all:
        fail("--without leaves a tier out of --all, which isn't given", 2)
    tiers = _needed_tiers(arguments)
    make_ready(tiers)
    if IMAGES in tiers:  # a release is made of them
        make_environment("release")
        get_sphinx()
    if arguments.repeat:
        return call("python", "-m", "tests.repeat", str(arguments.repeat), str(arguments.beside), *passed_on)
    if arguments.tier:
        return call("python", "-m", "pytest", "--tier", arguments.tier, *passed_on)
    if arguments.all:
        left_out = [f"--without={name}" for name in arguments.without]
        return call("python", "-m", "pytest", "--all-tiers", *left_out, *passed_on)
    # On all cores, but for the tiers: each of those has one daemon, cluster or machine for all of its tests. There are
    # more processes than cores, because tests wait, for 40 s in all.
    options = ["--base", f"--workers={2 * (os.cpu_count() or 1)}"]
    options += ["--override-ini=tmp_path_retention_policy=failed"]  # in memory nothing is kept that isn't needed
    if not os.access(ROOT, os.W_OK):
        options += ["-p", "no:cacheprovider"]
    more = in_memory(Path("/dev/shm"), os.environ)  # noqa: S108  # it has no other name
    return call("python", "-m", "pytest", *options, *passed_on, **more)


def make_ready(tiers: Sequence[Tier]) -> None:
    """Make the environment, and get what the tiers need."""
    if tiers:
        get_tiers(tiers)
    make_environment("dev")
    if any(tier.module for tier in tiers):
        bind_libvirt()
    if API in tiers and API.program():
        get_helm()
    if BROWSER in tiers:
        get_sphinx()
    if SLOW in tiers:
        get_pyright()


def _needed_tiers(arguments: argparse.Namespace) -> Sequence[Tier]:
    """The tiers that must be able to run for what was asked."""
    if arguments.all:
        return [tier for tier in TIERS if tier.name not in arguments.without]
    return [tier for tier in TIERS if tier.name == arguments.tier]


def in_memory(folder: Path, env: Mapping[str, str], room_mib: int = 1024) -> dict[str, str]:
    """The variable that has tests make their trees of small files in memory: on a disk that costs a quarter more CPU.

    Nothing where there is no room, programs may not be run from there, or the user has said where temporary files go.
    """
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return {}
    room = filesystem.f_bavail * filesystem.f_frsize >> 20
    usable = room >= room_mib and not filesystem.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)
    return {"TMPDIR": str(folder)} if usable and "TMPDIR" not in env else {}


def _check_place(system: str | None, systems: Sequence[str], python: str | None, pythons: Sequence[str]) -> None:
    """Exit if the system that was asked for, or else the Python, is none that there is."""
    option, value, choices = ("--system", system, systems) if system else ("--python", python, pythons)
    if value not in choices:
        fail(f"{option} is one of {', '.join(choices)}, not {value}", 2)


def _elsewhere(arguments: argparse.Namespace, passed_on: list[str]) -> int:
    """Run the tests in other systems or with other Pythons; the last lines say what ran where."""
    from tests.systems.bare import run_bare
    from tests.systems.elsewhere import ALL, OTHERS, Runs, exit_code
    from tests.systems.pythons import PYTHONS
    from tests.systems.roots import SYSTEMS, CannotMake

    system, python = arguments.system, arguments.python
    if not arguments.bare:
        _check_place(system, (ALL, *SYSTEMS), python, (ALL, OTHERS, *PYTHONS))
    if arguments.all or (arguments.tier and arguments.tier not in IN_SYSTEMS):
        fail(f"--system, --python and --bare are for no tier, or for one of {', '.join(IN_SYSTEMS)}", 2)
    if (system or arguments.bare) and shutil.which("mmdebstrap") is None:
        apt_get([("mmdebstrap",)], "the other systems are made by mmdebstrap")
    runs = Runs(ROOT, ["test", *([arguments.tier] if arguments.tier else []), "--", *passed_on], os.environ)
    outcomes = []
    try:
        bare = run_bare(ROOT, runs.words, os.environ) if arguments.bare else None
        for outcome in bare or (runs.in_systems(system) if system else runs.with_pythons(python)):
            outcomes.append(outcome)
    except CannotMake as error:
        fail(str(error), UNAVAILABLE)
    print("\n".join(["", "where the tests ran:", *map(str, outcomes)]), flush=True)
    return exit_code(outcomes)
