"""The expectations of DRA drivers. A number stays with its expectation; a new one gets the next."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from fractions import Fraction
from pathlib import Path
from typing import Any

from launcherkit_lab.conformance.cdi import nodes_of
from launcherkit_lab.conformance.dra_node import Device, DraNode, Key, bars_pods
from launcherkit_lab.conformance.expectation import Expectation, Level, NotTried, Unmet, judged
from launcherkit_lab.conformance.guest import problems_of_guest
from launcherkit_lab.conformance.lifecycle import GRACE_SECONDS
from launcherkit_lab.conformance.machine import CONTAINER, IOMMUFD, VFIO
from launcherkit_lab.conformance.sources import LAB
from launcherkit_lab.conformance.sources import VFIO as VFIO_RST
from launcherkit_lab.dra_socket import KNOWN, CallFailed, ClaimRef, Prepared, sockets

_SUBDOMAIN = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BUS_ID, _ROOT = "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot"
_FORMS = {
    _BUS_ID: re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"),
    _ROOT: re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}"),
}
_PARTS = {"n": 1_000_000_000, "u": 1_000_000, "m": 1_000}
_IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"


def _registers(node: DraNode) -> str:
    socket = node.socket
    if socket.kind != "DRAPlugin":
        raise Unmet(f"its type is {socket.kind!r}; the kubelet knows DRA drivers as DRAPlugin")
    if not _SUBDOMAIN.fullmatch(socket.name):
        raise Unmet(f"its name {socket.name!r} is no DNS subdomain of at most 63 characters")
    if not Path(socket.endpoint).is_absolute() or not Path(socket.endpoint).is_socket():
        raise Unmet(f"its endpoint {socket.endpoint!r} is no absolute path of a socket")
    return f"{socket.name}, which is called by {node.version()}"


def _newest(node: DraNode) -> str:
    if node.version() != KNOWN[0]:
        raise Unmet(f"a kubelet takes the first version that it knows of {', '.join(node.socket.versions)}")
    return ", ".join(node.socket.versions)


def _whole(node: DraNode) -> str:
    def problems() -> Iterator[str]:
        for pool, specs in node.slices().items():
            counts = {spec["pool"]["resourceSliceCount"] for spec in specs}
            if counts != {len(specs)}:
                yield f"pool {pool} has {len(specs)} slices, and resourceSliceCount {', '.join(map(str, counts))}"
            names = Counter(device["name"] for spec in specs for device in spec.get("devices") or ())
            yield from (f"pool {pool} has {count} devices {name}" for name, count in names.items() if count > 1)

    return judged(problems(), f"{len(node.devices())} devices")


def _addresses(node: DraNode) -> str:
    def problems() -> Iterator[str]:
        for (_, name), device in node.devices().items():
            for key, form in _FORMS.items():
                if (value := _attribute(device, key)) and not form.fullmatch(value):
                    yield f"{name}: {key} is {value!r}"
            address = _attribute(device, _BUS_ID)
            if address and not node.machine.exists(address) and not bars_pods(device):
                yield f"{name}: the machine has no function {address}"

    return judged(problems(), "what is named is there")


def _counters(node: DraNode) -> str:
    def problems() -> Iterator[str]:
        for specs in node.slices().values():
            sets = {one["name"]: one["counters"] for spec in specs for one in spec.get("sharedCounters") or ()}
            for device in (device for spec in specs for device in spec.get("devices") or ()):
                for taken in device.get("consumesCounters") or ():
                    total = sets.get(taken["counterSet"], {})
                    for counter, value in taken["counters"].items():
                        has = total.get(counter, {"value": "0"})["value"]
                        if _quantity(value["value"]) > _quantity(has):
                            place = f"{taken['counterSet']}/{counter}"
                            yield f"{device['name']} takes {value['value']} of {place}, of which its pool has {has}"

    return judged(problems(), "no device takes more than its pool has")


def _prepares(node: DraNode) -> str:
    with node.prepared() as (_, key, devices):
        if [(one.pool, one.device, one.requests or ("r0",)) for one in devices] != [(*key, ("r0",))]:
            raise Unmet(f"{key[1]} of pool {key[0]} is allocated to r0; prepared is {_told(devices)}")
        paths = [Path(one.host_path) for one in nodes_of(node.edits(devices))]
        places = ((path, node.machine.root / path.relative_to("/")) for path in paths)
        missing = (f"the node {path} isn't there" for path, below in places if not path.exists() and not below.exists())
        return judged(missing, f"{key[1]}: {', '.join(name for device in devices for name in device.cdi) or 'no CDI'}")


def _vfio(node: DraNode) -> str:
    with node.prepared() as (_, key, devices):
        address = _on_vfio(node, key)
        nodes = {one.path for one in nodes_of(node.edits(devices))}
        ways = [{CONTAINER, str(VFIO / (node.machine.group(address) or "none"))}]
        if cdev := node.machine.cdev(address):
            ways.append({IOMMUFD, cdev})
        if not any(way <= nodes for way in ways):
            needed = " or ".join(", ".join(sorted(way)) for way in ways)
            raise Unmet(f"for {address} a container needs {needed}; it gets {', '.join(sorted(nodes)) or 'no node'}")
        return ", ".join(sorted(nodes))


def _several(node: DraNode) -> str:
    with node.claim(node.free()) as one, node.claim() as other:
        try:
            answers = node.socket.prepare(node.version(), one, other)
        except CallFailed as failure:
            raise Unmet(f"one claim that can't be prepared fails the call for both: {failure}") from failure
        finally:
            with suppress(Unmet):
                node.unprepare_claim(one)
        if set(answers) != {one.uid, other.uid}:
            raise Unmet(f"it was asked for {one.uid} and {other.uid}, and answers for {', '.join(answers) or 'none'}")
        if error := answers[one.uid][1]:
            raise Unmet(f"beside a claim without allocation one isn't prepared that has one: {error}")
    return "an answer for each"


def _twice(node: DraNode) -> str:
    with node.prepared() as (claim, _, devices):
        _same(devices, node.prepare_claim(claim), "the second time")
        node.edits(devices)
    return "the same answer"


def _versions(node: DraNode) -> str:
    versions = [version for version in node.socket.versions if version in KNOWN]
    with node.prepared() as (claim, _, devices):
        for version in versions:
            _same(devices, node.prepare_claim(claim, version), f"by {version}")
    return ", ".join(versions)


def _refuses(node: DraNode) -> str:
    with node.claim() as waiting:
        seen = _refused(node, waiting, "a claim without allocation")
    with node.claim(node.free()) as claim:
        _refused(node, ClaimRef(claim.namespace, claim.name, str(uuid.uuid4())), "a claim of another UID")
    _refused(node, ClaimRef(node.namespace, "lab-none", str(uuid.uuid4())), "a claim that the API hasn't")
    return seen


def _two_holders(node: DraNode) -> str:
    with node.prepared() as (_, key, _), node.claim(key) as second:
        return _refused(node, second, "a claim of what another one has")


def _unprepares(node: DraNode) -> str:
    before = set(node.cdi.iterdir())
    with node.prepared() as (claim, _, _):
        for _ in range(2):
            node.unprepare_claim(claim)
        return _nothing_left(node, before)


def _unknown(node: DraNode) -> str:
    node.unprepare_claim(ClaimRef(node.namespace, "lab-none", str(uuid.uuid4())))
    return "no error"


def _killed(node: DraNode) -> str:
    with node.prepared() as (claim, _, devices):
        node.driver.kill()
        node.start()
        node.edits(devices)
        _same(devices, node.prepare_claim(claim), "after a kill")
    return "the same answer"


def _killed_and_gone(node: DraNode) -> str:
    before = set(node.cdi.iterdir())
    with node.prepared() as (claim, key, _):
        node.driver.kill()
        node.forget(claim.name)
        node.start()
        node.unprepare_claim(claim)
        seen = _nothing_left(node, before)
    with node.claim(key) as second:
        node.prepare_claim(second)
        node.unprepare_claim(second)
    return f"{seen}; the next claim has the device"


def _wiped(node: DraNode) -> str:
    before = {*node.devices()}
    node.wipe()
    node.wait(lambda: {*node.devices()} == before, "the slices again, with the same devices")
    return f"{len(before)} devices again"


def _ended(node: DraNode) -> str:
    if node.driver.end(GRACE_SECONDS) is None:
        raise Unmet(f"it had to be killed {GRACE_SECONDS} s after SIGTERM")
    return judged((f"{path} is left" for path in sockets(node.registry)), "no socket is left")


def _metadata(node: DraNode) -> str:
    with node.prepared() as (claim, key, devices):
        mounts = {
            one["containerPath"]: one["hostPath"] for edit in node.edits(devices) for one in edit.get("mounts") or ()
        }
        ours = {path for path in mounts if path.startswith(_IN_CONTAINER)}
        if not ours:
            raise NotTried("it mounts no metadata")
        path = f"{_IN_CONTAINER}/resourceclaims/{claim.name}/r0/{node.socket.name}-metadata.json"
        if ours != {path}:
            raise Unmet(f"readers look for {path}; mounted is {', '.join(sorted(ours))}")
        try:
            objects = [*_stream(Path(mounts[path]).read_text())]
        except (OSError, ValueError) as error:
            raise Unmet(f"a reader can't read {mounts[path]}: {error}") from error
        attributes = {*(node.devices()[key].get("attributes") or ())}
        versions = [one for one in objects if str(one.get("apiVersion")).startswith("metadata.resource.k8s.io/")]
        if not versions:
            raise Unmet(f"{mounts[path]} has no object of metadata.resource.k8s.io")
        problems = (text for one in versions for text in _undescribed(one, claim, (node.socket.name, *key), attributes))
        return judged(problems, ", ".join(one["apiVersion"].partition("/")[2] for one in versions))


def _undescribed(
    one: Mapping[str, Any], claim: ClaimRef, device: tuple[str, str, str], attributes: set[str]
) -> Iterator[str]:
    version, of = one["apiVersion"], one.get("metadata") or {}
    if one.get("kind") != "DeviceMetadata" or (of.get("namespace"), of.get("name"), of.get("uid")) != astuple(claim):
        yield f"{version}: it is a {one.get('kind')} of {of}, not one of {claim}"
    described = {
        (request.get("name"), *map(entry.get, ("driver", "pool", "name"))): {*(entry.get("attributes") or ())}
        for request in one.get("requests") or ()
        for entry in request.get("devices") or ()
    }
    if set(described) != {("r0", *device)}:
        yield f"{version}: it has {sorted(described, key=str)}; {', '.join(device)} is allocated to r0"
    elif missing := attributes - described["r0", *device]:
        yield f"{version}: without attributes of the slice: {', '.join(sorted(missing))}"


def _taints(node: DraNode) -> str:
    key = next((key for key in sorted(node.devices()) if _is_offered(node, key) and _bus_id_on_vfio(node, key)), None)
    if key is None:
        raise NotTried("no device that is offered names by pciBusID a function on a VFIO driver")
    address, limit = _on_vfio(node, key), node.limits.health_seconds
    with node.machine.unbound(address):
        node.wait(
            lambda: not _is_offered(node, key), f"a taint on {key[1]}, or it gone, once {address} was unbound", limit
        )
    node.wait(lambda: _is_offered(node, key), f"{key[1]} without a taint, once {address} was bound again", limit)
    return f"{key[1]} and back"


def _in_guest(node: DraNode) -> str:
    with node.prepared() as (_, key, devices):
        address = _on_vfio(node, key)
        nodes = {one.path: one.host_path for one in nodes_of(node.edits(devices))}
        problems = problems_of_guest(node.machine, [address], nodes, node.limits.patience)
        return judged(problems, f"a guest has found {address}")


def _is_offered(node: DraNode, key: Key) -> bool:
    device = node.devices().get(key)
    return device is not None and not bars_pods(device)


def _bus_id_on_vfio(node: DraNode, key: Key) -> str | None:
    address = _attribute(node.devices()[key], _BUS_ID)
    return address if address and node.machine.exists(address) and node.machine.on_vfio(address) else None


def _on_vfio(node: DraNode, key: Key) -> str:
    """The function of a device.

    Raises:
        NotTried: there is none that a VFIO driver has.
    """
    if address := _bus_id_on_vfio(node, key):
        return address
    raise NotTried(f"{key[1]} names by pciBusID no function that a VFIO driver has")


def _attribute(device: Device, name: str) -> str | None:
    value: str | None = (device.get("attributes") or {}).get(name, {}).get("string")
    return value


def _same(first: tuple[Prepared, ...], second: tuple[Prepared, ...], when: str) -> None:
    """In any order, which means nothing."""
    if _sorted(first) != _sorted(second):
        raise Unmet(f"{when} it answers {_told(second)}; it was {_told(first)}")


def _sorted(devices: Sequence[Prepared]) -> list[tuple[object, ...]]:
    return sorted((one.pool, one.device, sorted(one.requests), sorted(one.cdi)) for one in devices)


def _told(devices: Sequence[Prepared]) -> str:
    texts = (f"{one.device} of {one.pool} for {', '.join(one.requests)} by {', '.join(one.cdi)}" for one in devices)
    return "; ".join(texts) or "no device"


def _nothing_left(node: DraNode, before: set[Path]) -> str:
    return judged((f"{path} is left" for path in sorted(set(node.cdi.iterdir()) - before)), "no CDI file is left")


def _refused(node: DraNode, claim: ClaimRef, event: str) -> str:
    try:
        devices, error = node.socket.prepare(node.version(), claim).get(claim.uid, ((), ""))
    except CallFailed as failure:
        if not failure.is_an_answer:
            raise Unmet(f"asked for {event} it doesn't answer: {failure}") from failure
        return str(failure)
    if not error:
        with suppress(Unmet):
            node.unprepare_claim(claim)
        raise Unmet(f"{event} was prepared: {devices}")
    return error


def _quantity(text: str) -> Fraction:
    """A quantity of Kubernetes, ``1Gi`` or ``500m``."""
    number = text.rstrip("inumkKMGTPE")
    unit = text.removeprefix(number)
    if unit in _PARTS:
        return Fraction(number) / _PARTS[unit]
    return Fraction(number) * Fraction(1024 if unit.endswith("i") else 1000) ** " KMGTPE".index(unit[:1].upper() or " ")


def _stream(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON stream."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:]


_KUBELET = "kubernetes, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go"
_GO = "kubernetes/dynamic-resource-allocation, kubeletplugin/draplugin.go"
_PREPARE, _UNPREPARE = f"{_GO}, PrepareResourceClaims", f"{_GO}, UnprepareResourceClaims"
_ATTRIBUTES = "kubernetes/dynamic-resource-allocation, deviceattribute"
_MUST, _SHOULD = Level.MUST, Level.SHOULD
DRA: tuple[Expectation[DraNode], ...] = tuple(
    Expectation(f"DRA{number}", level, title, source, check)
    for number, (level, title, source, check) in enumerate(
        (
            (_MUST, "It registers as DRAPlugin, with a service that kubelets call", _KUBELET, _registers),
            (_SHOULD, "It names v1.DRAPlugin before older ones", _KUBELET, _newest),
            (_MUST, "Its pools are complete, and have a device once", "KEP-4381, ResourceSlice", _whole),
            (_MUST, "Bus addresses and root complexes have the common form, and are there", _ATTRIBUTES, _addresses),
            (_MUST, "No device takes more of a counter than its pool has", "KEP-4815", _counters),
            (_MUST, "What is allocated is prepared, with CDI devices that a runtime finds", _PREPARE, _prepares),
            (_MUST, "A function on vfio-pci comes with the nodes by which it is opened", VFIO_RST, _vfio),
            # No must: kubeletplugin's getResourceClaims fails for all, and the kubelet asks for allocated claims alone.
            (_SHOULD, "Of several claims each has its answer", _PREPARE, _several),
            (_MUST, "A claim that is prepared is prepared again, with the same answer", _PREPARE, _twice),
            (_MUST, "Every service that it names gives the same answer", "kubernetes/kubelet, pkg/apis/dra", _versions),
            (
                _MUST,
                "No claim is prepared without allocation, with another UID, or when it has gone",
                _PREPARE,
                _refuses,
            ),
            (_SHOULD, "A device that one claim has is prepared for no other", _PREPARE, _two_holders),
            (_MUST, "Unprepare leaves no CDI file, and can be repeated", _UNPREPARE, _unprepares),
            (_MUST, "Unprepare of an unknown claim succeeds", _UNPREPARE, _unknown),
            (_MUST, "After a kill it still has what it had prepared", _PREPARE, _killed),
            (_MUST, "After a kill it unprepares, though the claim has gone", _UNPREPARE, _killed_and_gone),
            (_MUST, "Slices that the kubelet has deleted are there again", _KUBELET, _wiped),
            (_MUST, "Ended by SIGTERM it leaves no socket", f"{_GO}, RollingUpdate", _ended),
            (_MUST, "Metadata, if there is any, is where readers look, and of the claim", "KEP-5304", _metadata),
            (_SHOULD, "A device that can't be used gets a taint or goes, and comes back", "KEP-5055", _taints),
            (
                _MUST,
                "A guest with a claim's nodes finds the function of its device",
                f"{VFIO_RST}, Usage Example; {LAB}: it is what the device is for",
                _in_guest,
            ),
        ),
        start=1,
    )
)
