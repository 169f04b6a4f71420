"""``launcherkit rehearse``: whether a VM would start, on which nodes, and what its guest would find there."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from launcherkit.colour import colours_for
from launcherkit.compatibility import Version, version, version_of_image
from launcherkit.domain.xml import MAX_BYTES
from launcherkit.errors import CLAIM_NOT_REHEARSED, EX_USAGE, NO_NODES, PLUGIN_NOT_INSTALLED, shown
from launcherkit.host.pci_ids import TABLES
from launcherkit.inputs import add_policy_arguments, policy_flags, vmi_document
from launcherkit.known_problems.checks import OF_NODES
from launcherkit.known_problems.table import known_problems
from launcherkit.model.candidate import NodeCandidate, NodeSource
from launcherkit.model.plan import Note
from launcherkit.process.edge import print_errors, print_message, print_notes, stdout_is_terminal, write_stdout
from launcherkit.process.terminal import drawing_columns, write_text
from launcherkit.rehearse.rehearsal import RehearsedVm, rehearse, rehearse_claim, stand_in
from launcherkit.request.fields import read_file
from launcherkit.request.policy import resolve_policy
from launcherkit.request.vmi import Vmi, read_vmi
from launcherkit.show.documents import rehearsal_document
from launcherkit.show.rehearsal import draw_rehearsal

DESCRIPTION = """\
Show on which nodes a VM would start and what its guest would find there, before it is scheduled: for each node
the devices that it would get, with their siblings, or the codes of what is in the way. Nodes are given as files of
`launcherkit snapshot`, or read from a cluster whose device plugins publish them. Devices are named, grouped and
preferred by the device plugin's own code, which must be installed."""

EPILOG = """\
examples:
  launcherkit rehearse vm.yaml --nodes snapshots/                 every node that has a file there
  launcherkit rehearse vm.yaml --nodes n1.json n2.json --node n1  one of them, and what the guest finds
  launcherkit rehearse vm.yaml --nodes snapshots/ --config plugin.yaml --json
  launcherkit rehearse vm.yaml --nodes n1.json --node n1 --xml    the domain document
  launcherkit rehearse vm.yaml --cluster                          the nodes of a cluster, with what pods have of them
  launcherkit rehearse --claim claim.yaml --nodes snapshots/      the nodes that can satisfy a claim
exit codes: 0 it starts on at least one node, 1 on none; others as usual"""

ENTRY_POINTS = "launcherkit.nodes"
"""The group of entry points by which the device plugin is found."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:  # its flags have no variables
    """Declare the command's arguments."""
    parser.add_argument(
        "vm",
        metavar="VM",
        nargs="?",
        help="the VirtualMachine or VirtualMachineInstance, as JSON, or as YAML in a file *.yaml",
    )
    parser.add_argument(
        "--claim",
        metavar="FILE",
        help="in place of VM: a ResourceClaim by `launcherkit-plugin claim`; which nodes have devices for it",
    )
    group = parser.add_argument_group("nodes")
    where = group.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--nodes",
        metavar="FILE|DIR",
        nargs="+",
        help="snapshots by `launcherkit snapshot`, recordings *.umockdev, or folders of these; a node is named after "
        "its file",
    )
    where.add_argument(
        "--cluster",
        action="store_true",
        help="the nodes of the cluster of KUBECONFIG, as their device plugins publish them (component node-record)",
    )
    group.add_argument("--namespace", metavar="NAME", help="with --cluster: the device plugin's (default: launcherkit)")
    group.add_argument("--node", metavar="NAME", help="only this one, with what the guest finds there")
    group.add_argument(
        "--config", metavar="FILE", help="the device plugin's configuration (default: names as by --auto all)"
    )
    group.add_argument("--auto", choices=("nvidia", "gpu", "all"), help="as for `launcherkit-plugin serve`")
    group = parser.add_argument_group("domain")
    group.add_argument(
        "--domain",
        metavar="FILE",
        help="the domain's XML before its devices are added (default: a template's, with the VM's CPUs and memory)",
    )
    group = parser.add_argument_group("programs")
    group.add_argument(
        "--program",
        metavar="NAME=VERSION",
        action="append",
        type=_program,
        default=[],
        help="a version that the VM would run with, for known problems: KubeVirt=1.9.0, QEMU=10.0, libvirt, Linux; "
        "can be repeated (default: KubeVirt's from the VM's status)",
    )
    add_policy_arguments(parser)
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all of it as JSON")
    form.add_argument("--xml", action="store_true", help="with --node: print the domain document")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Rehearse and print: 0 if it starts on at least one node, else 1.

    Raises:
        LauncherkitError: an input can't be read or is wrong; what keeps the VM from a node is printed.
    """
    for text, remedy in _misuses(args):
        print_message("error", f"launcherkit rehearse: {text}", env)
        print_message("help", remedy, env)
        return EX_USAGE
    if args.claim:
        return _claim(args, env)
    vm, notes = _vm(args, env)
    outcomes = rehearse(vm, _nodes(args, _source(), env))
    print_notes(notes, env)
    if args.json:
        document = json.dumps(rehearsal_document(vm.name, outcomes), indent=2) + "\n"
        write_stdout(document.encode("utf-8", "backslashreplace"))
    elif args.xml:
        (outcome,) = outcomes
        if outcome.translation is None:
            print_errors(outcome.errors, env)
        else:
            write_stdout(outcome.translation.domain_xml)
    else:
        colours, across = colours_for(stdout_is_terminal(), env), drawing_columns(env)
        write_text(draw_rehearsal(vm.name, outcomes, colours, across, whole=len(outcomes) == 1, tables=TABLES), env)
    return 0 if any(outcome.starts for outcome in outcomes) else 1


def _misuses(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """What is wrong about the arguments together, and what to do."""
    if bool(args.vm) == bool(args.claim) or (args.claim and args.xml):
        yield "one VM is rehearsed, or one claim", "Give VM, or --claim without --xml."
    if args.claim and (args.domain or args.program or args.policy or policy_flags(args)):
        yield (
            "a claim is only compared with devices",
            "Leave out --domain, --program and what belongs to a policy.",
        )
    if args.xml and not args.node:
        yield "--xml prints the domain of one node", "Name it with --node."
    if args.cluster and (args.config or args.auto):
        yield "with --cluster the nodes' own configurations count", "Leave out --config and --auto."
    if args.namespace and not args.cluster:
        yield (
            "--namespace says where the device plugin of a cluster is",
            "Leave it out, or give --cluster instead of --nodes.",
        )


def _claim(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print which nodes can satisfy a claim: 0 if one can, else 1."""
    from launcherkit.request.documents import LARGE, parse_documents

    remedy = "Give what `launcherkit-plugin claim` prints."
    documents = parse_documents(read_file(args.claim, LARGE + 1), args.claim, CLAIM_NOT_REHEARSED, remedy, LARGE)
    source = _source()
    able, errors = rehearse_claim(
        _nodes(args, source, env), lambda node: source.answer_claim(node, documents, args.claim)
    )
    if args.json:
        document = {
            "format": "launcherkit.io/claim-rehearsal/v1",
            "nodes": [{"name": name, "devices": devices} for name, devices in able.items()],
            "errors": [{"code": error.code, "message": error.message, "help": error.remedy} for error in errors],
        }
        write_stdout((json.dumps(document, indent=2) + "\n").encode("utf-8", "backslashreplace"))
    else:
        lines = [f"{name}: {', '.join(map(' '.join, devices.items()))}\n" for name, devices in able.items()]
        write_text("".join(lines), env)
        print_errors(errors, env)
    return 0 if able else 1


