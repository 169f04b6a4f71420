"""A release in a folder: all that is published, before anything is.

Nothing here talks to a registry or an index that something is published to.
"""

from __future__ import annotations

import gzip
import io
import json
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import yaml
from hatchling.builders.utils import get_reproducible_timestamp

from deploy.chart import CHART
from launcherkit import __version__
from tools.release.build import PROVENANCE, ROOT, CannotBuild, build_all
from tools.release.images import REGISTRY, TARGETS, Image, build, output_of
from tools.release.oci import DamagedLayout, Layer, Layout
from tools.release.options import BUILDER
from tools.release.provenance import Source, sha256, statement
from tools.release.signing import Key, sign_all

SUMS, SIGNATURE, PUBLIC_KEY = "SHA256SUMS", "SHA256SUMS.sig", "cosign.pub"
CHART_REFERENCE = f"charts/{CHART.name}:{__version__}"
"""Helm wants the chart's name last; an image has the name alone."""
FILES_REFERENCE = f"launcherkit:{__version__}"
"""The artefact that has what is neither image nor chart."""
PROGRAMS = {target: f"launcherkit{'-plugin' if target in ('plugin', 'webhook') else ''}" for target in TARGETS}
"""What each image has on PATH."""
_TITLE = "org.opencontainers.image.title"


class Plan(NamedTuple):
    """What a release is made of."""

    source: Source
    registry: str
    """Host, perhaps a port and a path: what images, chart and signatures name."""
    architectures: tuple[str, ...]
    base: str = ""
    """The images' base; empty: this machine's distribution."""
    builder: str = BUILDER
    """The URI of who builds."""


def assemble(plan: Plan, folder: Path) -> None:
    """Make all of a release, unless the folder has it already.

    Raises:
        CannotBuild: something can't be made, or the folder has something else.
    """
    if folder.is_dir() and any(folder.iterdir()):
        check(plan, folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as aside:
        made = Path(aside, "release")
        _assemble(plan, made)
        made.replace(folder)  # whole, or not at all


def _assemble(plan: Plan, folder: Path) -> None:
    say("wheels and sdists")
    built = build_all(folder)
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    output_of(*command)
    layout = Layout(folder / "oci")
    layout.create()
    for wheel in built:
        if wheel.suffix == ".whl":
            _copy_bill(wheel, folder)
    say("the documentation")
    with tempfile.TemporaryDirectory() as site:
        output_of(sys.executable, "-m", "sphinx", "-W", "-q", "-c", str(ROOT / "docs"), str(ROOT), site)
        shutil.rmtree(Path(site, ".doctrees"))
        name = f"launcherkit-docs-{__version__}"
        (folder / f"{name}.tar.gz").write_bytes(archive(name, files_below(Path(site))))
    _add_chart(layout, folder, plan)
    bases = {}
    for target in TARGETS:
        parts = []
        for architecture in plan.architectures:
            say(f"image {target} for {architecture}")
            (image,) = build([target], REGISTRY, plan.base, architecture)
            _look_into(image, f"{target}-{architecture}", PROGRAMS[target], folder)
            parts.append(f"launcherkit-{target}:{__version__}-{architecture}")
            output_of("buildah", "push", "--quiet", "--format=oci", image.name, f"oci:{layout.folder}:{parts[-1]}")
            name, _, digest = image.base.rpartition("@sha256:")
            bases[f"{name}?arch={architecture}"] = digest
        layout.merge(f"launcherkit-{target}:{__version__}", parts)
    tools = {name: version(name) for name in ("hatchling", "cyclonedx-bom", "argparse-manpage")}
    said = statement(
        [path for path in folder.iterdir() if path.is_file()],
        plan.source,
        ROOT / "tools" / "requirements" / "build.txt",
        plan.builder,
        {**tools, "python": platform.python_version(), "buildah": output_of("buildah", "--version").split()[2]},
        {"command": "./dev release", "registry": plan.registry, "architectures": list(plan.architectures)},
        {
            f"{plan.registry}/{name}": each["digest"].removeprefix("sha256:")
            for name, each in layout.references().items()
        },
        bases,
    )
    (folder / PROVENANCE).write_text(json.dumps(said, indent=1) + "\n")
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    (folder / SUMS).write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in names))


