"""A double of the process that calls NVML, for tests without a compiler: cards in memory that can have GPU instances.

It refuses what ``nvml.h`` says is refused, with the same error numbers: NVIDIA/go-nvml, gen/nvml/nvml.h at
2f9e261fe40a7a1c54783d66805e8920564763b4. The profiles and places are those of an A100 with 40 GB, as NVIDIA's MIG User
Guide has them ("GPU Instance Profiles", "MIG Placements").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcherkit_plugin.vgpu.nvml import MigCard, Placed, Profile
from tests.plugin.vgpu.kernel import Gpu, Kernel, Kind

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = (
    0,
    2,
    3,
    4,
    6,
    19,
    23,
)

TEXTS = {INSUFFICIENT_RESOURCES: "Insufficient Resources", IN_USE: "In use by another client"}

PROFILES = (
    Profile(19, "1g.5gb", 7, tuple((start, 1) for start in range(7))),
    Profile(20, "1g.5gb+me", 1, tuple((start, 1) for start in range(7))),
    Profile(15, "1g.10gb", 4, ((0, 2), (2, 2), (4, 2), (6, 2))),
    Profile(14, "2g.10gb", 3, ((0, 2), (2, 2), (4, 2))),
    Profile(9, "3g.20gb", 2, ((0, 4), (4, 4))),
    Profile(5, "4g.20gb", 1, ((0, 4),)),
    Profile(0, "7g.40gb", 1, ((0, 8),)),
)
BY_NAME = {profile.name: profile for profile in PROFILES}


def a100(*instances: Placed) -> MigCard:
    """The state of a card in MIG mode."""
    return MigCard(True, True, PROFILES, frozenset(instances))


class Refused(Exception):
    def __init__(self, code: int, function: str) -> None:
        super().__init__(code, function)


class Mig:
    """A card's MIG side.

    Args:
        current: whether it is in MIG mode; None: it has none.
        resets: whether the driver activates the mode at once; else it stays pending until `reset`.
    """

    def __init__(self, *, current: bool | None = True, resets: bool = True) -> None:
        self.current = current
        self.pending = bool(current)
        self.resets = resets
        self.instances: set[Placed] = set()
        self.used: set[Placed] = set()
        """Those with processes or compute instances."""

    def reset(self) -> None:
        """What a reset of the card does, or a reboot: no GPU instance survives it."""
        self.current = self.pending
        self.instances.clear()


class NvmlDouble:
    """All cards, which outlive whoever asks. ``asks`` is a `launcherkit_plugin.vgpu.nvml.Ask`."""

    def __init__(self, **cards: Mig) -> None:
        self.cards: dict[str, Mig] = dict(cards)
        self.calls: list[str] = []
        """The changes that were asked for."""
        self.fails: Callable[[Mapping[str, Any]], int] = lambda _: SUCCESS
        """The code with which NVML refuses a question for no reason of the card."""
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        """Called before and after each change; may raise."""
        self.counts: Callable[[], None] = lambda: None
        """The room of cards has changed."""

    def asks(self, question: Mapping[str, Any], seconds: float, keep: Sequence[int]) -> Mapping[str, Any]:
        call = question["call"]
        try:
            if code := self.fails(question):
                raise Refused(code, call)
            if question["card"] not in self.cards:
                raise Refused(NOT_FOUND, "nvmlDeviceGetHandleByPciBusId")
            card = self.cards[question["card"]]
            if call == "read":
                return self._read(card)
            self.calls.append(call)
            self.before()
            {"create": self._create, "destroy": self._destroy, "mode": self._mode}[call](card, question)
            self.counts()
            self.after()
        except Refused as refused:
            code, function = refused.args
            return {"code": code, "from": function, "text": TEXTS.get(code, "Unknown Error")}
        return {}

    def _read(self, card: Mig) -> Mapping[str, Any]:
        profiles = [
            {"id": each.id, "name": f"MIG {each.name}", "most": each.most, "placements": [*map(list, each.placements)]}
            for each in PROFILES
        ]
        return {
            "current": None if card.current is None else int(card.current),
            "pending": None if card.current is None else int(card.pending),
            "profiles": profiles if card.current else [],
            "instances": [list(each) for each in sorted(card.instances)] if card.current else [],
        }

    def _create(self, card: Mig, question: Mapping[str, Any]) -> None:
        function = "nvmlDeviceCreateGpuInstanceWithPlacement"
        new = Placed(question["profile"], question["start"], question["size"])
        profile = next((each for each in PROFILES if each.id == new.profile), None)
        if not card.current:
            raise Refused(NOT_SUPPORTED, function)
        if profile is None or (new.start, new.size) not in profile.placements:
            raise Refused(INVALID_ARGUMENT, function)
        taken = {at for each in card.instances for at in range(each.start, each.start + each.size)}
        alike = sum(each.profile == new.profile for each in card.instances)
        if taken & {*range(new.start, new.start + new.size)} or alike >= profile.most:
            raise Refused(INSUFFICIENT_RESOURCES, function)
        card.instances.add(new)

    def _destroy(self, card: Mig, question: Mapping[str, Any]) -> None:
        instance = Placed(question["profile"], question["start"], question["size"])
        if not card.current:
            raise Refused(NOT_SUPPORTED, "nvmlDeviceGetGpuInstances")
        if instance in card.used:
            raise Refused(IN_USE, "nvmlGpuInstanceDestroy")
        card.instances.discard(instance)

    def _mode(self, card: Mig, question: Mapping[str, Any]) -> None:
        if card.current is None:
            raise Refused(NOT_SUPPORTED, "nvmlDeviceSetMigMode")
        card.pending = bool(question["mode"])
        if card.resets and not card.used:
            card.reset()


A100_1C = Kind("nvidia-1001", "NVIDIA A100-1-5C", 1)
A100_3C = Kind("nvidia-1002", "NVIDIA A100-3-20C", 1)
_PROFILE_OF = {A100_1C: 19, A100_3C: 9}


class _Gpu(Gpu):
    """A card that has room for one vGPU on each GPU instance, of the type of its profile."""

    def __init__(self, address: str, mig: Mig) -> None:
        super().__init__(address, _PROFILE_OF, 0, mixed=True, describe=False)
        self.mig = mig

    def room(self, kind: Kind) -> int:
        instances = sum(each.profile == _PROFILE_OF[kind] for each in self.mig.instances)
        return instances - sum(other == kind for other in [*self.given.values()])


def add_card(kernel: Kernel, double: NvmlDouble, address: str, mig: Mig, *, mdevs: bool = False) -> None:
    """A card whose 8 VFs get types, or take an mdev, only while it has GPU instances for them."""
    add = kernel.card_of_mdev_vfs if mdevs else kernel.card_of_vfs
    old = add(address, 8, _PROFILE_OF, mib=0)
    gpu = _Gpu(address, mig)
    kernel.gpus.update({name: gpu for name, each in kernel.gpus.items() if each is old})
    double.cards[address] = mig
    double.counts = kernel.recount
    kernel.recount()
