"""The daemon's process: puts together everything that the loop needs, runs it, and ends on a signal.

pydantic and YAML are not imported here: each would take a tenth of the memory. They are used in processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from launcherkit.errors import LauncherkitError, SeveralErrors
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.process.stopping import told_to_stop
from launcherkit.rpc.faults import Faults
from launcherkit.rpc.server import silence_tracebacks
from launcherkit.rpc.unix_socket import identity
from launcherkit.sources.host import Host
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.cluster.socket import ClusterSocket, no_cluster_socket
from launcherkit_plugin.config.child import read_config_in_child
from launcherkit_plugin.config.source import ConfigSource
from launcherkit_plugin.daemon.dra_drivers import DraDrivers
from launcherkit_plugin.daemon.http_pages import probe_pages, web_pages
from launcherkit_plugin.daemon.loop import Daemon, Outlets, WakingAllocator
from launcherkit_plugin.daemon.wiring import Setup, Wiring, assemble
from launcherkit_plugin.devices.selectors import with_auto, with_dra
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.processes import boot_id, pod_states
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.scan import LATE_SECONDS, NodeReader, Scanner, read_bound
from launcherkit_plugin.host.watch import watching
from launcherkit_plugin.host.work_queue import Guarded
from launcherkit_plugin.host.worker import Standby
from launcherkit_plugin.http.unix_server import serving_at
from launcherkit_plugin.kubelet.advertiser import Advertiser
from launcherkit_plugin.kubelet.usage import CHECKPOINT, CHECKPOINT_SECONDS, READING_CHECKPOINT, read_usage
from launcherkit_plugin.model.config import NODE, Auto, Config, DraConfig, NodeChoice, Reading
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.model.errors import NoCluster, NoProbeSocket, NoWebSocket
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.node_features import FeatureFile, features
from launcherkit_plugin.telemetry.probe_state import ProbeState
from launcherkit_plugin.telemetry.reporter import Lines, Log, Reporter, Waits
from launcherkit_plugin.vgpu.lifecycle import Stopped

if TYPE_CHECKING:
    from launcherkit_plugin.dra.node_driver import NodeDriver
    from launcherkit_plugin.host.open_files import OpenFilesHelper

T = TypeVar("T")

SETTLE_SECONDS = 0.05
"""The pause between a wakeup and the scan: a card that appears or disappears causes a dozen wakeups."""
CLUSTER_SECONDS = 30.0
"""How long to wait, at the start, for KubeVirt's settings in the cluster if the configuration uses them."""
RECORD_SECONDS = 30.0
"""How long reading all advertised functions for the node's record may take; each takes less than a millisecond."""
QUIET_SECONDS = 600.0
"""If there was no turn for this long, the daemon is unhealthy. Much longer than any pause or deadline in a turn."""


class Options(NamedTuple):
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
    proc: str
    features_dir: str
    dra: bool = False
    publish_node: bool = False

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


