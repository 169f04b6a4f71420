"""Calls ``launcherkit translate`` for a case, with its own files and variables, and nothing from this machine."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import zlib
from typing import Any, NoReturn

from launcherkit import inputs as translate
from launcherkit.errors import BAD_GOLDEN_CASE
from launcherkit.golden.case import CASE_FILE, DOMAIN_FILE, DRA_FOLDER, HOST_FILE, Case
from launcherkit.process.arguments import variable_of
from launcherkit.request.documents import LARGE, parse_document
from launcherkit.request.fields import read_file

_READ = ("--domain", "--vmi", "--env-file", "--host", "--policy", "--dra-dir", "--network-status")
_WRITTEN = ("--output", "--plan")
_SYSFS_ROOT = "LAUNCHERKIT_SYSFS_ROOT"
_REMEDY = "A case takes those flags of `launcherkit translate` that make a document from files."


class Scratch:
    """Directories for what a case needs besides its own: inputs that are made for it, and outputs."""

    def __init__(self, directory: str) -> None:
        self.made, self.out = os.path.join(directory, "made"), os.path.join(directory, "out")
        self.directories = (self.made, self.out)
        for path in self.directories:
            os.mkdir(path)

    def make(self, name: str, data: bytes) -> str:
        """Write a file among the inputs; returns its path."""
        path = os.path.join(self.made, name)
        with open(path, "wb") as file:
            file.write(data)
        return path


class _Flags(argparse.ArgumentParser):
    """Raises an error where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        raise BAD_GOLDEN_CASE(f"{CASE_FILE}, flags: {message}", _REMEDY, file=CASE_FILE, key="flags")


def translate_case(case: Case, scratch: Scratch, domain: bytes | None = None) -> tuple[bytes, dict[str, Any]]:
    """Run the command on a case.

    Args:
        case: the inputs.
        scratch: empty, or used for the same case before.
        domain: replaces the case's domain document.

    Returns:
        The document and the plan's JSON.

    Raises:
        BAD_GOLDEN_CASE: the flags are not for a case.
        LauncherkitError: whatever the command raises.
    """
    env = _environment(case, scratch)
    args = _arguments(case, scratch, env)
    if domain is not None:
        args.domain = scratch.make(DOMAIN_FILE, domain)
    with contextlib.redirect_stderr(io.StringIO()):  # the notes, which are in the plan
        translate.run(args, env)
    # A plan names the files that answered requests; where the case lies is not its business.
    plan = read_file(args.plan).replace(json.dumps(case.directory + os.sep)[1:-1].encode(), b"")
    return read_file(args.output), json.loads(plan)


def _environment(case: Case, scratch: Scratch) -> dict[str, str]:
    """The variables of the case; in ``LAUNCHERKIT_*``, names of files are relative to the case."""
    env = dict(case.yaml.env)
    for flag in (*_READ, *_WRITTEN):
        name = variable_of(flag)
        if env.get(name):
            env[name] = _located(flag, env[name], case, scratch)
    if env.get(_SYSFS_ROOT):
        env[_SYSFS_ROOT] = _located("--host", env[_SYSFS_ROOT], case, scratch)
    return env


def _arguments(case: Case, scratch: Scratch, env: dict[str, str]) -> argparse.Namespace:
    """The command's arguments: flags for the files of the case, then the case's own flags."""
    # Never this machine's folder; without its own, the case is a container that got nothing by DRA.
    files = ["--domain", _domain(case, scratch), "--dra-dir", os.path.join(case.directory, DRA_FOLDER)]
    if case.vmi is not None:
        files += ["--vmi", _vmi(case, scratch)]
    if case.has_host:
        files += ["--host", os.path.join(case.directory, HOST_FILE)]
    parser = _Flags(prog="translate", add_help=False, allow_abbrev=False)
    translate.add_arguments(parser, env)
    args = parser.parse_args([*files, *case.yaml.flags])
    for flag in (*_READ, *_WRITTEN):
        name = flag.lstrip("-").replace("-", "_")
        if getattr(args, name):
            setattr(args, name, _located(flag, getattr(args, name), case, scratch))
    policy = case.policy_values()
    if policy is not None:
        if args.policy:
            raise BAD_GOLDEN_CASE(
                f"{CASE_FILE}: it has a policy, and also a flag --policy",
                "Leave out one of them.",
                file=CASE_FILE,
                key="policy",
            )
        if policy.get("sysfsRoot"):
            policy["sysfsRoot"] = _located("--host", policy["sysfsRoot"], case, scratch)
        args.policy = scratch.make("policy.json", json.dumps(policy).encode())
    if args.host is None and not env.get(_SYSFS_ROOT) and not (policy or {}).get("sysfsRoot"):
        args.host = "none"  # never this machine's sysfs
    if args.diff:
        raise BAD_GOLDEN_CASE(f"{CASE_FILE}, flags: --diff makes no document", _REMEDY, file=CASE_FILE, key="flags")
    args.output = args.output or os.path.join(scratch.out, "translated.xml")
    args.plan = args.plan or os.path.join(scratch.out, "plan.json")
    return args


def _located(flag: str, path: str, case: Case, scratch: Scratch) -> str:
    """The path that a flag names: inputs are in the case, outputs never."""
    if flag == "--host" and path == "none":
        return path
    if path == "-" and flag in _READ:
        raise BAD_GOLDEN_CASE(
            f"{CASE_FILE}: {flag} - reads standard input, which a case doesn't have",
            _REMEDY,
            file=CASE_FILE,
            key="flags",
        )
    return os.path.join(scratch.out if flag in _WRITTEN else case.directory, path)


def _domain(case: Case, scratch: Scratch) -> str:
    """The path of the domain document, unpacked if the case has only ``.gz``: no one wants megabytes of test data."""
    path = os.path.join(case.directory, DOMAIN_FILE)
    if os.path.exists(path) or not os.path.exists(path + ".gz"):
        return path
    try:
        return scratch.make(DOMAIN_FILE, gzip.decompress(read_file(path + ".gz")))
    except (OSError, EOFError, zlib.error) as problem:
        raise BAD_GOLDEN_CASE(f"{path}.gz: {problem}", "Pack it again with gzip.", file=path + ".gz") from problem


def _vmi(case: Case, scratch: Scratch) -> str:
    """The path of the VMI as JSON, made from YAML if that is what the case has."""
    path = os.path.join(case.directory, case.vmi or "")
    if path.endswith(".json"):
        return path
    remedy = "Write it as `kubectl get vmi NAME -o yaml` prints it."
    values = parse_document(read_file(path), path, BAD_GOLDEN_CASE, remedy, LARGE)
    return scratch.make(case.vmi or "", json.dumps(values, default=str).encode())
