"""``launcherkit-plugin vgpu``: lists, creates and removes vGPUs, and applies layouts."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.host import HostFacts
from launcherkit.process.edge import print_message, write_stdout
from launcherkit.process.terminal import write_text
from launcherkit_plugin.cli.binding import usage_of
from launcherkit_plugin.cli.options import (
    add_output_argument,
    add_place_arguments,
    add_state_argument,
    number_from,
    proc_of,
)
from launcherkit_plugin.daemon.wiring import GPU_INSTANCES
from launcherkit_plugin.host.drivers import Late, ProcessWorker
from launcherkit_plugin.host.files import DiskFiles, node_host
from launcherkit_plugin.host.processes import OpenNodes, boot_id, read_open_nodes
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.config import LayoutEntry
from launcherkit_plugin.model.device import NO_USAGE, Usage
from launcherkit_plugin.model.errors import BAD_LAYOUT, NO_VGPU_ROOM, VGPU_IN_USE
from launcherkit_plugin.vgpu.cards import Instance, cards, instances_on, may_be_vgpu
from launcherkit_plugin.vgpu.gpu_instances import MigMaker, holder_on, wanted_on
from launcherkit_plugin.vgpu.layout import (
    Step,
    apply_layout,
    cards_of,
    check_layout,
    difference,
    do_step,
    free_on,
    kinds_like,
    near_type,
    type_counts,
)
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.nvml import MigCard
from launcherkit_plugin.vgpu.survey import document, tables, why_it_stays
from launcherkit_plugin.vgpu.writer import VgpuWriter

DESCRIPTION = """\
List, create and remove vGPUs: mediated devices, and the types of virtual functions of SR-IOV vGPU cards. A layout file
says how many of which types go on which cards. A vGPU that a pod or a process holds is never removed."""

EPILOG = """\
examples:
  launcherkit-plugin vgpu list
  launcherkit-plugin vgpu create --parent 0000:01:00.0 --type 'GRID T4-1Q' --count 4
  launcherkit-plugin vgpu remove 5d6c8ae4-0f9c-5d3b-9d57-2c2f8a4f4f6e
  launcherkit-plugin vgpu apply layout.yaml --dry-run
  launcherkit-plugin vgpu assert layout.yaml

A layout:
  layout:
  - {parent: "#0", type: GRID T4-1Q, count: 4}
  - {parent: "0000:41:00.0", type: NVIDIA A2-8Q}
exit codes of assert: 0 the node has it, 1 it differs: standard output lists the differences"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    shared = argparse.ArgumentParser(add_help=False)
    add_place_arguments(shared, env, ledger=False)
    add_state_argument(shared, env)
    add_output_argument(shared, env)
    changing = argparse.ArgumentParser(add_help=False)
    changing.add_argument("--dry-run", action="store_true", help="print what would be done, but do nothing")
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, text: str, act: Callable[[ActionContext], int], *parents: argparse.ArgumentParser) -> _Parser:
        made = commands.add_parser(name, help=text, description=text, parents=[shared, *parents], allow_abbrev=False)
        made.set_defaults(act=act)
        return made

    add("list", "show cards with their types, and existing vGPUs with their holders", _list)
    create = add("create", "create vGPUs of one type on one card", _create, changing)
    create.add_argument("--parent", metavar="CARD", required=True, help="address of the card, or #0 for the first")
    create.add_argument("--type", metavar="TYPE", required=True, help="name or ID of the type")
    create.add_argument("--count", metavar="N", type=_count, default=1, help="how many (default: 1)")
    remove = add("remove", "remove vGPUs that are not in use", _remove, changing)
    remove.add_argument("devices", metavar="UUID|BDF", nargs="+", help="an mdev, or a VF whose type is to be cleared")
    for name, text, act in (
        ("apply", "apply a layout; refused if something in use would have to be removed", _apply),
        ("assert", "check whether the node has a layout", _assert),
    ):
        add(name, text, act, *([changing] if name == "apply" else [])).add_argument("file", metavar="FILE")


_Parser = argparse.ArgumentParser


def _count(text: str) -> int:
    return number_from(text, 1, 512)


