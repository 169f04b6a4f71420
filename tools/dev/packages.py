"""What comes from the distribution: the programs that tiers need."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from tests.tiers import Tier
from tools.dev.console import UNAVAILABLE, fail, say


def get_tiers(tiers: Sequence[Tier], who: str = "the tests need") -> None:
    """Install what the tiers need and this machine lacks; what can't be installed must be there."""
    if absent := [tier for tier in tiers if tier.has_no_folder()]:
        lines = [f"the {tier.name} tier can't run: set {tier.how_to_get()}" for tier in absent]
        if len(tiers) > 1:
            lines.append(f"or leave them out by name: {' '.join(f'--without {tier.name}' for tier in absent)}")
        fail("\n  ".join(lines), UNAVAILABLE)
    packages = [choice for tier in tiers for choice in tier.packages()]
    if packages:
        apt_get(list(dict.fromkeys(packages)), f"{who} programs that are not here")


def apt_get(choices: Sequence[tuple[str, ...]], reason: str) -> None:
    """Install packages as root, or say the command that does; of each tuple the first name that the release knows."""
    plain = " ".join(names[0] for names in choices)
    command = f"apt-get update && apt-get install --yes --no-install-recommends {plain}"
    if shutil.which("apt-get") is None:
        fail(f"{reason}, and there is no apt-get to install {plain} with", UNAVAILABLE)
    if os.geteuid() != 0:
        fail(f"{reason}; this gets them:\n  sudo sh -c '{command}'", UNAVAILABLE)
    say(f"{reason}: {command}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    _apt(["apt-get", "update", "--quiet"], env)
    names = [next((name for name in some if _is_known(name)), some[0]) for some in choices]
    _apt(["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *names], env)


def _is_known(package: str) -> bool:
    asked = subprocess.run(
        ["apt-cache", "show", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return bool(asked.stdout.strip())


def _apt(command: Sequence[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        say("\n".join(done.stdout.decode(errors="replace").splitlines()[-30:]))
        fail(f"`{' '.join(command)}` failed", UNAVAILABLE)
