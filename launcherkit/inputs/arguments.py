"""The inputs of a translation on a command line, the same for every command that needs them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcherkit.errors import BadVmi, UnreadableFile
from launcherkit.host.source import host_of
from launcherkit.model.plan import Note
from launcherkit.model.policy import POLICY_KEYS, Policy
from launcherkit.model.request import NetworkStatus
from launcherkit.process.options import text_from
from launcherkit.request.dra import DRA_ROOT, DraFiles
from launcherkit.request.envfile import EnvFile, read_env_file
from launcherkit.request.fields import read_file
from launcherkit.request.policy import Layer, resolve_policy
from launcherkit.request.vmi import Vmi, read_vmi

if TYPE_CHECKING:  # commands that only read a host need no pipeline, which takes as long to import as the rest
    from launcherkit.pipeline import DraSource, HostSource, Translation

STUB_DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"
"""Replaces the domain if there is none: the allocated devices can be looked at nonetheless."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs of a translation."""

    domain_xml: bytes
    domain_name: str
    env: Mapping[str, str]
    host: HostSource
    dra: DraSource
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


def add_input_arguments(
    parser: argparse.ArgumentParser, env: Mapping[str, str], *, domain_required: bool = True
) -> None:
    """Declare ``--domain``, ``--vmi``, ``--env-file`` and the other inputs, and the policy's flags."""
    group = parser.add_argument_group("inputs")
    domain = text_from("--domain", env)
    group.add_argument(
        "--domain",
        metavar="FILE",
        default=domain,
        required=domain_required and domain is None,
        help="the domain's XML; - reads standard input",
    )
    group.add_argument(
        "--vmi",
        metavar="FILE",
        default=text_from("--vmi", env),
        help="the VirtualMachineInstance, or its VirtualMachine, as JSON, or as YAML in a file *.yaml; without it "
        "every device in the environment is requested",
    )
    group.add_argument(
        "--env-file",
        metavar="FILE",
        default=text_from("--env-file", env),
        help="the container's environment, one NAME=VALUE per line; default: this process's environment",
    )
    group.add_argument(
        "--dra-dir",
        metavar="DIR",
        default=text_from("--dra-dir", env) or DRA_ROOT,
        help=f"where DRA drivers put device metadata for requests by claim (default: {DRA_ROOT})",
    )
    group.add_argument(
        "--network-status",
        metavar="FILE",
        default=text_from("--network-status", env),
        help="the pod's annotation k8s.v1.cni.cncf.io/network-status, which says which device each SR-IOV network has; "
        "default: only the variables say it",
    )
    group.add_argument(
        "--host",
        metavar="DIR|SNAPSHOT.json|X.umockdev|none",
        default=text_from("--host", env),
        help="where host facts come from: the root above sys/ and dev/, a file of `launcherkit snapshot`, a umockdev "
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
        options.add_argument(key.option, choices=list(key.kind.words), help=text)
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
        raise UnreadableFile(
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
    document: Mapping[str, Any] = parse_document(data, path, BadVmi, remedy, LARGE)
    return document


def policy_flags(args: argparse.Namespace) -> Layer:
    """The decisions of the flags of `add_policy_arguments`."""
    given = ((key, getattr(args, key.field)) for key in POLICY_KEYS if key.option)
    return {key.field: key.kind.words[word] for key, word in given if word}
