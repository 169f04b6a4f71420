"""The daemon's process: puts together everything that the loop needs, runs it, and ends on a signal.

pydantic and YAML are not imported here: each would take a tenth of the memory. They are used in processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from launcherkit.errors import LauncherkitError, SeveralErrors
from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit.process.stopping import Stop, first_of, stopped_by_signals
from launcherkit.rpc.server import report_faults
from launcherkit.rpc.unix_socket import identity
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.config.source import ConfigSource
from launcherkit_plugin.daemon.configuration import ConfigReader, Configuration
from launcherkit_plugin.daemon.dra_drivers import DraDrivers
from launcherkit_plugin.daemon.http_pages import Web, no_probe_socket, no_web_socket, probe_pages, web_of_node
from launcherkit_plugin.daemon.loop import DaemonLoop, LoopInputs, LoopOutputs
from launcherkit_plugin.daemon.wiring import Setup, Wiring
from launcherkit_plugin.host.drivers import SpareProcess
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.processes import boot_id, pod_states
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.scan import LATE_SECONDS, NodeReader, Scanner, read_bound
from launcherkit_plugin.host.watch import Watching, watching
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.http.unix_server import serving_at
from launcherkit_plugin.kubelet.advertiser import Advertiser
from launcherkit_plugin.kubelet.client import list_pod_devices
from launcherkit_plugin.kubelet.usage import CHECKPOINT, read_usage
from launcherkit_plugin.model.config import NODE, Auto, DraConfig, FabricConfig, NodeChoice, Reading
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.model.same_device import AskingPod
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.node_features import FeatureFile, features
from launcherkit_plugin.telemetry.probe_state import ProbeState
from launcherkit_plugin.telemetry.reporter import Lines, Log, Reporter, Waits
from launcherkit_plugin.telemetry.summary import summary
from launcherkit_plugin.vgpu.lifecycle import Stopped

if TYPE_CHECKING:
    from launcherkit_plugin.allocation.keeper import Keeper
    from launcherkit_plugin.devices.xid_watch import XidWatch
    from launcherkit_plugin.dra.node_driver import NodeDriver
    from launcherkit_plugin.fabric.manager import ProcessManager
    from launcherkit_plugin.host.open_files import OpenFilesHelper

T = TypeVar("T")

SETTLE_SECONDS = 0.05
"""The pause between a wakeup and the scan: a card that appears or disappears causes a dozen wakeups."""
RECORD_SECONDS = 30.0
"""How long reading all advertised functions for the node's record may take; each takes less than a millisecond."""
QUIET_SECONDS = 600.0
"""If there was no turn for this long, the daemon is unhealthy. Much longer than any pause or deadline in a turn."""


class DaemonOptions(NamedTuple):
    """The options of the command line."""

    config: str | None
    auto: Auto | None
    kubelet_dir: str
    pod_resources: str
    host: str
    dev_root: str
    web_socket: str | None
    probe_socket: str | None
    node_hook: str | None
    cluster_socket: str | None
    ledger: str
    state: str
    proc: str
    features_dir: str
    dra: bool = False
    publish_node: bool = False
    name_holders: bool = False

    @property
    def plugins(self) -> str:
        """The folder of the device plugins' sockets."""
        return f"{self.kubelet_dir}/device-plugins"

    @property
    def checkpoint(self) -> str:
        """The file in which the kubelet records its allocations."""
        return f"{self.kubelet_dir}/{CHECKPOINT}"


class Early(NamedTuple):
    """What was started before this module was imported."""

    first: asyncio.Task[Reading] | None = None
    """Already reads the configuration, which takes longer than everything before it is needed."""
    helper: OpenFilesHelper | None = None
    """Reads the files that processes have open. When it ends, so does the daemon: it can't start another."""


async def serve(options: DaemonOptions, env: Mapping[str, str], early: Early = Early()) -> None:  # noqa: B008  # immutable
    """Serve until SIGTERM or SIGINT. A second signal ends it without waiting for calls in progress.

    Args:
        options: of the command line.
        env: of the process.
        early: what was started already.

    Raises:
        LauncherkitError: it can't start: the configuration is wrong, or the host can't be read.
    """
    log = Lines(env, time.time)
    report_faults(env, lambda text: log("error", text))
    stop, loop = Stop(), asyncio.get_running_loop()
    with stopped_by_signals(stop):
        if early.helper is not None:
            loop.add_reader(early.helper, _without_helper, loop, early.helper, log, stop.asked)
        started = asyncio.Event()
        daemon = Daemon(options, env, log, early)
        serving = asyncio.create_task(daemon.run(stop.asked, started))
        await first_of(serving, stop.asked)
        if started.is_set():
            await first_of(serving, stop.hurried)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def _without_helper(loop: asyncio.AbstractEventLoop, helper: OpenFilesHelper, log: Log, stop: asyncio.Event) -> None:
    loop.remove_reader(helper)
    log("error", f"the process that reads open files (PID {helper.pid}) has ended; start the daemon again")
    stop.set()