def seal(folder: Path, registry: str, key: Key | None) -> None:
    """Sign a release, and add its files to its layout. Another time with the same key it changes nothing."""
    layout = Layout(folder / "oci")
    layout.forget(".sig")
    for name in (SIGNATURE, PUBLIC_KEY):
        (folder / name).unlink(missing_ok=True)
    if key:
        (folder / SIGNATURE).write_text(key.sign((folder / SUMS).read_bytes()) + "\n")
        (folder / PUBLIC_KEY).write_bytes(key.public())
    files = sorted(path for path in folder.iterdir() if path.is_file())
    layers = [Layer(path.read_bytes(), "application/octet-stream", {_TITLE: path.name}) for path in files]
    kind = "application/vnd.launcherkit.release.v1"
    layout.add_artefact(FILES_REFERENCE, Layer(b"{}", "application/vnd.oci.empty.v1+json"), layers, artifactType=kind)
    if key:
        sign_all(layout, registry, key)


def check(plan: Plan, folder: Path) -> None:
    """Compare what a folder has with what it should have.

    Raises:
        CannotBuild: it is no release, one of something else, or damaged.
    """
    try:
        said = json.loads((folder / PROVENANCE).read_bytes())["predicate"]["buildDefinition"]
        sums = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
    except FileNotFoundError:
        raise CannotBuild(f"{folder} is not empty, and has no release; name another folder") from None
    had = said["externalParameters"] | {"commit": said["resolvedDependencies"][0]["digest"]["gitCommit"]}
    wanted = {
        "registry": plan.registry,
        "architectures": list(plan.architectures),
        "commit": plan.source.commit,
    }
    for name, value in wanted.items():
        if had[name] != value:
            raise CannotBuild(f"{folder} has a release whose {name} is {had[name]}, not {value}; name another folder")
    for digest, name in sums:
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise CannotBuild(f"{folder / name} is not as {SUMS} says; make the release again in another folder")
    try:
        Layout(folder / "oci").check()
    except DamagedLayout as error:
        raise CannotBuild(f"{error}; make the release again in another folder") from None


def files_below(folder: Path) -> dict[str, bytes]:
    """The content of all files in a folder, by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def archive(top: str, files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz, whose bytes depend on the files alone."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as outer, tarfile.open(fileobj=outer, mode="w") as inner:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, get_reproducible_timestamp()
            inner.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def chart_files(registry: str) -> dict[str, bytes]:
    """The files of the chart by name, with the images of a registry."""
    files = files_below(CHART)
    for name in ("README.md", "values.yaml", "values.schema.json"):
        files[name] = files[name].replace(f"{REGISTRY}/".encode(), f"{registry}/".encode())
    return files


def _add_chart(layout: Layout, folder: Path, plan: Plan) -> None:
    files = chart_files(plan.registry)
    packed = archive(CHART.name, files)
    (folder / f"{CHART.name}-{__version__}.tgz").write_bytes(packed)
    about = yaml.safe_load(files["Chart.yaml"])
    annotations = {_TITLE: about["name"], "org.opencontainers.image.version": about["version"]}
    layout.add_artefact(
        CHART_REFERENCE,
        Layer(json.dumps(about, sort_keys=True).encode(), "application/vnd.cncf.helm.config.v1+json"),
        [Layer(packed, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")],
        annotations={**annotations, "org.opencontainers.image.revision": plan.source.commit},
    )


def _copy_bill(wheel: Path, folder: Path) -> None:
    """Copy a wheel's bill of materials out of it."""
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if ".dist-info/sboms/" in name:
                (folder / f"{Path(name).name.removesuffix('.cdx.json')}-{__version__}.cdx.json").write_bytes(
                    opened.read(name)
                )


def _look_into(image: Image, name: str, program: str, folder: Path) -> None:
    """Start an image's program, and copy its bills of materials: Python's packages and the distribution's."""
    with _container(image.name) as container:
        said = output_of("buildah", "run", "--isolation=chroot", container, "--", program, "--version")
        if said.split()[-1:] != [__version__]:
            raise CannotBuild(f"{image.name}: {program} --version prints {said!r}, not {__version__}")
        root = Path(output_of("buildah", "mount", container).strip())
        for path in sorted((root / "usr/share/sbom").glob("*.cdx.json")):
            kind = "packages" if path.name.startswith("packages") else "python"
            shutil.copyfile(path, folder / f"image-{name}-{__version__}.{kind}.cdx.json")


@contextmanager
def _container(image: str) -> Iterator[str]:
    name = output_of("buildah", "from", "--pull-never", image).strip()
    try:
        yield name
    finally:
        output_of("buildah", "rm", name)


def say(text: str) -> None:
    """Tell how far it is; stdout has the result alone."""
    sys.stderr.write(f"./dev release: {text}\n")
    sys.stderr.flush()
