"""In whatever order things happen: a vGPU that a live pod needs is there, one that nobody needs goes (G1-G4)."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from uuid import uuid4

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.allocation.reservations import PATIENCE_SECONDS
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.vgpu.pool import LONGEST_PAUSE_SECONDS
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, T4_1Q, T4_2Q, Kernel
from tests.plugin.vgpu.node import Node
from tests.tiers import EXAMPLES

GRACE = 60.0
CARDS = ("0000:01:00.0", "0000:02:00.0")
SRIOV = "0000:41:00.0"


class Killed(BaseException):
    """The process ends here: nothing after it runs, no handler either."""


class Cluster:
    """The kubelet with its pods beside the plugin on a node: it knows what it was told, and asks as kubelets do."""

    def __init__(self, *, mixed: bool, describe: bool) -> None:
        self.kernel = Kernel()
        self.kernel.card(CARDS[0], mixed=mixed, describe=describe)
        self.kernel.card(CARDS[1], describe=describe)
        self.gpu = self.kernel.card_of_vfs(SRIOV, 6, (A2_4Q, A2_8Q), mib=16384)
        self.foreign = str(uuid4())
        self.kernel.make(CARDS[1], T4_1Q.id, self.foreign)
        mdevs = (VgpuRule(("GRID T4-*",), mode="dynamic"),)
        vfs = (VgpuRule(("NVIDIA A2-*",), mode="dynamic", prefix="PCI_RESOURCE"),)
        self.node = Node(self.kernel, mdevs=mdevs, vfs=vfs, grace=GRACE)
        self.pods: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Resource and devices by pod."""
        self.readable = True
        self.names = iter(f"default/pod-{number}" for number in range(10**6))
        self.idle: dict[str, float] = {}
        """Since when this plugin process could have seen each vGPU with nobody."""
        self.look()

    def usage(self) -> Usage:
        held: dict[str, dict[str, Holder]] = {}
        for pod, (resource, devices) in self.pods.items():
            held.setdefault(resource, {}).update(dict.fromkeys(devices, Holder(pod, "compute")))
        return Usage("pod-resources", held) if self.readable else NO_USAGE

    def look(self) -> None:
        """The plugin's loop turns, and the kubelet hears what there is."""
        self.node.usage = self.usage()
        self.kernel.taken.clear()
        self.node.turn()
        needed = {device for _, devices in self.pods.values() for device in devices}
        assert needed.isdisjoint(self.kernel.taken), "what a live pod has was taken away, if only for a moment"
        if self.readable:
            reserved = self.node.reservations.merged(self.usage(), self.node.clock.now, self.node.clock.now + 0.001)
            held = {device for devices in reserved.held.values() for device in devices}
            self.idle = {
                device: self.idle.get(device, self.node.clock.now) for device in self.made() if device not in held
            }

    def made(self) -> set[str]:
        """The vGPUs that there are, but for what others made."""
        return {*self.kernel.mdevs, *self.gpu.given} - {self.foreign}

    def free(self, resource: str) -> list[str]:
        taken = {device for _, devices in self.pods.values() for device in devices}
        return [device for device in self.node.healthy(resource) if device not in taken]

    def start(self, resource: str, devices: tuple[str, ...]) -> bool:
        try:
            self.node.allocate(resource, *devices)
        except LauncherkitError:
            return False
        self.pods[next(self.names)] = (resource, devices)
        return True

    def restart_plugin(self) -> None:
        self.node.restart()
        self.idle = {}
        self.look()

    def check(self) -> None:
        """What must hold after a look with usage readable and a kernel that does what it is told."""
        for pod, (resource, devices) in self.pods.items():
            for device in devices:
                assert device in self.made(), f"{pod} has lost {device}"
                assert self.kind(device) in resource.replace("_", " "), f"{pod} has one of another type"
        for device, since in self.idle.items():
            if device in self.made() and self.kernel.node(device) not in self.kernel.open:
                assert self.node.clock.now - since < GRACE, f"{device} has been idle for long, and is still there"

    def kind(self, device: str) -> str:
        if device in self.gpu.given:
            return self.gpu.given[device].name
        return {kind.id: kind.name for kind in (T4_1Q, T4_2Q)}[self.kernel.mdevs[device][1]]


