"""The inputs of a translation on a command line, the same for every command that needs them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from launcherkit.atomic import is_special, write_all_atomically
from launcherkit.colour import colours_for, paint_diff
from launcherkit.diff import unified_diff
from launcherkit.errors import BAD_VMI, UNREADABLE_FILE, UNWRITABLE_FILE
from launcherkit.host.source import host_of
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.plan import Note
from launcherkit.model.policy import POLICY_KEYS, Policy
from launcherkit.process.arguments import Options
from launcherkit.process.edge import print_notes, stdout_is_terminal, write_stdout
from launcherkit.request.dra import DRA_ROOT, DraFiles
from launcherkit.request.envfile import EnvFile, read_env_file
from launcherkit.request.fields import read_file
from launcherkit.request.policy import Layer, resolve_policy
from launcherkit.request.vmi import Vmi, read_vmi

if TYPE_CHECKING:  # commands that only read a host need no pipeline, which takes as long to import as the rest
    from launcherkit.pipeline import HostSource, Translation
    from launcherkit.request.networks import NetworkStatus

HOST_SOURCES = "DIR|SNAPSHOT.json|X.umockdev|none"
"""What ``--host`` may be."""

STUB_DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"
"""Replaces the domain if there is none: the allocated devices can be looked at nonetheless."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs of a translation."""

    domain_xml: bytes
    domain_name: str
    env: Mapping[str, str]
    host: HostSource
    dra: DraFiles
    vmi: Vmi | None
    policy: Policy
    network_status: NetworkStatus | None = None
    notes: tuple[Note, ...] = ()
    """What the operator should know about the inputs."""

    def translate(self, libvirt: tuple[int, ...] | None = None) -> Translation:
        """Run the pipeline, for a version of libvirt if that is known; raises what it raises."""
        from launcherkit.pipeline import translate

        translation = translate(
            self.domain_xml,
            env=self.env,
            host=self.host,
            vmi=self.vmi,
            policy=self.policy,
            dra=self.dra,
            network_status=self.network_status,
            name=self.domain_name,
            libvirt=libvirt,
        )
        return translation._replace(notes=(*self.notes, *translation.notes)) if self.notes else translation


class RememberingHost:
    """A host that keeps its answer, so that a translation and what is said of it are based on the same facts.

    Args:
        topology: whether the places of devices on the host are always among them.
    """

    def __init__(self, host: HostSource, *, topology: bool = False) -> None:
        self._host = host
        self._topology = topology
        self.answer = NO_FACTS

    def facts(
        self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), *, topology: bool = False
    ) -> HostFacts:
        """As the host's own; raises what it raises."""
        self.answer = self._host.facts(addresses, mdevs, topology=topology or self._topology)
        return self.answer


