"""What a node offers, and its record for rehearsals elsewhere.

A record is the node's snapshot, what its daemon advertises, and which devices are held. It contains no serial numbers,
no names of hosts, pods or VMs, and nothing that containers were given. The daemon makes one when something has changed,
at most once a minute.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

from launcherkit.errors import LauncherkitError
from launcherkit.host.snapshot import dump, load
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress, UsbAddress
from launcherkit.model.host import HostFacts
from launcherkit.request.fields import DocumentErrors, Fields, flag, natural, parse_json, text
from launcherkit_plugin.model.config import CardUse, NodeChoice
from launcherkit_plugin.model.device import Device, Holder, Problem, Reason, Resource, Usage
from launcherkit_plugin.model.errors import BAD_NODE_RECORD

FORMAT = "launcherkit.io/node/v1"
MAX_BYTES = 900_000
"""The largest packed record: a ConfigMap may have 1 MiB, including its metadata."""
_MAX_UNPACKED = 64 << 20
_REMEDY = (
    "Check that the node's device plugin has this version, and see its log for the reason if it publishes no record."
)
_VM: CardUse = "vm"
_AUTO: NodeChoice = "auto"
_CHOICES = (_AUTO, "group", "cdev", "both")
_SOMEBODY = Holder("of that node")


NOBODY = Usage("pod-resources", {})
"""Usage in which no pod has a device."""


class NodeOffer(NamedTuple):
    """What the daemon of a node knows at one moment."""

    name: str
    facts: HostFacts
    resources: Sequence[Resource]
    usage: Usage = NOBODY
    nodes: NodeChoice = "auto"
    """Which device nodes containers get."""
    left_out: Mapping[str, Sequence[PciAddress]] = {}
    """Functions that would be devices if they were bound to a VFIO driver, by the name of their resource."""
    driver: str | None = None
    """The name of its DRA driver; None if it isn't known."""


def with_topology(offer: NodeOffer, host: Host) -> NodeOffer:
    """Add facts that a daemon doesn't need itself: NUMA nodes, and all details of advertised functions (P4, P5)."""
    devices = [device for resource in offer.resources for device in resource.devices.values()]
    measured = host.facts([function for device in devices for function in device.functions], topology=True)
    details = {**offer.facts.details, **measured.details}
    return offer._replace(facts=offer.facts._replace(details=details, numa=measured.numa))


def record_of(offer: NodeOffer) -> str:
    """The record of a node, as JSON. Deterministic."""
    return json.dumps(
        {
            "format": FORMAT,
            "host": json.loads(dump(offer.facts)),
            "resources": [_resource(each) for each in sorted(offer.resources, key=attrgetter("name"))],
            "held": sorted(offer.usage.kept_ids),
            "nodes": offer.nodes,
        }
    )


def pack(record: str) -> str:
    """Compress a record and encode it in base64. Deterministic."""
    return binascii.b2a_base64(zlib.compress(record.encode(), 9), newline=False).decode()


def unpack(packed: str, name: str) -> str:
    """Undo `pack`.

    Raises:
        BAD_NODE_RECORD: it isn't a packed record, or a decompression bomb.
    """
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(binascii.a2b_base64(packed, strict_mode=True), _MAX_UNPACKED)
        if reader.eof:
            return data.decode()
        problem_text = f"it has more than {_MAX_UNPACKED >> 20} MiB, or is cut off"
    except (ValueError, zlib.error) as problem:
        problem_text = str(problem)
    raise BAD_NODE_RECORD(f"{name}: the record can't be unpacked: {problem_text}", _REMEDY, file=name)


def read_record(record: str, name: str) -> NodeOffer:
    """Read a record; ``name`` is the node's.

    Raises:
        BAD_NODE_RECORD, SeveralErrors: the mistakes in it, each with its JSON path.
    """
    problems = DocumentErrors(name, BAD_NODE_RECORD, _REMEDY)
    fields = Fields(parse_json(record, problems), "$", problems)
    if fields.pop("format") != FORMAT:
        problems.fail("$.format", f"not {FORMAT!r}: this is not a record of a node, or it has another version")
    facts = load(json.dumps(fields.pop("host")), f"{name}: $.host")
    resources = [_read_resource(each) for each in fields.objects("resources")]
    held = fields.many("held", text, "the ID of a device")
    nodes = fields.required("nodes", _choice, f"one of {', '.join(_CHOICES)}", _AUTO)
    fields.finish()
    problems.raise_if_any()
    usage = Usage("pod-resources", {"": dict.fromkeys(held, _SOMEBODY)})
    return NodeOffer(name, facts, resources, usage, nodes)