class Daemon:
    """The parts of the daemon, and what they tell each other. To be made in the event loop's thread.

    Nothing is opened or begun before `run`.
    """

    def __init__(self, options: DaemonOptions, env: Mapping[str, str], log: Log, early: Early) -> None:
        self.options = options
        self.env = env
        self.log = log
        self.health = ProbeState(time.monotonic, patience=QUIET_SECONDS)
        self.wakeups = WakeupQueue(SETTLE_SECONDS)
        self.cluster = ClusterSocket(log, self.wakeups)
        self.web = self._web()
        self.reporter = self.web.reporter
        self.allocator = Allocator(Reservations(), time.monotonic, self.wakeups.notify)
        self.spare_process = SpareProcess()
        self.fabric: ProcessManager | None = None
        self.xids: XidWatch | None = None
        self.wiring = self._wiring(early.helper)
        self.advertiser = self._advertiser()
        self.dra = DraDrivers(self._dra_driver, f"{options.kubelet_dir}/plugins")
        self.labels = FeatureFile(options.features_dir)
        self.record = self._record()
        reader = ConfigReader(options.config, options.auto, early.first, dra=options.dra)
        self.source = ConfigSource(options.config, reader)
        self.configuration = Configuration(self.source, self.cluster, self.watch, self.wiring)
        self.usage = UsageReader(options, env, self.reporter, self.wiring.queue)
        self._watching: Watching | None = None

    async def run(self, stop: asyncio.Event, started: asyncio.Event) -> None:
        """Serve until ``stop`` is set. ``started`` is set once nothing can keep it from starting any more.

        Raises:
            LauncherkitError: it can't start.
        """
        async with AsyncExitStack() as opened:
            await self._open(opened)
            self.watch()
            scanner = self._scanner()
            reading = await self.configuration.first()
            if self.options.node_hook is not None:
                await opened.enter_async_context(self._node_hook(self.options.node_hook))
            setup = self.configuration.assembled(reading)
            self.dra.start(setup.dra)
            inputs = LoopInputs(scanner, self.usage.read, self.configuration.reload)
            outputs = LoopOutputs(self.publish, self.web.show)
            loop = DaemonLoop(setup, self.allocator, self.wakeups, self.reporter, inputs, outputs)
            started.set()
            await loop.run(self.advertiser, stop, self.health.turned)
            self.log("info", "ending")

    async def _open(self, opened: AsyncExitStack) -> None:
        """Open the sockets and what is watched; all is closed in the opposite order."""
        options = self.options
        if options.probe_socket is not None:
            probes = probe_pages(self.health)
            await opened.enter_async_context(serving_at(options.probe_socket, probes, no_probe_socket))
        if options.web_socket is not None:
            await opened.enter_async_context(serving_at(options.web_socket, self.web.pages, no_web_socket))
        if options.cluster_socket is not None:
            await opened.enter_async_context(self.cluster.listening(options.cluster_socket))
        opened.callback(self.spare_process.close)
        opened.callback(self._let_go_of_fabric)
        opened.push_async_callback(self._let_go_of_cards)
        opened.push_async_callback(self.advertiser.close)
        opened.push_async_callback(self.dra.close)
        self._watching = opened.enter_context(watching(partial(self.wakeups.notify, Wakeup.HOST)))
        opened.callback(self.labels.remove)

    # What the parts tell each other

    def watch(self) -> None:
        """Watch the folders of now: another configuration may have other files."""
        assert self._watching is not None
        self._watching.folders(_watched(self.options, self.source, self.advertiser, self.wakeups))

    def publish(self, facts: HostFacts, resources: Sequence[Resource], setup: Setup) -> None:
        """Tell everybody but the kubelet of changed facts and resources."""
        assert self._watching is not None
        self._watching.renew()
        self.dra.listed(facts, resources, setup.dra)
        self.note_registered()
        self._summarize(facts, resources)
        self.labels.write(features(facts, resources))
        self.record(facts, resources, self.allocator.usage(), setup.nodes)

    def _summarize(self, facts: HostFacts, resources: Sequence[Resource]) -> None:
        """Report what the node has, when that is known and when it changes: also that it is nothing."""
        reason, text = summary(facts, resources)
        if self.reporter.is_new("summary", text):
            self.reporter.happened(reason, text)

    def note_registered(self, _: object = None) -> None:
        """Note what isn't registered with the kubelet: the daemon isn't ready as long as there is something."""
        names = [*self.advertiser.unregistered(), *self.dra.unregistered()]
        self.health.waiting(f"not registered with the kubelet: {', '.join(names)}" if names else "")

    # The parts

    def _web(self) -> Web:
        if self.options.web_socket is None:
            return Web(Reporter(self.log, events=self.cluster))
        node = self.env.get(NODE) or os.uname().nodename
        return web_of_node(node, self.options.host, self.cluster, self.log, names=self.options.name_holders)

    def _wiring(self, helper: OpenFilesHelper | None) -> Wiring:
        options = self.options
        return Wiring(
            host=node_host(options.host),
            root=options.host,
            reporter=self.reporter,
            queue=WorkQueue(Waits(self.reporter, partial(self.wakeups.notify, Wakeup.HOST))),
            stopped=Stopped(),
            dev_root=options.dev_root,
            proc=options.proc,
            ledger=options.ledger,
            state=options.state,
            usage=self.allocator.usage,
            make_worker=self.spare_process.worker,
            fabric=self._fabric_manager,
            xids=self._xid_watch,
            keeper=self._keeper,
            helper=helper,
        )

    def _fabric_manager(self, config: FabricConfig) -> ProcessManager:
        """What asks Fabric Manager, the same as long as its configuration is: only one process may."""
        from launcherkit_plugin.fabric.manager import ProcessManager

        if self.fabric is None or self.fabric.config != config:
            self._let_go_of_fabric()
            self.fabric = ProcessManager(config, f"{self.wiring.fabric_records}/lock")
        return self.fabric

    def _let_go_of_fabric(self) -> None:
        if self.fabric is not None:
            self.fabric.close()

    def _xid_watch(self, asked: bool) -> XidWatch | None:
        """What waits for critical errors of cards, the same one for every configuration."""
        if self.xids is None and asked:
            from launcherkit_plugin.devices.xid_watch import XidWatch

            self.xids = XidWatch(self.reporter.anew(), partial(self.wakeups.notify, Wakeup.HOST))
        return self.xids

    async def _let_go_of_cards(self) -> None:
        if self.xids is not None:
            await self.xids.close()

    def _keeper(self, asked: bool) -> Keeper | None:
        """What keeps devices for VMs, the same one for every configuration; it also removes records that are over."""
        if self.allocator.keeper is None and asked:
            from launcherkit_plugin.allocation.keeper import Keeper, records_in

            options, queue = self.options, self.wiring.queue
            records = records_in(options.state)
            list_pods = partial(list_pod_devices, options.pod_resources)
            self.allocator.keeper = Keeper(records, list_pods, queue, self.reporter.anew(), time.time)
            self.cluster.want_pods(self._told_of_pods)
        return self.allocator.keeper

    def _told_of_pods(self, here: Mapping[str, AskingPod], asking: Mapping[str, AskingPod]) -> None:
        """Tell the kubelet at once that a device may be had again by a pod that it is about to admit."""
        assert self.allocator.keeper is not None
        self.allocator.keeper.note_pods(here, asking)
        listed = [offer.resource for offer in self.allocator.listed().values()]
        if listed:
            self.advertiser.update(resource for resource in listed if not resource.dra)
        self.wakeups.notify(Wakeup.ALLOCATED)

    def _advertiser(self) -> Advertiser:
        return Advertiser(
            self.options.plugins,
            self.allocator,
            self.reporter,
            time.monotonic,
            dev_root=self.options.dev_root,
            changed=self.note_registered,
        )

    def _scanner(self) -> Scanner:
        """The scans of the host. The first reading begins now, while the configuration is read, which takes longer."""
        options, host, queue = self.options, self.wiring.host, self.wiring.queue
        reader = NodeReader()
        if options.config is not None:
            prepare = partial(reader.prepare, host)
            queue.begin("all functions", "reading them while the configuration is read", prepare, LATE_SECONDS)
        # Without a configuration, only PCI functions with VFIO drivers are advertised, so those can be read first. DRA
        # publishes all devices at once.
        bound = None if options.config is not None or options.dra else partial(read_bound, host)
        return Scanner(queue, partial(_scan, host, reader), bound)

    def _dra_driver(self, config: DraConfig) -> NodeDriver:
        from launcherkit_plugin.dra.claim_files import ClaimPlaces
        from launcherkit_plugin.dra.claim_queue import ANSWER_SECONDS
        from launcherkit_plugin.dra.claim_store import ClaimStore
        from launcherkit_plugin.dra.node_driver import NodeDriver

        def in_thread(claim: str, work: Callable[[], None]) -> Awaitable[None]:
            # To its end: the devices are reserved for so long, and the kubelet is answered in time all the same.
            queue = self.wiring.queue
            return queue.run_to_end(f"ResourceClaim {claim}", "writing its files", work, ANSWER_SECONDS)

        options = self.options
        places = ClaimPlaces(config.driver, options.kubelet_dir, config.cdi_folder, options.dev_root)
        store = ClaimStore(places, boot_id(options.proc), in_thread=in_thread)
        reporter = self.reporter.anew()
        return NodeDriver(config, store, self.allocator, self.cluster, reporter, self.env, self.note_registered)

    def _record(self) -> Callable[[HostFacts, Sequence[Resource], Usage, NodeChoice], None]:
        """The callable that publishes the node's record; it does nothing unless this is asked for."""
        if not self.options.publish_node:
            return lambda facts, resources, usage, nodes: None  # noqa: ARG005
        from launcherkit_plugin.rehearsal.node_record import NodeOffer, NodeRecorder

        queue = self.wiring.queue
        run = partial(queue.run, "record of the node", "reading the advertised devices", seconds=RECORD_SECONDS)
        recorder = NodeRecorder(self.wiring.host, run, self.cluster.publish_record, time.monotonic)
        return lambda facts, resources, usage, nodes: recorder.update(NodeOffer("", facts, resources, usage, nodes))

    def _node_hook(self, path: str) -> AbstractAsyncContextManager[object]:
        from launcherkit_plugin.nodehook.service import NodeHook, serving_node_hook

        wake = partial(self.wakeups.notify, Wakeup.PODS)
        hook = NodeHook(self.allocator, self.usage.read, self.wiring.stopped, wake, self.reporter)
        return serving_node_hook(path, hook)


