"""Changes to vGPUs, each reported to the log, the metrics and the node's Events; and the last look before one goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import Mdev
from launcherkit.resolve.vfio import cdev_node, group_node
from launcherkit.sources.sysfs import read_needed
from launcherkit_plugin.model.errors import NoVgpuRoom, VgpuInUse, WrongVgpu
from launcherkit_plugin.telemetry.metrics import Metrics, NoMetrics
from launcherkit_plugin.telemetry.reporter import Log, Recorder, Reporter, silent
from launcherkit_plugin.vgpu.maker import Maker

Opened: TypeAlias = Callable[[Iterable[str]], bool | None]
"""Whether a process has one of some device nodes open; None where that is unknown."""


class Changes:
    """Makes and removes vGPUs. Calls block.

    Args:
        maker: does it.
        opened: whether a node is open.
    """

    def __init__(
        self,
        maker: Maker,
        opened: Opened,
        *,
        log: Log = silent,
        metrics: Metrics | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.maker = maker
        self._opened = opened
        self._reporter = Reporter(log, recorder)
        self._metrics = NoMetrics() if metrics is None else metrics

    def make(self, parent: str, type_id: str, uuid: str, what: str) -> bool:
        """`Maker.make`; ``what`` is its type for people."""
        return self._do("create", f"{what} on {parent}, mdev {uuid}", lambda: self.maker.make(parent, type_id, uuid))

    def set_type(self, vf: PciAddress, number: int, what: str) -> bool:
        """`Maker.set_type`."""
        return self._do("create", f"{what} on {vf}", lambda: self.maker.set_type(vf, number))

    def remove(self, mdev: Mdev) -> bool:
        """`Maker.remove`, unless a process has it open.

        Raises:
            VgpuInUse: it is open, or that is unknown.
            VgpuNotRemoved: see `Maker.remove`.
        """
        what = f"{mdev.type_name or mdev.type_id} on {mdev.parent}, mdev {mdev.uuid}"
        node = group_node(mdev.iommu_group)
        self._refuse_open(what, [node] if node else [])
        return self._do("remove", what, lambda: self.maker.remove(mdev.uuid))

    def clear_type(self, vf: PciAddress, what: str) -> bool:
        """Take back the type of a VF, unless a process has it open.

        Raises:
            VgpuInUse, VgpuNotRemoved: as `remove`.
        """
        with self.maker.files.tree() as tree:
            facts = read_needed(tree, [vf], ())
        function = facts.functions.get(vf)
        nodes = (group_node(function.iommu_group if function else None), cdev_node(facts.details.get(vf)))
        self._refuse_open(f"{what} on {vf}", [node for node in nodes if node])
        return self._do("remove", f"{what} on {vf}", lambda: self.maker.set_type(vf, 0))

    def _refuse_open(self, what: str, nodes: list[str]) -> None:
        """A driver that is told to remove what is open takes it from the guest, or waits for ever."""
        is_open = self._opened(nodes) if nodes else False
        if is_open is False:
            return
        if is_open:
            raise VgpuInUse(
                f"{what} is in use: a process has {' or '.join(nodes)} open",
                "Stop the VM that has it: `fuser -v` on the node shows the process.",
            )
        raise VgpuInUse(
            f"{what} stays: it can't be told whether a process has {' or '.join(nodes)} open",
            "Other processes must be visible, as root: a container needs hostPID and the capability SYS_PTRACE.",
        )

    def _do(self, action: Literal["create", "remove"], what: str, change: Callable[[], bool]) -> bool:
        try:
            changed = change()
        except LauncherkitError as error:
            refused = isinstance(error, NoVgpuRoom | WrongVgpu)
            self._metrics.vgpu(action, "refused" if refused else "failed")
            self.tell(error)
            raise
        if changed:
            self._metrics.vgpu(action, "done")
            verb = "made" if action == "create" else "removed"
            self._reporter.done(f"Vgpu{verb.capitalize()}", f"{verb} {what}", action=action)
            self._reporter.forget()
        return changed

    def try_to(self, change: Callable[[], bool | None]) -> bool | None:
        """What a change gives; None where it failed, which is reported: the daemon lives with it, and tries again."""
        try:
            return change()
        except LauncherkitError as error:
            self.tell(error)
            return None

    def tell(self, error: LauncherkitError) -> None:
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