class ActionContext(NamedTuple):
    """What all actions need."""

    args: argparse.Namespace
    env: Mapping[str, str]
    look: Callable[[], HostFacts]
    usage: Callable[[], Usage]
    open_nodes: Callable[[], OpenNodes]
    writer: VgpuWriter
    mig: MigMaker | None = None
    """None: the binding of NVML isn't there."""

    @property
    def mig_maker(self) -> MigMaker:
        """What makes the GPU instances of a layout, which isn't read without the binding."""
        assert self.mig is not None
        return self.mig

    def mig_cards(self, host: HostFacts) -> dict[str, MigCard]:
        """The cards that can have GPU instances, if NVML's binding is there."""
        mig_cards: dict[str, MigCard] = {}
        for card in () if self.mig is None else cards(host):
            try:
                state = self.mig_maker.nvml.read(card.name)
            except LauncherkitError as error:
                print_message("note", error.message, self.env)
                continue
            if state.enabled:
                mig_cards[card.name] = state
        return mig_cards

    def stay_reasons(self, host: HostFacts) -> Callable[[Instance], str | None]:
        """A callable that says why a vGPU must stay; usage is read once, now."""
        usage, opened = self.usage(), self.open_nodes()
        return lambda instance: why_it_stays(instance, host, usage, opened)

    def do(self, steps: Sequence[Step]) -> None:
        """Take steps and print them; with ``--dry-run``, only print them."""
        done: list[Step] = []
        try:
            for step in steps:
                if not self.args.dry_run:
                    do_step(step, self.writer)
                done.append(step)
        finally:
            self.print(done)

    def print(self, steps: Sequence[Step]) -> None:
        """Print the steps that were taken, or would be."""
        if self.args.output == "json":
            rows = [
                {
                    "action": step.action,
                    "card": step.card,
                    "type": {"id": step.instance.type_id, "name": step.instance.type_name},
                    "device": step.instance.device,
                }
                for step in steps
            ]
            _write(json.dumps(rows, indent=2))
        else:
            _write(
                "\n".join(
                    f"{step.action} {step.instance.type_name} on {step.card}: {step.instance.device}" for step in steps
                )
            )


def _write(text: str) -> None:
    if text:
        write_stdout(f"{text}\n".encode("utf-8", "backslashreplace"))


PATIENCE_SECONDS = 15.0
"""How long a write may take. A driver that needs longer is stuck, often forever."""