def add_input_arguments(
    parser: argparse.ArgumentParser, env: Mapping[str, str], *, domain_required: bool = True
) -> None:
    """Declare ``--domain``, ``--vmi``, ``--env-file`` and the other inputs, and the policy's flags."""
    add = Options(parser.add_argument_group("inputs"), env).add
    domain = add("--domain", "FILE", "the domain's XML; - reads standard input")
    domain.required = domain_required and domain.default is None
    add(
        "--vmi",
        "FILE",
        "the VirtualMachineInstance, or its VirtualMachine, as JSON, or as YAML in a file *.yaml; without it "
        "every device in the environment is requested",
    )
    add(
        "--env-file",
        "FILE",
        "the container's environment, one NAME=VALUE per line; default: this process's environment",
    )
    add("--dra-dir", "DIR", "where DRA drivers put device metadata for requests by claim", DRA_ROOT)
    add(
        "--network-status",
        "FILE",
        "the pod's annotation k8s.v1.cni.cncf.io/network-status, which says which device each SR-IOV network has; "
        "default: only the variables say it",
    )
    add(
        "--host",
        HOST_SOURCES,
        "where host facts come from: the root above sys/ and dev/, a file of `launcherkit snapshot`, a umockdev "
        "recording, or none; default: this machine",
    )
    add_policy_arguments(parser)


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--policy``, and the options for single decisions of a policy."""
    group = parser.add_argument_group(
        "policy",
        "Flags override variables, which override the policy file; the VMI's annotation can only narrow the result.",
    )
    group.add_argument("--policy", metavar="FILE", help="a policy in YAML or JSON (see `launcherkit explain policy`)")
    for key in POLICY_KEYS:
        if not key.option:
            continue
        options = group.add_mutually_exclusive_group() if key.off_option else group
        text = f"{key.help} (default: {key.default_word})"
        alone: dict[str, Any] = {"nargs": "?", "const": key.alone} if key.alone else {}
        options.add_argument(key.option, choices=list(key.kind.words), help=text, **alone)
        if key.off_option:
            text = f"the same as {key.option} {key.off}"
            options.add_argument(key.off_option, dest=key.field, action="store_const", const=key.off, help=text)


def read_inputs(args: argparse.Namespace, env: Mapping[str, str], domain: tuple[bytes, str] | None = None) -> Inputs:
    """Read every file that the arguments name.

    Args:
        args: parsed.
        env: this process's environment.
        domain: a document and what messages call it, in place of ``--domain``.

    Raises:
        LauncherkitError: whatever the sources find wrong.
    """
    if [args.domain, args.vmi, args.env_file].count("-") > 1:
        raise UNREADABLE_FILE(
            "standard input can be read once, but several inputs are -", "Give files for the others.", file="-"
        )
    vmi = read_vmi(vmi_document(args.vmi), args.vmi) if args.vmi else None
    policy = resolve_policy(policy_flags(args), env, vmi, args.policy)
    held = read_env_file(args.env_file, policy.extra_prefixes) if args.env_file else EnvFile(env, ())
    if domain is None:
        from launcherkit.domain.xml import MAX_BYTES

        domain = read_file(args.domain, MAX_BYTES + 1), "standard input" if args.domain == "-" else args.domain
    host, dra = host_of(args.host, env, policy), DraFiles(args.dra_dir)
    status = None
    if args.network_status:
        from launcherkit.request.networks import read_network_status  # few VMs have SR-IOV networks

        status = read_network_status(read_file(args.network_status), args.network_status)
    return Inputs(*domain, held.variables, host, dra, vmi, policy, status, held.notes)


def vmi_document(path: str) -> bytes | Mapping[str, Any]:
    """A VMI for `read_vmi`: the bytes of a JSON file, or the parsed content of a file that is YAML by its name."""
    data = read_file(path)
    if not path.endswith((".yaml", ".yml")):
        return data
    from launcherkit.request.documents import LARGE, parse_document

    remedy = "Give what `kubectl get vmi NAME -o yaml` prints."
    document: Mapping[str, Any] = parse_document(data, path, BAD_VMI, remedy, LARGE)
    return document


def policy_flags(args: argparse.Namespace) -> Layer:
    """The decisions of the flags of `add_policy_arguments`."""
    words = ((key, getattr(args, key.field)) for key in POLICY_KEYS if key.option)
    return {key.field: key.kind.words[word] for key, word in words if word}


# The pipeline on files: the arguments of ``launcherkit translate``, and what it does.


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_input_arguments(parser, env)
    group = parser.add_argument_group("output")
    text = "write the document there (by rename) instead of to standard output"
    options = Options(group, env)
    options.add("--output", "FILE", text, short="-o")
    options.add("--plan", "FILE", "write the plan there, as JSON; - is standard output")
    options.switch("--diff", "print a unified diff instead of the document")


def _coloured(diff: bytes, env: Mapping[str, str]) -> bytes:
    text = diff.decode("utf-8", "surrogateescape")
    return paint_diff(text, colours_for(True, env)).encode("utf-8", "surrogateescape")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Translate and write; nothing is written if anything is wrong."""
    _check_outputs(args.output, args.plan)
    inputs = read_inputs(args, env)
    host = RememberingHost(inputs.host)
    translation = replace(inputs, host=host).translate()
    result = translation.domain_xml
    if args.diff:
        result = unified_diff(inputs.domain_xml, result, inputs.domain_name)
    printed = _coloured(result, env) if args.diff and stdout_is_terminal() else result
    files = {} if args.output in (None, "-") else {args.output: result}
    if args.plan:
        from launcherkit.show.documents import plan_document

        plan = (json.dumps(plan_document(translation, host.answer), indent=2) + "\n").encode()
        if args.plan == "-":
            printed = plan
        else:
            files[args.plan] = plan
    write_all_atomically(files)
    print_notes(translation.notes, env)
    if "-" in (args.output or "-", args.plan):
        write_stdout(printed)
    return 0


def _check_outputs(output: str | None, plan: str | None) -> None:
    """Check that the document and the plan go to different places.

    Raises:
        UnwritableFile: names the place.
    """
    if plan is None:
        return
    to_stdout = output in (None, "-")
    if plan == "-" and to_stdout:
        where, remedy = "standard output", "Give --output FILE, or a file for the plan."
    elif plan != "-" and output is not None and not to_stdout and _is_one_file(output, plan):
        where, remedy = plan, "Give each a file of its own."
    else:
        return
    raise UNWRITABLE_FILE(f"{where}: it can't have both the document and the plan", remedy, file=where)


def _is_one_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other) and not is_special(one)