async def serve(options: Options, env: Mapping[str, str], early: Early = Early()) -> None:  # noqa: B008  # immutable
    """Serve until SIGTERM or SIGINT. A second signal ends it without waiting for calls in progress.

    Args:
        options: of the command line.
        env: of the process.
        early: what was started already.

    Raises:
        LauncherkitError: it can't start: the configuration is wrong, or the host can't be read.
    """
    silence_tracebacks(env)
    log = Lines(env, time.time)
    stop, end_now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(Faults(lambda text: log("error", text)))
    with told_to_stop(lambda: end_now.set() if stop.is_set() else stop.set()):
        if early.helper is not None:
            loop.add_reader(early.helper, _without_helper, loop, early.helper, log, stop)
        started = asyncio.Event()
        serving = asyncio.create_task(_serve(options, env, log, stop, started, early))
        for signalled in (stop, end_now):
            waiting = asyncio.create_task(signalled.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not started.is_set():
                break
        if not serving.done():
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def _without_helper(loop: asyncio.AbstractEventLoop, helper: OpenFilesHelper, log: Log, stop: asyncio.Event) -> None:
    loop.remove_reader(helper)
    log("error", f"the process that reads open files (PID {helper.pid}) has ended; start the daemon again")
    stop.set()


async def _serve(
    options: Options, env: Mapping[str, str], log: Log, stop: asyncio.Event, started: asyncio.Event, early: Early
) -> None:
    health, wakeups = ProbeState(time.monotonic, patience=QUIET_SECONDS), WakeupQueue(SETTLE_SECONDS)
    async with AsyncExitStack() as opened:
        cluster = ClusterSocket(log, wakeups)
        if options.probe_socket is not None:
            await opened.enter_async_context(serving_at(options.probe_socket, probe_pages(health), _no_probe_socket))
        reporter, show = await _web(options, env, cluster, log, opened)
        if options.cluster_socket is not None:
            await opened.enter_async_context(cluster.listening(options.cluster_socket))
        allocator = Allocator(Reservations(), time.monotonic)
        wiring = _wiring(options, reporter, wakeups, allocator.usage, opened, early.helper)

        def ready(_: object = None) -> None:
            health.waiting(_waiting_for([*advertiser.unregistered(), *drivers.unregistered()]))

        advertiser = _advertiser(options, allocator, wakeups, reporter, ready)
        opened.push_async_callback(advertiser.close)
        make = partial(_dra_driver, options, env, allocator, cluster, wiring, wakeups.give, ready)
        drivers = DraDrivers(make, f"{options.kubelet_dir}/plugins")
        opened.push_async_callback(drivers.close)
        seen = opened.enter_context(watching(partial(wakeups.give, Wakeup.HOST)))
        record = _recorder(options, wiring, cluster)
        labels = FeatureFile(options.features_dir)
        opened.callback(labels.remove)
        source = ConfigSource(options.config, _Reader(options, early.first))

        def watch() -> None:
            seen.folders(_watched(options, source, advertiser, wakeups))

        def publish(facts: HostFacts, resources: Sequence[Resource], setup: Setup) -> None:
            seen.renew()
            drivers.listed(facts, resources, setup.dra)
            ready()
            labels.write(features(facts, resources))
            record(facts, resources, allocator.usage(), setup.nodes)

        watch()
        configuration = _Configuration(source, cluster, watch, wiring)
        scanner = _scanner(options, wiring)
        reading = await configuration.first()
        read_usage = _UsageReader(options, env, reporter, wiring.guarded).read
        if options.node_hook is not None:
            await opened.enter_async_context(_node_hook(options.node_hook, allocator, read_usage, wiring, wakeups))
        setup = configuration.assembled(reading)
        drivers.start(setup.dra)
        daemon = Daemon(
            setup,
            allocator,
            wakeups,
            reporter,
            scanner=scanner,
            read_usage=read_usage,
            reload=configuration.reload,
            outlets=Outlets(publish, show),
        )
        started.set()
        await daemon.run(advertiser, stop, health.turned)
        log("info", "ending")


def _advertiser(
    options: Options,
    allocator: Allocator,
    wakeups: WakeupQueue,
    reporter: Reporter,
    changed: Callable[[Sequence[str]], object],
) -> Advertiser:
    return Advertiser(
        options.plugins,
        WakingAllocator(allocator, wakeups),
        reporter,
        time.monotonic,
        dev_root=options.dev_root,
        changed=changed,
    )


def _scanner(options: Options, wiring: Wiring) -> Scanner:
    """The scans of the host. The first reading begins at once, while the configuration is read, which takes longer."""
    reader = NodeReader()
    if options.config is not None:
        prepare = partial(reader.prepare, wiring.host)
        wiring.guarded.begin("all functions", "reading them while the configuration is read", prepare, LATE_SECONDS)
    # Without a configuration, only PCI functions with VFIO drivers are advertised, so those can be read first. DRA
    # publishes all devices at once.
    bound = None if options.config is not None or options.dra else partial(read_bound, wiring.host)
    return Scanner(wiring.guarded, partial(_scan, wiring.host, reader), bound)


def _wiring(
    options: Options,
    reporter: Reporter,
    wakeups: WakeupQueue,
    usage: Callable[[], Usage],
    opened: AsyncExitStack,
    helper: OpenFilesHelper | None,
) -> Wiring:
    return Wiring(
        host=node_host(options.host),
        root=options.host,
        reporter=reporter,
        guarded=Guarded(Waits(reporter, partial(wakeups.give, Wakeup.HOST))),
        stopped=Stopped(),
        dev_root=options.dev_root,
        proc=options.proc,
        ledger=options.ledger,
        usage=usage,
        make_worker=opened.enter_context(closing(Standby())).worker,
        helper=helper,
    )


class _Configuration:
    """Reads the configuration from its file and the cluster, and makes a `Setup` of it."""

    def __init__(
        self,
        source: ConfigSource,
        cluster: ClusterSocket,
        watch: Callable[[], None],
        wiring: Wiring,
    ) -> None:
        """``watch`` is called whenever a configuration has been read: it may have other files."""
        self._source = source
        self._cluster = cluster
        self._watch = watch
        self._wiring = wiring

    async def first(self) -> Reading:
        """Read it at the start. If it uses the cluster's settings, these are waited for."""
        reading = await self._source.first()
        if not reading.cluster:
            return reading
        self._cluster.want_kubevirt()
        try:
            self._source.set_cluster(*await self._cluster.first(CLUSTER_SECONDS))
        except NoCluster as silent:
            self._wiring.reporter.error(silent)  # what the file itself configures doesn't wait for the cluster
        return await self._source.again() or reading

    async def reload(self) -> Setup | None:
        """Read it again; None if nothing else comes into force."""
        self._source.set_cluster(*self._cluster.facts)
        reading = await self._source.again()
        if reading is None:
            return None
        if reading.cluster and _waits_for(self._cluster, self._wiring.reporter):
            self._source.forget()  # the settings' arrival is a wakeup; until then the old configuration stays
            return None
        return self.assembled(reading)

    def assembled(self, reading: Reading) -> Setup:
        """The setup of a configuration, whose files are watched from now on."""
        for note in reading.notes:
            self._wiring.reporter.log("info", note.text, topic=note.topic)
        self._watch()
        return assemble(reading.config, self._wiring)


def _waits_for(cluster: ClusterSocket, reporter: Reporter) -> bool:
    """Whether a configuration that uses the cluster's settings has to wait for them. Without a cluster socket, this is
    reported as an error, and the rest of the configuration comes into force.
    """
    cluster.want_kubevirt()
    if not cluster.listens:
        reporter.error(no_cluster_socket())
    return cluster.listens and cluster.facts[0] is None


class _Reader:
    """Reads the configuration file in a process of its own. Without a file, the command line's options are used."""

    def __init__(self, options: Options, first: asyncio.Task[Reading] | None) -> None:
        self._options = options
        self._first = first

    async def __call__(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str]) -> Reading:
        path, auto = self._options.config, self._options.auto
        if path is None:
            return Reading(with_dra(with_auto(Config(auto=auto)), every=self._options.dra))
        if self._first is not None:
            first, self._first = self._first, None
            return await asyncio.shield(first)  # the caller that started it waits for its end
        return await read_config_in_child(path, auto, kubevirt, labels, dra=self._options.dra)


