"""Changes to vGPUs: a last check that one isn't in use before it is removed, and reports to log, metrics and Events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from launcherkit.choose.nodes import own_nodes
from launcherkit.errors import LauncherkitError, NoPlace
from launcherkit.host.query import read_needed
from launcherkit.model.address import MdevAddress
from launcherkit_plugin.model.errors import NO_VGPU_ROOM, VGPU_IN_USE, WRONG_VGPU
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.cards import Instance
from launcherkit_plugin.vgpu.maker import Maker

Opened: TypeAlias = Callable[[Iterable[str]], bool | None]
"""Returns whether a process has one of some device nodes open; None if unknown."""


class VgpuWriter:
    """Creates and removes vGPUs. Calls block.

    Args:
        maker: makes the changes.
        opened: whether a device node is open.
        reporter: used for nothing else: after each change it forgets what it has reported.
    """

    def __init__(self, maker: Maker, opened: Opened, reporter: Reporter | None = None) -> None:
        self.maker = maker
        self._opened = opened
        self._reporter = Reporter() if reporter is None else reporter

    def create(self, vgpu: Instance) -> bool:
        """Create a vGPU unless it exists; returns whether it was created.

        Raises:
            LauncherkitError: see `Maker.make`, `Maker.set_type`.
        """
        if vgpu.vf is not None:
            vf = vgpu.vf
            return self._do("create", vgpu, lambda: self.maker.set_type(vf, int(vgpu.type_id)))
        return self._do("create", vgpu, lambda: self.maker.make(vgpu.parent, vgpu.type_id, vgpu.device))

    def remove(self, vgpu: Instance) -> bool:
        """Remove a vGPU if it exists: its mdev, or the type of its VF. Returns whether it was removed.

        Raises:
            VGPU_IN_USE: a process has it open, or this is unknown.
            VGPU_NOT_REMOVED: see `Maker.remove`.
        """
        vf = vgpu.vf
        with self.maker.files.tree() as tree:
            facts = read_needed(tree, [vf] if vf else (), () if vf else [MdevAddress(vgpu.device)])
        self._refuse_open(vgpu, own_nodes(vgpu.address, facts))
        return self._do("remove", vgpu, lambda: self.maker.set_type(vf, 0) if vf else self.maker.remove(vgpu.device))

    def _refuse_open(self, vgpu: Instance, nodes: Sequence[str]) -> None:
        """Refuse to remove an open vGPU: the driver would take it from the guest, or wait forever."""
        is_open = self._opened(nodes) if nodes else False
        if is_open is False:
            return
        if is_open:
            raise VGPU_IN_USE(
                f"{vgpu} is in use: a process has {' or '.join(nodes)} open",
                "Stop the VM that has it: `fuser -v` on the node shows the process.",
                device=vgpu.device,
            )
        raise VGPU_IN_USE(
            f"{vgpu} is not removed: it is unknown whether a process has {' or '.join(nodes)} open",
            "Other processes must be visible, as root: a container needs hostPID and the capabilities SYS_PTRACE and "
            "DAC_READ_SEARCH.",
            device=vgpu.device,
        )

    def _do(self, action: Literal["create", "remove"], vgpu: Instance, change: Callable[[], bool]) -> bool:
        try:
            changed = change()
        except LauncherkitError as error:
            refused = error.code in (NO_VGPU_ROOM.code, WRONG_VGPU.code)
            self._reporter.metrics.vgpu(action, "refused" if refused else "failed")
            self.report(error)
            raise
        if changed:
            self._reporter.metrics.vgpu(action, "done")
            verb = "made" if action == "create" else "removed"
            self._reporter.happened(f"Vgpu{verb.capitalize()}", f"{verb} {vgpu}", action=action)
            self._reporter.forget()
        return changed

    def try_to(self, change: Callable[[], bool | None]) -> bool | None:
        """The result of a change; None if it failed. The error is reported, and the daemon tries again later."""
        try:
            return change()
        except LauncherkitError as error:
            self.report(error)
            return None

    def happened(self, reason: str, text: str) -> None:
        """Report a change to the log and as an Event."""
        self._reporter.happened(reason, text)
        self._reporter.forget()

    def report(self, error: LauncherkitError) -> None:
        """Report an error to the log and as an Event, once until something changes: failed changes are retried."""
        self._reporter.problem(str(error), error, f"Vgpu{error.code}")


def with_room(make: Callable[[], bool], removals: Iterable[Callable[[], bool]]) -> bool:
    """Create a vGPU; if there is no room, remove others one by one until there is.

    Args:
        make: creates it.
        removals: each removes a vGPU, and returns whether it did.

    Raises:
        NO_VGPU_ROOM: there is still no room.
        LauncherkitError: another error of ``make``.
    """
    try:
        return make()
    except NoPlace as error:
        full = error
    for remove in removals:
        if remove():
            try:
                return make()
            except NoPlace as error:
                full = error
    raise full