def _scan(
    host: Host, reader: NodeReader, wants: Callable[[PciFunction], bool], vgpu: bool, progress: Progress
) -> HostFacts:
    return reader.read(host.followed(progress.open_tree), wants, vgpu=vgpu, without=progress.without)


def _watched(
    options: DaemonOptions, source: ConfigSource, advertiser: Advertiser, wakeups: WakeupQueue
) -> dict[str, Callable[[], None]]:
    dev = f"{options.host.rstrip('/')}/dev/vfio"
    return {
        options.plugins: _changed_plugins(options.checkpoint, advertiser, partial(wakeups.notify, Wakeup.PODS)),
        **dict.fromkeys((dev, f"{dev}/devices"), partial(wakeups.notify, Wakeup.HOST)),
        **dict.fromkeys(source.folders, partial(wakeups.notify, Wakeup.CONFIG)),
    }


def _changed_plugins(checkpoint: str, advertiser: Advertiser, pods: Callable[[], None]) -> Callable[[], None]:
    """The callback for changes in the kubelet's folder of plugins.

    The kubelet writes its checkpoint after it has allocated devices to a container; from then on, PodResources lists
    them. It writes nothing when a pod ends.
    """
    seen = identity(checkpoint)

    def changed() -> None:
        nonlocal seen
        advertiser.check_soon()
        before, seen = seen, identity(checkpoint)
        if seen not in (None, before):
            pods()

    return changed


class UsageReader:
    """Reads usage. If it is unknown, this is reported once, and not while the kubelet is just being restarted."""

    def __init__(self, options: DaemonOptions, env: Mapping[str, str], reporter: Reporter, queue: WorkQueue) -> None:
        self._paths = options.pod_resources, options.checkpoint
        self._states = partial(pod_states, kubelet_dir=options.kubelet_dir, proc=options.proc)
        pod = env.get("POD_NAMESPACE"), env.get("POD_NAME")
        self._own_pod = "/".join(map(str, pod)) if all(pod) else None
        self._reporter = reporter
        self._queue = queue

    async def read(self) -> Usage:
        problems: list[LauncherkitError] = []
        usage = await read_usage(
            *self._paths, own_pod=self._own_pod, states=self._states, notify=problems.append, queue=self._queue
        )
        if usage.source == "pod-resources":  # the better source; the other may not exist yet
            problems = []
        if problems:
            self._reporter.problem("usage", SeveralErrors(problems), after=2)
        else:
            self._reporter.solved("usage")
        return usage
