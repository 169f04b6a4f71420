"""``./dev requirements``: pins the newest versions that pyproject.toml allows."""

from __future__ import annotations

import shutil
import subprocess

from tools.dev.console import UNAVAILABLE, fail
from tools.dev.environment import ROOT, make_environment

NO_XML = ("--no-emit-package=lxml",)
NO_TEMPLATES = ("--no-emit-package=jinja2", "--no-emit-package=markupsafe")
_AIOHTTP = ["aiohappyeyeballs", "aiohttp", "aiohttp-retry", "aiosignal", "attrs", "frozenlist", "propcache", "yarl"]
NO_AIOHTTP = [f"--no-emit-package={name}" for name in _AIOHTTP]
PINS = {
    "runtime.txt": ["pyproject.toml"],
    # The hooks' image and the device plugin's have no templates to render. The latter is without kubernetes.aio too,
    # and without lxml, for it has no domain documents: docs/decisions/0010-the-plugins-image-has-no-lxml.md.
    "sidecar.txt": ["pyproject.toml", "--extra=sidecar", *NO_TEMPLATES],
    "plugin.txt": ["pyproject.toml", "--extra=sidecar", "--group=plugin", *NO_TEMPLATES, *NO_XML, *NO_AIOHTTP],
    # Nor has the webhook's image documents or gRPC.
    "webhook.txt": ["pyproject.toml", "--group=webhook", *NO_TEMPLATES, *NO_XML],
    "build.txt": ["--group=build"],
    "dev.txt": ["pyproject.toml", "--extra=sidecar", "--extra=completion", "--group=dev"],
    "lab.txt": ["lab/pyproject.toml", "--constraint=tools/requirements/dev.txt"],
    # In the images' build, and in release.txt.
    "sbom.txt": ["--group=sbom", "--constraint=tools/requirements/dev.txt"],
    "release.txt": [
        "--group=release",
        "--constraint=tools/requirements/dev.txt",
        "--constraint=tools/requirements/sbom.txt",
    ],
    # Apart from dev.txt, for it has no wheels for some machines and Pythons that all else runs on.
    "fuzz.txt": ["--group=fuzz"],
    "helm.txt": ["--group=helm"],
    # Apart from dev.txt, for it brings node.
    "types.txt": ["--group=types", "--constraint=tools/requirements/dev.txt"],
    # Apart from dev.txt, for only who makes the site needs it.
    "docs.txt": ["--group=docs", "--constraint=tools/requirements/dev.txt"],
}


def pin() -> int:
    """Pin the newest versions that pyproject.toml allows, one resolution for all Pythons and platforms."""
    uv = shutil.which("uv") or fail("pinning needs uv, and there is none on PATH", UNAVAILABLE)
    for name, sources in PINS.items():
        # No header and no index: a file must not tell where it was made.
        options = ["--upgrade", "--universal", "--python-version=3.11", "--generate-hashes"]
        options += ["--no-header", "--no-emit-index-url"]
        constraint = [] if name == "runtime.txt" else ["--constraint", "tools/requirements/runtime.txt"]
        output = ["--output-file", f"tools/requirements/{name}"]
        code = subprocess.run(
            [uv, "pip", "compile", "--quiet", *options, *constraint, *sources, *output], cwd=ROOT, check=False
        ).returncode
        if code:
            return code
    make_environment("dev")  # of the new pins
    return 0