def _nodes(args: argparse.Namespace, source: NodeSource, env: Mapping[str, str]) -> Sequence[NodeCandidate]:
    if args.cluster:
        nodes = source.published(args.namespace or "launcherkit", args.node, env)
    else:
        nodes = source.recorded(args.nodes, args.config, args.auto, env, for_claim=args.claim is not None)
    return _chosen(nodes, args.node)


def _vm(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[RehearsedVm, Sequence[Any]]:
    document = vmi_document(args.vm)
    vmi, notes = _without_interfaces(read_vmi(document, args.vm))
    policy = resolve_policy(policy_flags(args), env, vmi, args.policy)
    values = stand_in(cast("Mapping[str, Any]", json.loads(document) if isinstance(document, bytes) else document))
    if args.domain:
        domain = read_file(args.domain, MAX_BYTES + 1)
    else:
        from launcherkit.request.template import find_template

        domain = find_template(values.template).render(values.values)
        notes = (*notes, *values.notes)
    kubevirt = version_of_image(vmi.launcher_image)
    versions = ({} if kubevirt is None else {"KubeVirt": kubevirt}) | dict(args.program)
    return RehearsedVm(values.values["name"], domain, vmi, policy, versions), notes


def _program(text: str) -> tuple[str, Version]:
    """``QEMU=10.0`` as a name and a version, of which a suffix such as ``-rc1`` is left out; for argparse."""
    name, _, number = text.partition("=")
    names = {problem.product for problem in known_problems() if problem.affected and problem.check not in OF_NODES}
    parsed = re.fullmatch(r"v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[-+~][\w.+~-]{1,60})?", number, re.ASCII)
    if name not in names or parsed is None:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not NAME=VERSION, with NAME one of {', '.join(sorted(names))}"
        )
    return name, version(parsed[1])


def _without_interfaces(vmi: Vmi) -> tuple[Vmi, tuple[Note, ...]]:
    """A VMI without its SR-IOV interfaces, whose devices are another plugin's (Q5); and the notes on it."""
    names = [request.name for request in vmi.requests if request.is_network]
    if not names:
        return vmi, vmi.notes
    text = f"not rehearsed, because another device plugin has their devices: SR-IOV interfaces {', '.join(names)}"
    others = tuple([request for request in vmi.requests if not request.is_network])
    return vmi._replace(requests=others), (*vmi.notes, Note("interfaces", text))


def node_source() -> NodeSource | None:
    """The device plugin, which nothing here imports: it is found through its entry point; None if it isn't here."""
    from importlib.metadata import entry_points

    return next((cast("NodeSource", each.load()) for each in entry_points(group=ENTRY_POINTS)), None)


def _source() -> NodeSource:
    source = node_source()
    if source is not None:
        return source
    raise PLUGIN_NOT_INSTALLED(
        "launcherkit-plugin is not installed here, and its code names, groups and chooses devices",
        "Install launcherkit-plugin next to launcherkit, in the same version.",
        key="launcherkit-plugin",
    )


def _chosen(nodes: Sequence[NodeCandidate], name: str | None) -> Sequence[NodeCandidate]:
    if name is None:
        return nodes
    named = [node for node in nodes if node.name == name]
    if not named:
        from launcherkit.diff import did_you_mean

        names = [node.name for node in nodes]
        raise NO_NODES(
            f"--node {name}: there is no such node{did_you_mean(name, names)}",
            f"Name one of these: {', '.join(names[:20])}.",
            key="--node",
        )
    return named
