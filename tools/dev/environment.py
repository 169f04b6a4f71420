"""The environment of a checkout: made of the pins in ``tools/requirements``, and made again when they change."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.tiers import ENVIRONMENT
from tools.dev.console import UNAVAILABLE, fail, say

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "tools" / "requirements"
VENV = ROOT / os.environ.get(ENVIRONMENT, ".venv")
STAMP = VENV / "launcherkit-dev.json"
LOG = VENV / "launcherkit-dev.log"
PROFILES = {"demo": ("runtime.txt", "build.txt"), "dev": ("dev.txt",), "release": ("dev.txt", "release.txt")}
"""What an environment is made of; each has all that the one before it has."""
FUZZER_FROM, FUZZER_TO = (3, 11), (3, 13)


def make_environment(profile: str) -> None:
    """Make .venv, or bring it up to date; a moment where nothing has changed."""
    if is_made(profile):  # without the lock, which takes the right to write here
        return
    with lock():
        if is_made(profile):
            return
        now = digest()
        if _stamp().get("digest") != now or not os.access(VENV / "bin" / "python", os.X_OK):
            _make_empty()
        elif rank(_stamp()["profile"]) >= rank(profile):
            say(f"what {VENV.name} has of launcherkit was replaced; installing this checkout again ...")
        for requirements in PROFILES[profile]:
            _pip("--require-hashes", "-r", str(REQUIREMENTS / requirements))
        # Without isolation the build needs no network: hatchling is pinned with the rest.
        for distribution in _distributions(profile).values():
            _pip("--no-deps", "--no-build-isolation", "--editable", str(distribution))
        STAMP.write_text(json.dumps({"digest": now, "profile": profile}))


def is_made(profile: str) -> bool:
    """Whether the environment has what is needed, and runs this checkout: `pip install .` in its shell changes that."""
    done = _stamp()
    return (
        done.get("digest") == digest()
        and rank(done["profile"]) >= rank(profile)
        and os.access(VENV / "bin" / "python", os.X_OK)
        and all(any(VENV.glob(f"lib/*/site-packages/_editable_impl_{name}.pth")) for name in _distributions(profile))
    )


def _distributions(profile: str) -> dict[str, Path]:
    """What is installed from this checkout: the demonstration needs neither plugin nor lab."""
    others = {"launcherkit_plugin": ROOT / "plugin", "launcherkit_lab": ROOT / "lab"}
    return {"launcherkit": ROOT} | ({} if profile == "demo" else others)


def rank(profile: str) -> int:
    """How much an environment has; -1 for one that a later ./dev made."""
    return list(PROFILES).index(profile) if profile in PROFILES else -1


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Keep two runs from making the environment at once."""
    with open(VENV.parent / ".venv.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest() -> str:
    """Changes whenever the environment has to be made anew: pins, project, Python, or a checkout that was moved."""
    whole = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{ROOT}\n".encode())
    projects = [ROOT / folder / "pyproject.toml" for folder in (".", "plugin", "lab")]
    for path in [*projects, *sorted(REQUIREMENTS.glob("*.txt"))]:
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
        return stamp if {"digest", "profile"} <= stamp.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}


def _make_empty() -> None:
    if (VENV / "pyvenv.cfg").exists() and not LOG.exists():
        fail(f"{VENV} is there and was not made by ./dev; move it away", UNAVAILABLE)
    say(f"making {VENV.name}, half a minute the first time ...")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    LOG.write_text("")  # the sign that it is ours, from the first moment on
    if find_spec("ensurepip"):
        _logged([sys.executable, "-m", "venv", str(VENV)])
    else:
        _logged([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
        _get_pip()


def _get_pip() -> None:
    """Debian and Ubuntu keep pip in a package of its own. It is fetched and not installed, which takes no root."""
    if shutil.which("apt-get") is None:
        fail(f"this Python ({sys.executable}) has no ensurepip; install it", UNAVAILABLE)
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        own = [f"--option=Dir::State={folder}", f"--option=Dir::Cache={folder}", "--option=Acquire::Languages=none"]
        for words in (["update"], ["download", "python3-pip-whl"]):
            _logged(["apt-get", "--quiet", *own, *words], folder)
        for package in Path(folder).glob("*.deb"):
            _logged(["dpkg-deb", "--extract", str(package), folder])
        for wheel in Path(folder).rglob("pip-*.whl"):
            _logged([str(VENV / "bin" / "python"), f"{wheel}/pip", "install", "--no-index", "--no-deps", str(wheel)])


def _pip(*arguments: str) -> None:
    _logged(
        [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    )


def _logged(command: Sequence[str], folder: str | Path = ROOT) -> None:
    """Run a command quietly; if it fails, show the end of what it said and exit."""
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, check=False
        ).returncode
    if code:
        say("\n".join(LOG.read_text(errors="replace").splitlines()[-30:]))
        fail(f"`{' '.join(command)}` failed; the whole log is {LOG}", UNAVAILABLE)


# What only some need


def bind_libvirt() -> None:
    """Compile libvirt's Python module. No pin can say its version: that must not exceed the installed library's."""
    if not _imports("libvirt"):
        asked = subprocess.run(
            ["pkg-config", "--modversion", "libvirt"], stdout=subprocess.PIPE, text=True, check=False
        )
        if asked.returncode:
            fail("pkg-config doesn't find libvirt, whose headers the guest tier needs", UNAVAILABLE)
        _pip(f"libvirt-python<={asked.stdout.strip()}")


def get_fuzzer() -> None:
    """Install atheris, of which there are wheels for Linux on x86-64 alone."""
    if _imports("atheris"):
        return
    if not FUZZER_FROM <= sys.version_info[:2] <= FUZZER_TO or os.uname().machine != "x86_64":
        fail("the fuzzers need atheris, which is there for Python 3.11 to 3.13 on x86-64", UNAVAILABLE)
    _add("fuzz.txt")


def get_helm() -> None:
    """Install Helm's library, 75 MB, for those who have an API to compare the chart with."""
    if not _imports("helm_python"):
        _add("helm.txt")


def get_pyright() -> None:
    """Install pyright with its node, 240 MB, where there is a wheel of that."""
    if os.uname().machine in ("x86_64", "aarch64") and not _imports("pyright"):
        _add("types.txt")


def get_sphinx() -> None:
    """Install what makes the site of the documentation."""
    if not _imports("furo"):
        _add("docs.txt")


def _imports(module: str) -> bool:
    probe = [str(VENV / "bin" / "python"), "-c", f"import {module}"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _add(requirements: str) -> None:
    """Install what has wheels alone, and not for every machine."""
    _pip("--require-hashes", "--only-binary=:all:", "-r", str(REQUIREMENTS / requirements))


# What runs in it


def call(program: str, *arguments: str, **more: str) -> int:
    """Run a program of the environment in the repository's root, with ``more`` variables."""
    sys.stdout.flush()
    env = os.environ | {"PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"} | more
    if "pytest" in arguments:  # each of its processes compiles every test anew where none may keep that: 6 s, not 0
        env.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run([VENV / "bin" / program, *arguments], cwd=ROOT, env=env, check=False).returncode


def open_shell() -> int:
    """The user's shell, where the user stands, with the environment's programs found first."""
    program = os.environ.get("SHELL") or "/bin/sh"
    say(f"launcherkit and launcherkit-plugin are found here, in {VENV / 'bin'}; `exit` leaves")
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return subprocess.run([program], env=os.environ | {"PATH": path, "VIRTUAL_ENV": str(VENV)}, check=False).returncode
