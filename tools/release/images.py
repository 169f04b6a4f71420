"""``./dev images``: builds the images of ``deploy/images`` with buildah, and says how large they are.

Their base is the distribution of this machine, unpacked by mmdebstrap from the mirrors that its apt has, or any image
that is named. Standard library alone, so that a machine needs no environment for it.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcherkit import __version__

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy" / "images" / "Containerfile"
TARGETS = ("sidecar", "plugin", "launcher", "webhook")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["launcherkit"]
REGISTRY: str = SETTINGS["registry"]
"""As in deploy/values.yaml and in the kustomizations."""
LOCAL_BASE = "localhost/launcherkit-base"
OWN_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
_QEMU = {"amd64": "qemu-system-x86 ovmf", "arm64": "qemu-system-arm qemu-efi-aarch64"}
"""The launcher's emulator with its firmware, by architecture."""
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_CONF = Path("/etc/pip.conf")
_UNWANTED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")


class CannotBuild(Exception):
    """An image can't be built; the text is the end of what the builder said."""


class Image(NamedTuple):
    """An image in buildah's store."""

    name: str
    """With registry and tag."""
    size: int
    """Bytes of all of its layers, unpacked."""
    over_base: int
    """Those of them that are not the base's."""
    base: str
    """The image that it was built on, with its digest: ``debian@sha256:...``."""


def name_of(target: str, registry: str = REGISTRY, architecture: str = OWN_ARCHITECTURE) -> str:
    """The name that the manifests have for a target of the Containerfile; for another architecture the tag says so."""
    return f"{registry}/launcherkit-{target}:{__version__}{_suffix(architecture)}"


