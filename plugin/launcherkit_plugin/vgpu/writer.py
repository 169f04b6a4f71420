"""Changes to vGPUs, each reported to the log, the metrics and the node's Events; and the last look before one goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import MdevAddress
from launcherkit.resolve.vfio import vfio_nodes
from launcherkit.sources.needed import read_needed
from launcherkit_plugin.model.errors import NoVgpuRoom, VgpuInUse, WrongVgpu
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.cards import Instance
from launcherkit_plugin.vgpu.maker import Maker

Opened: TypeAlias = Callable[[Iterable[str]], bool | None]
"""Whether a process has one of some device nodes open; None where that is unknown."""


class Changes:
    """Makes and removes vGPUs. Calls block.

    Args:
        maker: does it.
        opened: whether a node is open.
        reporter: its own, for it forgets what it has reported when something has changed.
    """

    def __init__(self, maker: Maker, opened: Opened, reporter: Reporter | None = None) -> None:
        self.maker = maker
        self._opened = opened
        self._reporter = Reporter() if reporter is None else reporter

    def create(self, vgpu: Instance) -> bool:
        """See that a vGPU is there. True where it was made.

        Raises:
            LauncherkitError: see `Maker.make`, `Maker.set_type`.
        """
        if vgpu.vf is not None:
            vf = vgpu.vf
            return self._do("create", vgpu, lambda: self.maker.set_type(vf, int(vgpu.type_id)))
        return self._do("create", vgpu, lambda: self.maker.make(vgpu.parent, vgpu.type_id, vgpu.device))

    def remove(self, vgpu: Instance) -> bool:
        """See that a vGPU isn't there: its mdev, or the type of its VF. True where it was removed.

        Raises:
            VgpuInUse: a process has it open, or that is unknown.
            VgpuNotRemoved: see `Maker.remove`.
        """
        vf = vgpu.vf
        with self.maker.files.tree() as tree:
            facts = read_needed(tree, [vf] if vf else (), () if vf else [MdevAddress(vgpu.device)])
        self._refuse_open(vgpu, vfio_nodes(vgpu.address, facts))
        return self._do("remove", vgpu, lambda: self.maker.set_type(vf, 0) if vf else self.maker.remove(vgpu.device))

    def _refuse_open(self, vgpu: Instance, nodes: Sequence[str]) -> None:
        """A driver that has to remove an open vGPU takes it from the guest, or waits for ever."""
        is_open = self._opened(nodes) if nodes else False
        if is_open is False:
            return
        if is_open:
            raise VgpuInUse(
                f"{vgpu} is in use: a process has {' or '.join(nodes)} open",
                "Stop the VM that has it: `fuser -v` on the node shows the process.",
                device=vgpu.device,
            )
        raise VgpuInUse(
            f"{vgpu} is not removed: it is unknown whether a process has {' or '.join(nodes)} open",
            "Other processes must be visible, as root: a container needs hostPID and the capability SYS_PTRACE.",
            device=vgpu.device,
        )

    def _do(self, action: Literal["create", "remove"], vgpu: Instance, change: Callable[[], bool]) -> bool:
        try:
            changed = change()
        except LauncherkitError as error:
            refused = isinstance(error, NoVgpuRoom | WrongVgpu)
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
        """What a change gives; None where it failed, which is reported: the daemon lives with it, and tries again."""
        try:
            return change()
        except LauncherkitError as error:
            self.report(error)
            return None

    def report(self, error: LauncherkitError) -> None:
        """What went wrong, to the log and as an Event; once, until something has changed, for it is tried again."""
        self._reporter.problem(str(error), error, f"Vgpu{error.code}")


def with_room(make: Callable[[], bool], rooms: Iterable[Callable[[], bool]]) -> bool:
    """Make something; where there is no room for it, after what could go has gone, one by one.

    Args:
        make: makes it.
        rooms: each removes something, and says whether it did.

    Raises:
        NoVgpuRoom: there is still none.
        LauncherkitError: others of `make`.
    """
    try:
        return make()
    except NoVgpuRoom as error:
        full = error
    for remove in rooms:
        if remove():
            try:
                return make()
            except NoVgpuRoom as error:
                full = error
    raise full
