"""``launcherkit topology``: where devices are on a host, and which a guest could have."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcherkit.cli.hook import importing_grpc
from launcherkit.cli.rehearse import node_source
from launcherkit.colour import colours_for
from launcherkit.errors import LauncherkitError
from launcherkit.host.pci_ids import TABLES
from launcherkit.host.source import host_of, open_host
from launcherkit.inputs import STUB_DOMAIN, Inputs, add_input_arguments, policy_flags, read_inputs
from launcherkit.model.candidate import WithheldDevice
from launcherkit.model.host import HostFacts
from launcherkit.pipeline import KnownHost
from launcherkit.process.arguments import Options
from launcherkit.process.edge import stdout_is_terminal, write_stdout
from launcherkit.process.terminal import drawing_columns, fitted, terminal_columns
from launcherkit.request.policy import resolve_policy
from launcherkit.show.guest import TreeGuest
from launcherkit.show.host import topology_of
from launcherkit.show.outline import outline, refused_item
from launcherkit.show.state import Report
from launcherkit.show.text import draw
from launcherkit.show.topology import HeldDevice, HostTopology, vm_of, with_holders

if TYPE_CHECKING:
    from launcherkit.rpc.proto.podresources_v1_pb2 import ContainerResources, ListPodResourcesResponse

KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
"""Below the root of the host."""

DESCRIPTION = """\
Draw a host as a tree: NUMA node, root complex, root port or switch, slot, function. Each IOMMU group is a bracket
around its functions; each function has its driver, whether a guest could have it, or the code of the error that says
why not (`launcherkit explain CODE`). GPUs, accelerators and functions bound to a VFIO driver are shown, with
everything in their slots and groups. With a VM, its devices are marked, and the guest's own tree is drawn next to the
host's, or below it if the terminal is narrow. It only reads, and needs no privileges."""

EPILOG = """\
examples:
  launcherkit topology                       this host
  launcherkit topology --host host.json      a snapshot by `launcherkit snapshot`, or a recording *.umockdev
  launcherkit topology --all                 every function
  launcherkit topology --matrix              how close the devices are to each other
  launcherkit topology --json                the tree as JSON
  launcherkit topology --pods                which pod and VM holds what; as root on a node
  launcherkit topology --html > host.html    a page to fold, print and send; --svg: a picture
  launcherkit topology --domain vm.xml --vmi vmi.json --env-file env.txt    what that VM gets, and where"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_input_arguments(parser, env, domain_required=False)
    pods = parser.add_argument_group("pods")
    text = "show which pod, and which VM, holds each device, according to this machine's kubelet"
    options = Options(pods, env)
    options.switch("--pods", text)
    text = f"the kubelet's PodResources, for --pods (default: {KUBELET_SOCKET} below --host)"
    options.add("--kubelet-socket", "SOCKET", text)
    group = parser.add_argument_group("output")
    group.add_argument("--all", action="store_true", help="show every function")
    form = group.add_mutually_exclusive_group()
    Options(form, env).switch("--json", "print the tree as JSON")
    form.add_argument(
        "--matrix", action="store_true", help="print how close the devices are to each other, as nvidia-smi topo -m"
    )
    form.add_argument("--svg", action="store_true", help="print the tree as a picture, one self-contained SVG file")
    form.add_argument("--html", action="store_true", help="print the tree as a page, one self-contained HTML file")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Read the host and draw it; if a VM can't have its devices, its errors follow the picture.

    Raises:
        LauncherkitError: as `open_host` and `translate` do.
    """
    collects = gc.isenabled()
    gc.disable()  # what is made lives until it is printed: looking for garbage would take a sixteenth of the time
    try:
        _run(args, env)
    finally:
        if collects:
            gc.enable()
    return 0


def _run(args: argparse.Namespace, env: Mapping[str, str]) -> None:
    inputs = _vm(args, env)
    policy = inputs.policy if inputs else resolve_policy(policy_flags(args), env, None, args.policy)
    root = host_of(args.host, env, policy).text
    held = held_by_pods(_kubelet_socket(args, root)) if args.pods else None
    host = open_host(root)
    facts = host.scan()._replace(recorded=host.recorded)
    topology = topology_of(facts, TABLES, every=args.all)
    if held is not None:
        topology = replace(with_holders(topology, held), withheld=_withheld(root))
    try:
        guest = None if inputs is None else _guest(inputs, facts)
    except LauncherkitError as error:
        if inputs is not None and not (args.json or args.matrix):
            _print(_text(topology, args, env, inputs.domain_name, [*error.leaves()]))
        raise
    _print(_text(replace(topology, guest=guest), args, env))