def _resource(resource: Resource) -> dict[str, Any]:
    return {
        "name": resource.name,
        "variable": resource.variable,
        "companion": resource.companion,
        "dra": resource.dra,
        "use": resource.use,
        "lists_siblings": resource.lists_siblings,
        "devices": [_device(each) for each in resource.devices.values()],
    }


def _device(device: Device) -> dict[str, Any]:
    values = {
        "id": device.id,
        "numa_node": device.numa_node,
        "problem": device.problem and device.problem._asdict(),
        "groups": sorted(device.groups),
        "functions": list(map(str, device.functions)),
        "path": list(device.path),
        "description": device.description,
        "card": device.card,
        "made": device.made,
        "vgpu_types": list(device.vgpu_types),
        "place": device.place,
        "usb": list(map(str, device.usb)),
    }
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _read_resource(fields: Fields) -> Resource:
    made = Resource(
        fields.required("name", text, "a resource's name", ""),
        fields.required("variable", text, "a variable's name", ""),
        {device.id: device for device in map(_read_device, fields.objects("devices"))},
        companion=fields.optional("companion", flag, "true or false") is True,
        dra=fields.optional("dra", flag, "true or false") is True,
        use=fields.required("use", _use, "vm, kata or container", _VM),
        lists_siblings=fields.optional("lists_siblings", flag, "true or false") is True,
    )
    fields.finish()
    return made


def _read_device(fields: Fields) -> Device:
    problem = fields.child("problem")
    device = Device(
        fields.required("id", text, "a device's ID", ""),
        fields.optional("numa_node", natural, "the number of a NUMA node"),
        None if problem is None else _read_problem(problem),
        frozenset(fields.many("groups", natural, "the number of an IOMMU group")),
        fields.many("functions", _address, "an address"),
        fields.many("path", text, "the name of a bridge"),
        fields.optional("description", text, "text") or "",
        fields.optional("card", text, "a card") or "",
        made=fields.optional("made", flag, "true or false") is not False,
        vgpu_types=fields.many("vgpu_types", text, "a vGPU type"),
        place=fields.optional("place", text, "an address") or "",
        usb=fields.many("usb", _usb_address, "bus:device of a USB device"),
    )
    fields.finish()
    return device


def _read_problem(fields: Fields) -> Problem:
    problem = Problem(
        cast("Reason", fields.required("reason", text, "a reason", "failed")), fields.required("text", text, "text", "")
    )
    fields.finish()
    return problem


def _address(value: object) -> PciAddress:
    return PciAddress.parse(text(value))


def _usb_address(value: object) -> UsbAddress:
    return UsbAddress.parse(text(value))


def _use(value: object) -> CardUse:
    if value == "vm" or value == "kata" or value == "container":  # noqa: PLR1714  # which mypy understands
        return value
    raise ValueError


def _choice(value: object) -> NodeChoice:
    if value not in _CHOICES:
        raise ValueError
    return cast("NodeChoice", value)


PAUSE_SECONDS = 60.0

Run: TypeAlias = Callable[[Callable[[], str]], Awaitable[str]]
"""Runs work that may hang, in a thread. Raises a `LauncherkitError` if it does."""


class NodeRecorder:
    """Makes and sends records of the node.

    Args:
        host: read for facts that the daemon doesn't need itself: NUMA nodes, and all details of advertised functions.
        run: makes a record, for which devices are read.
        send: receives ``{"record": ...}``, or ``{"problem": ...}`` if no record can be made.
        clock: seconds on a monotonic clock.
    """

    def __init__(
        self, host: Host, run: Run, send: Callable[[Mapping[str, str]], None], clock: Callable[[], float]
    ) -> None:
        self._host = host
        self._run = run
        self._send = send
        self._clock = clock
        self._at = -PAUSE_SECONDS
        self._work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a record is being made."""
        return self._work is not None and not self._work.done()

    def update(self, offer: NodeOffer) -> None:
        """Make and send a record, unless the last one was less than `PAUSE_SECONDS` ago. Never waits."""
        now = self._clock()
        if now - self._at >= PAUSE_SECONDS and not self.busy:
            self._at = now
            self._work = asyncio.create_task(self._record(offer))

    async def _record(self, offer: NodeOffer) -> None:
        """A hanging device delays only the record (K9)."""
        try:
            packed = await self._run(partial(_packed, self._host, offer))
        except LauncherkitError as error:
            self._send({"problem": error.message})
            return
        if len(packed) > MAX_BYTES:
            self._send({"problem": f"the record has {len(packed)} bytes, more than {MAX_BYTES}"})
        else:
            self._send({"record": packed})


def _packed(host: Host, offer: NodeOffer) -> str:
    offer = with_topology(offer, host)
    return pack(record_of(offer._replace(facts=offer.facts._replace(unknown={}, events=None))))