def _scan(
    host: Host, reader: NodeReader, wanted: Callable[[PciFunction], bool], vgpu: bool, progress: Progress
) -> HostFacts:
    return reader.read(host.followed(progress.open_tree), wanted, vgpu=vgpu, without=progress.without)


def _dra_driver(
    options: Options,
    env: Mapping[str, str],
    allocator: Allocator,
    cluster: ClusterSocket,
    wiring: Wiring,
    wake: Callable[[Wakeup], object],
    changed: Callable[[], object],
    config: DraConfig,
) -> NodeDriver:
    from launcherkit_plugin.dra.claim_files import ClaimPlaces
    from launcherkit_plugin.dra.node_driver import NodeDriver
    from launcherkit_plugin.dra.turns import ANSWER_SECONDS

    def in_thread(claim: str, work: Callable[[], T]) -> Awaitable[T]:
        # To its end: the claim's devices are reserved for so long, and the kubelet is answered in time all the same.
        return wiring.guarded.run_to_end(f"ResourceClaim {claim}", "writing its files", work, ANSWER_SECONDS)

    places = ClaimPlaces(config.driver, options.kubelet_dir, config.cdi_folder, options.dev_root)
    boot = boot_id(options.proc)
    return NodeDriver(
        config,
        places,
        allocator,
        cluster,
        wiring.reporter.anew(),
        wake,
        env=env,
        boot=boot,
        changed=changed,
        in_thread=in_thread,
    )