class Lifecycle(RuleBasedStateMachine):
    @initialize(mixed=st.booleans(), describe=st.booleans())
    def begin(self, mixed: bool, describe: bool) -> None:
        self.cluster = Cluster(mixed=mixed, describe=describe)
        self.faulty = False

    def _turn(self) -> None:
        """A look; what follows from it holds where everything answers."""
        self.cluster.look()
        if self.cluster.readable and not self.faulty:
            self.cluster.check()

    @rule(choice=st.randoms(use_true_random=False), number=st.integers(1, 3))
    def pod_comes(self, choice: random.Random, number: int) -> None:
        resources = [name for name in self.cluster.node.offers if len(self.cluster.free(name)) >= number]
        if resources:
            resource = choice.choice(sorted(resources))
            self.cluster.start(resource, tuple(choice.sample(self.cluster.free(resource), number)))

    @rule(choice=st.randoms(use_true_random=False))
    def pod_is_turned_away_after_its_allocation(self, choice: random.Random) -> None:
        resources = [name for name in sorted(self.cluster.node.offers) if self.cluster.free(name)]
        if resources:
            resource = choice.choice(resources)
            if self.cluster.start(resource, (choice.choice(self.cluster.free(resource)),)):
                self.cluster.pods.popitem()

    @precondition(lambda self: self.cluster.pods)
    @rule(choice=st.randoms(use_true_random=False))
    def pod_goes(self, choice: random.Random) -> None:
        del self.cluster.pods[choice.choice(sorted(self.cluster.pods))]

    @precondition(lambda self: self.cluster.pods)
    @rule(choice=st.randoms(use_true_random=False))
    def slots_are_handed_to_another_pod_with_no_call(self, choice: random.Random) -> None:
        had = self.cluster.pods.pop(choice.choice(sorted(self.cluster.pods)))
        self.cluster.pods[next(self.cluster.names)] = had

    @precondition(lambda self: self.cluster.pods)
    @rule(choice=st.randoms(use_true_random=False))
    def container_starts_again(self, choice: random.Random) -> None:
        resource, devices = self.cluster.pods[choice.choice(sorted(self.cluster.pods))]
        if resource in self.cluster.node.offers and not self.faulty:
            self.cluster.node.check(resource, *devices)

    @rule()
    def vms_open_what_they_have_and_others_close(self) -> None:
        kernel = self.cluster.kernel
        held = {device for _, devices in self.cluster.pods.values() for device in devices}
        kernel.open = {kernel.node(device) for device in self.cluster.made() & held}

    @rule()
    def plugin_restarts(self) -> None:
        self.cluster.restart_plugin()

    @rule()
    def node_reboots_with_its_pods(self) -> None:
        self.cluster.kernel.reboot()
        self.cluster.kernel.make(CARDS[1], T4_1Q.id, self.cluster.foreign)
        self.cluster.restart_plugin()

    @precondition(lambda self: self.cluster.pods)
    @rule(choice=st.randoms(use_true_random=False))
    def somebody_removes_what_a_pod_has_not_opened_yet(self, choice: random.Random) -> None:
        kernel = self.cluster.kernel
        _, devices = self.cluster.pods[choice.choice(sorted(self.cluster.pods))]
        for device in devices:
            if device in kernel.mdevs and kernel.node(device) not in kernel.open:
                kernel.unmake(device)
        self._turn()

    @rule(readable=st.booleans())
    def usage_can_be_read_or_not(self, readable: bool) -> None:
        self.cluster.readable = readable

    @rule(number=st.sampled_from([0, errno.EIO, errno.EBUSY, errno.EAGAIN]))
    def drivers_fail_or_work(self, number: int) -> None:
        def fail(path: str) -> None:
            raise OSError(number, os.strerror(number))

        if self.faulty and number == 0:
            self.cluster.node.clock.now += LONGEST_PAUSE_SECONDS  # what has failed rests for so long at most
        self.faulty = number != 0
        self.cluster.kernel.touched = fail if self.faulty else lambda _: None

    @rule(seconds=st.sampled_from([1.0, 20.0, GRACE, PATIENCE_SECONDS + 1, 3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.node.clock.now += seconds
        self._turn()

    @rule()
    def the_loop_turns(self) -> None:
        self._turn()

    @invariant()
    def what_others_made_stays(self) -> None:
        assert not hasattr(self, "cluster") or self.cluster.foreign in self.cluster.kernel.mdevs

    @invariant()
    def what_is_open_is_there(self) -> None:
        if hasattr(self, "cluster"):
            kernel = self.cluster.kernel
            assert all(kernel.tree().exists(node.removeprefix("/")) for node in kernel.open)

    def teardown(self) -> None:
        """In the end all pods go, and so does all that was made for them."""
        if not hasattr(self, "cluster"):
            return
        self.drivers_fail_or_work(0)
        self.cluster.readable = True
        self.cluster.look()
        self.cluster.check()
        self.cluster.pods.clear()
        self.cluster.kernel.open.clear()
        for _ in range(4):
            self.cluster.look()
            self.cluster.node.clock.now += PATIENCE_SECONDS + 1
        self.cluster.look()
        assert self.cluster.made() == set()


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=int(os.environ.get(EXAMPLES, "10")),
    stateful_step_count=30,
    deadline=None,
)


def killed_after(steps: int, kernel: Kernel) -> Callable[[], None]:
    """From now on the process dies at the given read or write; call what comes back to let another one live."""
    left = [steps]

    def step(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    def mend() -> None:
        kernel.touched, kernel.read = (lambda _: None), (lambda: None)

    kernel.touched, kernel.read = step, step
    return mend


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_kills_at_random_points_lose_and_leak_nothing(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(mixed=chance.random() < 0.5, describe=chance.random() < 0.5)
    kills = 0
    while kills < 100:
        if cluster.pods and chance.random() < 0.45:
            del cluster.pods[chance.choice(sorted(cluster.pods))]
        cluster.node.clock.now += chance.choice([0.0, 5.0, GRACE, 130.0])
        mend = killed_after(chance.randrange(25), cluster.kernel)
        try:
            if chance.random() < 0.5:
                cluster.look()
            resources = [name for name in sorted(cluster.node.offers) if cluster.free(name)]
            if resources:
                resource = chance.choice(resources)
                free = cluster.free(resource)
                cluster.start(resource, tuple(chance.sample(free, chance.randint(1, min(3, len(free))))))
            cluster.look()
        except Killed:
            kills += 1
            cluster.node.ended(*CARDS, SRIOV)
            mend()
            cluster.restart_plugin()
            cluster.check()
        mend()
    cluster.pods.clear()
    for _ in range(4):
        cluster.look()
        cluster.node.clock.now += PATIENCE_SECONDS + 1
    cluster.look()
    assert cluster.made() == set()