class TimedFiles(DiskFiles):
    """`DiskFiles` for a command, whose user must not wait forever: a late write is abandoned."""

    def __init__(self, root: str, patience: float = PATIENCE_SECONDS) -> None:
        super().__init__(root)
        self._patience = patience

    def write(self, path: str, text: str) -> None:
        """See `DiskFiles.write`."""
        with closing(ProcessWorker()) as worker:
            try:
                worker.write(os.path.join(self._root, path), text, self._patience)
            except Late as late:
                raise TimeoutError(f"no answer for {self._patience:g} s") from late


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Run the action.

    Raises:
        LauncherkitError: see the actions.
    """
    look = partial(read_node, node_host(args.host), may_be_vgpu, vgpu=True)
    open_nodes = partial(read_open_nodes, proc_of(args))
    maker = Maker(TimedFiles(args.host), time.monotonic, time.sleep)
    writer = VgpuWriter(maker, lambda nodes: open_nodes().is_open(nodes))
    mig = None
    if find_spec("pynvml") is not None:
        mig = MigMaker.in_folder(os.path.join(args.state, GPU_INSTANCES), boot_id(proc_of(args)), maker)
    code: int = args.act(ActionContext(args, env, look, partial(usage_of, args, env), open_nodes, writer, mig))
    return code


def _list(context: ActionContext) -> int:
    host = context.look()
    usage, opened = context.usage(), context.open_nodes()
    if context.args.output == "json":
        _write(json.dumps(document(host, usage, opened, context.mig_cards(host)), indent=2))
    elif cards(host):
        write_text("".join(f"{line}\n" for line in tables(host, usage, opened, context.mig_cards(host))), context.env)
    else:
        print_message("note", _no_cards(context.args.host), context.env)
    return 0


def _no_cards(host: str) -> str:
    """Why there is nothing to list. If a recording or snapshot lacks the files, nothing is known about the driver."""
    if os.path.isdir(os.path.join(host, "sys/bus/pci")):
        return "no card here offers vGPUs: the vGPU driver isn't loaded, or SR-IOV isn't enabled"
    return (
        f"{host} has no card that offers vGPUs; a recording has them only if the parents' folders "
        "mdev_supported_types, or the VFs' folders nvidia, were recorded"
    )


def _create(context: ActionContext) -> int:
    """Create vGPUs. The room is read again after each.

    Raises:
        BAD_LAYOUT: there is no such card, or it has no such type.
        NO_VGPU_ROOM: there is no room for so many.
    """
    args, made = context.args, list[Step]()
    try:
        while len(made) < args.count:
            host = context.look()
            free = _free(args.parent, args.type, host)
            missing = args.count - len(made)
            if not free or (args.dry_run and len(free) < missing):
                raise NO_VGPU_ROOM(
                    f"{args.parent} has room for {len(made) + len(free)} of type {args.type}, not for {args.count}",
                    "`launcherkit-plugin vgpu list` shows what there is room for.",
                    device=args.parent,
                )
            for instance in free[:missing] if args.dry_run else free[:1]:
                step = Step("create", args.parent, instance)
                if not args.dry_run:
                    do_step(step, context.writer)
                made.append(step)
    finally:
        context.print(made)
    return 0


def _free(parent: str, kind: str, host: HostFacts) -> list[Instance]:
    named = cards_of(parent, cards(host))
    if len(named) != 1:
        names = ", ".join(card.name for card in named or cards(host)) or "none"
        many = f"more than one card is called {parent!r}:" if named else f"no card is called {parent!r}; there are:"
        raise BAD_LAYOUT(f"{many} {names}", "Give a name from `launcherkit-plugin vgpu list`.", device=parent)
    kinds = kinds_like(kind, named[0], host)
    if len(kinds) != 1:
        names = ", ".join(name for _, name in kinds)
        many = f"several types {kind!r}: {names}" if kinds else f"no vGPU type {kind!r}{near_type(kind, named, host)}"
        raise BAD_LAYOUT(
            f"{named[0].name} has {many}", "Give a name from `launcherkit-plugin vgpu list`.", device=named[0].name
        )
    return free_on(named[0], *kinds[0], host)


def _remove(context: ActionContext) -> int:
    """Remove vGPUs, or refuse before the first.

    Raises:
        BAD_LAYOUT, VGPU_IN_USE, SeveralErrors: some don't exist, or are in use.
    """
    host = context.look()
    stays_because = context.stay_reasons(host)
    instances = {instance.device: (card, instance) for card in cards(host) for instance in instances_on(card, host)}
    errors, steps = Collector(), list[Step]()
    for device in dict.fromkeys(text.lower() for text in context.args.devices):
        if device not in instances:
            errors.add(
                BAD_LAYOUT(f"there is no vGPU {device!r}", "`launcherkit-plugin vgpu list` shows them.", device=device)
            )
            continue
        card, instance = instances[device]
        reason = stays_because(instance)
        if reason is not None:
            errors.add(VGPU_IN_USE(reason, "Stop the VM that has it.", device=device))
        steps.append(Step("remove", card.name, instance))
    errors.raise_if_any()
    context.do(steps)
    return 0


def _apply(context: ActionContext) -> int:
    """See `apply_layout`."""
    from launcherkit_plugin.config.reading import read_layout

    layout, spread = read_layout(context.args.file)
    _bring_instances(layout, context)
    host = context.look()
    stays_because = context.stay_reasons(host)
    if context.args.dry_run:
        steps = check_layout(layout, spread, host, stays_because)
        context.print(steps)
        if any(step.action == "remove" for step in steps):
            print_message("note", "what can be created on these cards is known only when these are gone", context.env)
        return 0
    done: list[Step] = []
    try:
        apply_layout(layout, spread, context.look, context.writer, stays_because, done.append)
    finally:
        context.print(done)
    return 0


def _bring_instances(layout: Sequence[LayoutEntry], context: ActionContext) -> None:
    """Make the GPU instances first: without them, a card has no types that are on one."""
    declared = wanted_on(layout, context.look())
    usage = context.usage() if declared else NO_USAGE
    for card, instances in declared.values():
        unknown = None if usage.known else "it isn't known which pods have its vGPUs"
        if context.args.dry_run:
            todo, state = context.mig_maker.plan(card.name, instances)
            steps = [f"{verb} {state.text(each)}" for verb, each in todo.steps]
            print_message("note", f"{card.name}: GPU instances: {', '.join(steps) or 'as declared'}", context.env)
            continue
        changed, state = context.mig_maker.bring(card, instances, holder_on(card, usage) or unknown)
        if changed:
            print_message("note", f"{card.name} has GPU instances: {state.summary or 'none'}", context.env)


def _assert(context: ActionContext) -> int:
    from launcherkit_plugin.config.reading import read_layout

    layout, spread = read_layout(context.args.file)
    host = context.look()
    declared, unknown = type_counts(layout, spread, host)
    on_cards = {name: instances for name, (_, instances) in wanted_on(layout, host).items()}
    mig = [line for name, instances in on_cards.items() for line in context.mig_maker.missing(name, instances)]
    lines = [*(error.message for error in unknown), *mig, *difference(declared, host)]
    _write(json.dumps(lines, indent=2) if context.args.output == "json" else "\n".join(lines))
    return 1 if lines else 0
