"""Publishes a release that a folder has: images and other artefacts to a registry, wheels and sdists to an index.

What is there already with the same bytes is left alone, so that what failed half-way can be repeated. What is there
with other bytes is not overwritten.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import requests

from tools.release.oci import Layout
from tools.release.provenance import sha256

_ABSENT = re.compile(
    r"(manifest|name|repository name) (unknown|not known)|NAME_UNKNOWN|MANIFEST_UNKNOWN|not found", re.I
)
"""How registries say that there is no such image."""
_HASH = re.compile(r"""href=["'](?:[^"'#]*/)?([^"'#/]+)#sha256=([0-9a-f]{64})""")
_JSON = "application/vnd.pypi.simple.v1+json"


class CannotPublish(Exception):
    """A registry or an index refuses; the text says which, what it said, and what to do."""


class Registry(NamedTuple):
    """Where images go."""

    name: str
    """Host, perhaps a port and a path."""
    plain_http: bool = False

    def address(self, reference: str) -> str:
        """As skopeo has it."""
        return f"docker://{self.name}/{reference}"

    def digest(self, reference: str) -> str | None:
        """Of what a reference leads to; None: there is nothing.

        Raises:
            CannotPublish: the registry doesn't say.
        """
        done = self._skopeo("inspect", "--raw", *self._tls("--tls-verify"), self.address(reference))
        if done.returncode == 0:
            return f"sha256:{hashlib.sha256(done.stdout).hexdigest()}"
        if _ABSENT.search(done.stderr.decode()):
            return None
        raise self._refused(reference, done.stderr)

    def push(self, layout: Layout, reference: str, digest: str) -> None:
        """Push what a layout has, byte for byte.

        Raises:
            CannotPublish: the registry doesn't take it.
        """
        options = ["--quiet", "--all", "--preserve-digests", *self._tls("--dest-tls-verify")]
        done = self._skopeo("copy", *options, f"oci:{layout.folder}:{reference}", self.address(reference))
        if done.returncode:
            raise self._refused(reference, done.stderr)
        if (there := self.digest(reference)) != digest:
            raise CannotPublish(f"{self.name}/{reference}: the registry has {there} now, and {digest} was pushed")

    def _tls(self, option: str) -> Sequence[str]:
        return [f"{option}=false"] if self.plain_http else []

    def _skopeo(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(["skopeo", *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except FileNotFoundError:
            raise CannotPublish("there is no program skopeo: apt-get install skopeo") from None

    def _refused(self, reference: str, stderr: bytes) -> CannotPublish:
        said = stderr.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "skopeo said nothing"
        if logged := re.fullmatch(r'time="[^"]*" level=\w+ msg="(.*)"', last):
            last = logged[1].replace('\\"', '"')
        host = self.name.partition("/")[0]
        remedies = {
            "unauthorized|denied|authentication": f"; log in with `skopeo login {host}`, as somebody who may push",
            "server gave HTTP response to HTTPS": "; it has no TLS: give --plain-http if that is meant",
            "connection refused|no such host|i/o timeout|EOF": "; is it there? Repeat the command when it is",
        }
        remedy = next((text for pattern, text in remedies.items() if re.search(pattern, last, re.I)), "")
        return CannotPublish(f"{self.name}/{reference}: {last}{remedy}")


class Index(NamedTuple):
    """Where wheels and sdists go."""

    address: str
    """Of the upload, as twine has it."""
    pages: str
    """Where pip looks; the pages of the projects are below it."""

    def published(self, project: str) -> Mapping[str, str]:
        """The SHA-256 of each file that a project has.

        Raises:
            CannotPublish: the index doesn't say.
        """
        page = f"{self.pages.rstrip('/')}/{project}/"
        try:
            answer = requests.get(page, headers={"Accept": f"{_JSON}, text/html;q=0.1"}, timeout=60)
        except requests.RequestException as error:
            raise CannotPublish(f"{page}: {error}") from None
        if answer.status_code == 404:
            return {}
        if not answer.ok:
            raise CannotPublish(
                f"{page}: {answer.status_code} {answer.reason}; --index-pages names where pip finds the index's files"
            )
        if answer.headers.get("Content-Type", "").startswith(_JSON):
            return {each["filename"]: each["hashes"].get("sha256", "") for each in answer.json()["files"]}
        return dict(_HASH.findall(answer.text))

    def upload(self, files: Iterable[Path], credentials: Mapping[str, str]) -> None:
        """Upload files with twine, which has its credentials from ``credentials``, a keyring or ~/.pypirc.

        Raises:
            CannotPublish: the index doesn't take them.
        """
        command = [sys.executable, "-m", "twine", "upload", "--non-interactive", "--disable-progress-bar"]
        command += ["--repository-url", self.address, *map(str, files)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=credentials
        )
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            remedy = "; give ~/.pypirc, or TWINE_USERNAME and TWINE_PASSWORD" if "Credential" in str(said) else ""
            raise CannotPublish("\n".join([f"{self.address}: twine says:", *said[-8:]]) + remedy)


class Step(NamedTuple):
    """One thing to publish."""

    what: str
    digest: str
    where: str
    there: str | None
    """The digest of what is there now."""

    @property
    def conflict(self) -> bool:
        """Whether something else is there."""
        return self.there not in (None, self.digest)


def plan_registry(layout: Layout, registry: Registry) -> list[Step]:
    """What is to be pushed: signatures first, so that nothing is ever there without its own."""
    there = layout.references()
    names = sorted(there, key=lambda name: (not name.endswith(".sig"), name))
    return [Step(name, there[name]["digest"], f"{registry.name}/{name}", registry.digest(name)) for name in names]


def plan_index(files: Sequence[Path], index: Index) -> list[Step]:
    """What is to be uploaded."""
    steps = []
    found: dict[str, Mapping[str, str]] = {}
    for path in files:
        project = re.sub(r"[-_.]+", "-", re.split(r"-\d", path.name)[0]).lower()
        if project not in found:
            found[project] = index.published(project)
        steps.append(Step(path.name, sha256(path), index.address, found[project].get(path.name)))
    return steps


def refuse_conflicts(steps: Iterable[Step]) -> None:
    """Refuse to publish if something else is there.

    Raises:
        CannotPublish: it is; nothing has been published yet.
    """
    if taken := [step for step in steps if step.conflict]:
        lines = [f"{step.where} has {step.what} already, as {step.there}, not {step.digest}" for step in taken]
        raise CannotPublish("\n".join([*lines, "nothing was published; a version that people have doesn't change"]))