def build(
    targets: Sequence[str], registry: str = REGISTRY, base: str = "", architecture: str = OWN_ARCHITECTURE
) -> Iterator[Image]:
    """Build images one after the other; what has not changed comes from the builder's cache.

    Args:
        base: an image to build on; empty: this machine's distribution.
        architecture: ``amd64`` or ``arm64``; this machine has to run its programs, by QEMU where it is another.

    Raises:
        CannotBuild: with the builder's words.
    """
    base = base or _own_base(architecture)
    output_of("buildah", "pull", "--quiet", "--policy=missing", f"--arch={architecture}", base)
    labels = _labels(base)
    for target in targets:
        name = name_of(target, registry, architecture)
        arguments = ["--isolation=chroot", "--layers", f"--file={CONTAINERFILE}", f"--target={target}", f"--tag={name}"]
        arguments += [f"--arch={architecture}", f"--build-arg=BASE={base}", f"--build-arg=QEMU={_QEMU[architecture]}"]
        arguments += [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
        with _secrets() as secrets:
            output_of("buildah", "build", *arguments, *secrets, str(ROOT))
        of = f"{base.partition('@')[0]}@{labels['base.digest']}"
        yield Image(name, _size(name), _size(name) - _size(base), of)


def cannot_run(architecture: str) -> str:
    """Why this machine doesn't run programs of an architecture, and what to do; empty: it does."""
    packages = "apt-get install --no-install-recommends qemu-user-static binfmt-support arch-test"
    try:
        asked = subprocess.run(["arch-test", architecture], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        return f"whether programs for {architecture} run here is asked of arch-test: {packages}"
    if asked.returncode == 0:
        return ""
    enable = "`update-binfmts --enable`, after `mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` in a container"
    return f"programs for {architecture} don't run here: {packages}; if they are there, {enable}"


def save_image(name: str, archive: Path) -> None:
    """Write an image to a file that `ctr images import`, `podman load` and `docker load` take.

    Raises:
        CannotBuild: there is no such image, or no space.
    """
    archive.unlink(missing_ok=True)  # what is there would be added to
    output_of("buildah", "push", "--quiet", name, f"docker-archive:{archive}:{name}")


def _suffix(architecture: str) -> str:
    return "" if architecture == OWN_ARCHITECTURE else f"-{architecture}"


def _own_base(architecture: str) -> str:
    """An image of this machine's distribution with what apt needs and nothing else, made where there is none yet."""
    release = dict(line.rstrip().split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line)
    suite = release["VERSION_CODENAME"].strip('"')
    name = f"{LOCAL_BASE}:{suite}{_suffix(architecture)}"
    if json.loads(output_of("buildah", "images", "--json", "--filter", f"reference={name}")):
        return name
    with tempfile.TemporaryDirectory(prefix="lk-base-") as folder:
        tree, sources = f"{folder}/base.tar", f"{folder}/sources.list"
        Path(sources).write_text(_own_sources(suite))
        options = [f"--architectures={architecture}", *(f"--dpkgopt=path-exclude={pattern}" for pattern in _UNWANTED)]
        # Ubuntu's minbase has no apt.
        output_of("mmdebstrap", "--quiet", "--variant=minbase", "--include=apt", *options, suite, tree, sources)
        container = output_of("buildah", "from", "scratch").strip()
        try:
            output_of("buildah", "add", "--quiet", container, tree, "/")
            output_of("buildah", "config", "--cmd=bash", f"--arch={architecture}", container)
            output_of("buildah", "commit", "--quiet", container, name)
        finally:
            output_of("buildah", "rm", container)
    return name


def _own_sources(suite: str) -> str:
    """The distribution's own repositories, as apt here knows them; those of others are left out."""
    line_format = "$(ORIGIN)|$(RELEASE)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = [line.split("|") for line in output_of("apt-get", "indextargets", "--format", line_format).splitlines()]
    own = {
        line: None for origin, release, line in lines if origin in ("Debian", "Ubuntu") and release.startswith(suite)
    }
    if not own:
        raise CannotBuild(f"apt knows no repository of {suite}; `apt-get update` comes first")
    return "".join(f"{line}\n" for line in own)


def _labels(base: str) -> dict[str, str]:
    """What differs from build to build; the rest is in the Containerfile."""
    (image,) = json.loads(output_of("buildah", "images", "--json", base))
    return {
        "version": __version__,
        "source": SETTINGS["home"],
        **_revision(),
        "base.name": base,
        "base.digest": image["digest"],
    }


def _revision() -> dict[str, str]:
    """The checkout's commit; nothing where the sources came without git, or git isn't here."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    return {"revision": done.stdout.strip()} if done.returncode == 0 else {}


@contextmanager
def _secrets() -> Iterator[list[str]]:
    """This machine's index of packages and authorities, for pip in a build: no layer has them."""
    with tempfile.TemporaryDirectory(prefix="lk-pip-") as folder:
        settings = configparser.ConfigParser(interpolation=None)
        settings.read_string("[global]")
        settings.read(_PIP_CONF)
        options = []
        if _AUTHORITIES.exists():
            settings["global"] = {**settings["global"], "cert": "/run/ca.crt"}
            options.append(f"--secret=id=ca.crt,src={_AUTHORITIES}")
        with open(f"{folder}/pip.conf", "w") as file:
            settings.write(file)
        yield [*options, f"--secret=id=pip.conf,src={folder}/pip.conf"]


def _size(name: str) -> int:
    (image,) = json.loads(output_of("buildah", "images", "--json", name))
    number, unit = image["size"].split()
    return round(float(number) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}[unit])


def output_of(*command: str) -> str:
    """What a program prints.

    Raises:
        CannotBuild: it is not there, or failed.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotBuild(f"there is no program {command[0]}") from None
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()[-20:]
        raise CannotBuild("\n".join([f"`{' '.join(command)}` failed:", *said]))
    return done.stdout


def parser_of_arguments() -> argparse.ArgumentParser:
    """What follows ``--``."""
    parser = argparse.ArgumentParser(prog="./dev images", description="Build the images of deploy/images.")
    parser.add_argument("targets", nargs="*", metavar="IMAGE", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument(
        "--base", default="", metavar="IMAGE", help="to build on, best by digest (default: this distribution)"
    )
    parser.add_argument(
        "--registry", default=REGISTRY, metavar="NAME", help=f"what the names begin with (default: {REGISTRY})"
    )
    parser.add_argument(
        "--arch",
        choices=sorted(_QEMU),
        default=OWN_ARCHITECTURE,
        help="what for (default: this machine's); the programs of another are run by qemu-user-static",
    )
    parser.add_argument("--archives", type=Path, metavar="DIR", help="write each to DIR as well, as IMAGE.tar")
    return parser


def main() -> int:
    """Build what is asked for, and print a line for each image."""
    parser = parser_of_arguments()
    arguments = parser.parse_args()
    unknown = [target for target in arguments.targets if target not in TARGETS]
    if unknown:
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    try:
        for image in build(arguments.targets or TARGETS, arguments.registry, arguments.base, arguments.arch):
            size = f"{image.size / 1e6:.0f} MB  {image.over_base / 1e6:.0f} MB over the base"
            sys.stdout.write(f"{image.name}  {size} {image.base}\n")
            sys.stdout.flush()
            if arguments.archives:
                arguments.archives.mkdir(parents=True, exist_ok=True)
                target = image.name.rpartition("launcherkit-")[2].partition(":")[0]
                save_image(image.name, arguments.archives / f"{target}.tar")
    except (CannotBuild, OSError) as error:
        sys.stderr.write(f"./dev images: {error}\n")
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())