def _recorder(
    options: Options, wiring: Wiring, cluster: ClusterSocket
) -> Callable[[HostFacts, Sequence[Resource], Usage, NodeChoice], None]:
    """The callable that publishes the node's record; it does nothing unless this is asked for."""
    if not options.publish_node:
        return lambda facts, resources, usage, nodes: None  # noqa: ARG005
    from launcherkit_plugin.rehearsal.node_record import NodeRecorder
    from launcherkit_plugin.rehearsal.offer import NodeOffer

    run = partial(wiring.guarded.run, "record of the node", "reading the advertised devices", seconds=RECORD_SECONDS)
    recorder = NodeRecorder(wiring.host, run, cluster.publish_record, time.monotonic)
    return lambda facts, resources, usage, nodes: recorder.take(NodeOffer("", facts, resources, usage, nodes))


def _waiting_for(names: Sequence[str]) -> str:
    return f"not registered with the kubelet: {', '.join(names)}" if names else ""


def _watched(
    options: Options, source: ConfigSource, advertiser: Advertiser, wakeups: WakeupQueue
) -> dict[str, Callable[[], None]]:
    dev = f"{options.host.rstrip('/')}/dev/vfio"
    return {
        options.plugins: _changed_plugins(options.checkpoint, advertiser, partial(wakeups.give, Wakeup.PODS)),
        **dict.fromkeys((dev, f"{dev}/devices"), partial(wakeups.give, Wakeup.HOST)),
        **dict.fromkeys(source.folders, partial(wakeups.give, Wakeup.CONFIG)),
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


class _UsageReader:
    """Reads usage. If it is unknown, this is reported once, and not while the kubelet is just being restarted."""

    def __init__(self, options: Options, env: Mapping[str, str], reporter: Reporter, guarded: Guarded) -> None:
        self._paths = options.pod_resources, options.checkpoint
        self._states = partial(pod_states, kubelet_dir=options.kubelet_dir, proc=options.proc)
        pod = env.get("POD_NAMESPACE"), env.get("POD_NAME")
        self._own_pod = "/".join(map(str, pod)) if all(pod) else None
        self._reporter = reporter
        self._in_thread = partial(guarded.run, options.checkpoint, READING_CHECKPOINT, seconds=CHECKPOINT_SECONDS)

    async def read(self) -> Usage:
        problems: list[LauncherkitError] = []
        usage = await read_usage(
            *self._paths, own_pod=self._own_pod, states=self._states, tell=problems.append, in_thread=self._in_thread
        )
        if usage.source == "pod-resources":  # the better source; the other may not exist yet
            problems = []
        if problems:
            self._reporter.problem("usage", SeveralErrors(problems), after=2)
        else:
            self._reporter.solved("usage")
        return usage


def _node_hook(
    path: str,
    allocator: Allocator,
    read_usage: Callable[[], Awaitable[Usage]],
    wiring: Wiring,
    wakeups: WakeupQueue,
) -> AbstractAsyncContextManager[object]:
    from launcherkit_plugin.nodehook.service import NodeHook, serving_node_hook

    wake = partial(wakeups.give, Wakeup.PODS)
    return serving_node_hook(path, NodeHook(allocator, read_usage, wiring.stopped, wake, wiring.reporter))


async def _web(
    options: Options, env: Mapping[str, str], cluster: ClusterSocket, log: Log, opened: AsyncExitStack
) -> tuple[Reporter, Callable[[HostFacts, Sequence[Resource], Usage], object]]:
    """Serve metrics and page to the web process. Returns who counts, and who is shown the facts of each turn."""
    if options.web_socket is None:
        return Reporter(log, events=cluster), lambda facts, resources, usage: None  # noqa: ARG005
    from launcherkit_plugin.page.live import NodePage
    from launcherkit_plugin.page.view import RecentChanges
    from launcherkit_plugin.telemetry.prometheus import PrometheusMetrics

    metrics, recent = PrometheusMetrics(), RecentChanges(cluster, time.time)
    page = NodePage(env.get(NODE) or os.uname().nodename, options.host, recent, time.time)
    pages = web_pages(metrics, page, cluster)
    await opened.enter_async_context(serving_at(options.web_socket, pages, _no_web_socket))
    return Reporter(log, metrics, recent), page.saw


def _no_web_socket(path: str, why: str) -> NoWebSocket:
    return NoWebSocket(
        f"{path}: the socket for the web process can't be created: {why}",
        "Mount a folder into both containers, writable for this user, and give a socket in it with --web-socket.",
        file=path,
        key="--web-socket",
    )


def _no_probe_socket(path: str, why: str) -> NoProbeSocket:
    return NoProbeSocket(
        f"--probe-socket {path}: {why}",
        "Give a socket in a folder that exists and is writable.",
        file=path,
        key="--probe-socket",
    )