def _kubelet_socket(args: argparse.Namespace, root: str) -> str:
    if args.kubelet_socket is None and not os.path.isdir(root):
        args.usage_error("--pods asks the kubelet of this machine: with a snapshot give --kubelet-socket too")
    return args.kubelet_socket or os.path.join(root, KUBELET_SOCKET)


def _vm(args: argparse.Namespace, env: Mapping[str, str]) -> Inputs | None:
    if not (args.domain or args.vmi or args.env_file):
        return None
    return read_inputs(args, env, None if args.domain else (STUB_DOMAIN, args.vmi or args.env_file))


def _guest(inputs: Inputs, facts: HostFacts) -> TreeGuest:
    from launcherkit.domain.reader import read_tree
    from launcherkit.domain.xml import read_document
    from launcherkit.show.guest import guest_of

    translation = replace(inputs, host=KnownHost(facts)).translate()
    tree = read_tree(read_document(translation.domain_xml).root)
    return guest_of(inputs.domain_name, translation.plan, tree)


def _text(
    topology: HostTopology,
    args: argparse.Namespace,
    env: Mapping[str, str],
    name: str = "",
    refused: Sequence[LauncherkitError] = (),
) -> str:
    """In the requested form; the others aren't imported.

    Args:
        topology: of the host, with a guest where there is one.
        args, env: of the command.
        name, refused: of a guest that can't start, and why.
    """
    if args.json:
        from launcherkit.show.documents import topology_json

        return topology_json(topology)
    colours = colours_for(stdout_is_terminal(), env)
    if args.matrix:
        from launcherkit.show.matrix import draw_matrix, matrix_of

        return fitted(draw_matrix(matrix_of(topology), colours), terminal_columns(env))
    if args.svg or args.html:
        from launcherkit.show.contents import contents_of
        from launcherkit.show.page import page
        from launcherkit.show.picture import picture

        reports = {device.device: _report(device) for device in topology.withheld}
        contents = contents_of(topology, reports, refused=(name, refused) if refused else None)
        return (picture if args.svg else page)(contents, f"PCI devices of {_name(args)}")
    tree = outline(topology)
    if refused:
        tree = replace(tree, guest=refused_item(name, refused))
    return draw(tree, colours, drawing_columns(env))


def _name(args: argparse.Namespace) -> str:
    return os.path.basename(args.host.rstrip("/")) if args.host and args.host.strip("/") else "this machine"


def _print(text: str) -> None:
    write_stdout(text.encode("utf-8", "backslashreplace"))


def _withheld(root: str) -> tuple[WithheldDevice, ...]:
    """What the device plugin of this machine gives to nobody now; nothing if it isn't installed."""
    source = node_source() if os.path.isdir(root) else None
    return () if source is None else tuple(source.withheld(root, time.time()))


def _report(device: WithheldDevice) -> Report:
    """As on the page of the node, where only quarantine is a fault."""
    return Report("unhealthy" if device.state == "quarantined" else "kept", device.text)


# Which pods hold the devices of this machine, according to its kubelet.


def held_by_pods(socket: str) -> tuple[HeldDevice, ...]:
    """The devices that pods hold, by the kubelet's IDs.

    Args:
        socket: path of the kubelet's PodResources socket.

    Raises:
        POD_RESOURCES_UNREADABLE: nobody answers there.
        SIDECAR_NOT_INSTALLED: the gRPC library is not installed.
    """
    import asyncio

    with importing_grpc("--pods needs it"):
        from launcherkit.rpc.client import list_pods
    return tuple(_held(asyncio.run(list_pods(socket))))


def _held(answer: ListPodResourcesResponse) -> Iterator[HeldDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            yield from _of_container(f"{pod.namespace}/{pod.name}", container)


def _of_container(pod: str, container: ContainerResources) -> Iterator[HeldDevice]:
    vm = vm_of(pod)
    for devices in container.devices:
        for device in devices.device_ids:
            yield HeldDevice(device, devices.resource_name, pod, container.name, "", vm)
    for claim in container.dynamic_resources:
        name = f"{claim.claim_namespace}/{claim.claim_name}"
        for resource in claim.claim_resources:
            yield HeldDevice(resource.device_name, "", pod, container.name, name, vm)
