"""The files of a prepared ResourceClaim: their paths and contents (D9), those that a killed process left behind, and
which devices they name where the claim's record doesn't.

Each request has a metadata file (KEP-5304) with the attributes of its devices. One CDI file has the device nodes and
variables of each device of the claim; the first device of a request also mounts the metadata file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from glob import escape, glob
from typing import Any, NamedTuple

from launcherkit.atomic import Disk
from launcherkit.request.fields import Fields, FirstProblem, strict_json, string, text
from launcherkit_plugin.devices.cdi import VERSION, node_edit
from launcherkit_plugin.dra.claim_record import FOLDER, Checkpoint, ClaimRecords, PreparedDevice
from launcherkit_plugin.dra.labels import LONGEST_TEXT, NO_ATTRIBUTES, Attributes, attribute, share_name
from launcherkit_plugin.dra.resource_claim import AllocatedClaim, AllocatedDevice
from launcherkit_plugin.model.config import DraConfig
from launcherkit_plugin.model.device import ClaimRef, Usage
from launcherkit_plugin.records import SUFFIX, read_regular

_IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
_VERSIONS = ("v1beta1", "v1alpha1")
"""The versions of the metadata, newest first. A file has the same object in each version; readers skip unknown ones."""
_METADATA = "metadata.json"
ADMIN, ADMIN_FILE = "admin-access", "devices.json"
"""The folder of what claims with admin access get, in the driver's folder and in containers, and the file in it."""
_ONLY = ":"
"""In a CDI name between the UID and a request with admin access; no UID has it. Its devices aren't named: nobody has
them."""
SHARE_ID = "shareID"
"""The attribute of a share in a claim's metadata, which has no other place for it."""
_NAME_BYTES = 255
"""The longest file name. Namespace and name of a claim may have 317 bytes together."""


class ClaimPlaces(NamedTuple):
    """The paths of a driver's files on the host. The plugin's container must mount them at the same paths."""

    driver: str
    kubelet_dir: str
    cdi: str
    """The folder where container runtimes look for CDI files."""
    dev_root: str = ""
    """Prefix of the paths of device nodes on the host."""

    @property
    def data(self) -> str:
        """The driver's own folder."""
        return f"{self.kubelet_dir}/plugins/{self.driver}"

    @property
    def records(self) -> str:
        """The folder of the `launcherkit_plugin.dra.claim_record.Checkpoint`."""
        return f"{self.data}/{FOLDER}"

    @property
    def metadata(self) -> str:
        """The folder of the metadata of all claims."""
        return f"{self.data}/dra-device-metadata"

    def of_claim(self, uid: str) -> str:
        """The CDI file with a claim's devices."""
        return f"{self.cdi}/{self.driver}_{uid}{SUFFIX}"

    def metadata_folder(self, ref: ClaimRef) -> str:
        """The folder for the metadata of all claims of this name; if the name is too long, for this claim only."""
        name = f"{ref.namespace}_{ref.name}"
        return f"{self.metadata}/{name if len(name) <= _NAME_BYTES else ref.uid}"

    def admin_folder(self, uid: str, request: str = "") -> str:
        """The folder that containers get for a request with admin access; without one, the folder of the claim's."""
        return f"{self.data}/{ADMIN}/{uid}" + (f"/{request}" if request else "")

    def admin_file(self, uid: str, request: str) -> str:
        """The file in it, see `launcherkit_plugin.dra.admin_access`."""
        return f"{self.admin_folder(uid, request)}/{ADMIN_FILE}"

    def metadata_file(self, ref: ClaimRef, request: str) -> str:
        """The metadata file of a request, on the host."""
        return f"{self.metadata_folder(ref)}/{request}/{_METADATA}"


class GrantedDevice(NamedTuple):
    """A device of a claim, and what containers get for it."""

    result: AllocatedDevice
    resource: str
    id: str
    nodes: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    attributes: Attributes = NO_ATTRIBUTES


def prepared(claim: AllocatedClaim, granted: Sequence[GrantedDevice], driver: str) -> tuple[PreparedDevice, ...]:
    """The devices in the form of the answer to the kubelet. Those of a request with admin access have one CDI name."""
    return tuple(
        PreparedDevice(
            result.request,
            result.pool,
            result.device,
            device.resource,
            device.id,
            (f"{driver}/claim={_name_of(claim.ref, result)}",),
            result.share_id,
            result.admin,
        )
        for device in granted
        for result in (device.result,)
    )


def files_of(claim: AllocatedClaim, granted: Sequence[GrantedDevice], places: ClaimPlaces) -> dict[str, bytes]:
    """The contents of all files by path, in the order in which they must be written."""
    files, devices = {}, []
    for request in dict.fromkeys(device.result.request for device in granted if device.result.admin):
        inside = f"/var/run/{places.driver}/{ADMIN}/{claim.pod_claim or claim.ref.name}/{request}"
        mount = {"hostPath": places.admin_folder(claim.ref.uid, request), "containerPath": inside}
        edits = {"mounts": [mount | {"options": ["ro", "bind"]}]}
        devices.append({"name": f"{claim.ref.uid}{_ONLY}{request}", "containerEdits": edits})
    for device in granted:
        if device.result.admin:
            continue
        request, edits = device.result.request, _edits(device, places.dev_root)
        path = places.metadata_file(claim.ref, request)
        if path not in files:
            files[path] = _metadata(claim, request, granted, places.driver)
            mount = {"hostPath": path, "containerPath": _in_container(claim, request, places.driver)}
            edits["mounts"] = [mount | {"options": ["ro", "bind"]}]
        devices.append({"name": _name_of(claim.ref, device.result), "containerEdits": edits})
    whole = {"cdiVersion": VERSION, "kind": f"{places.driver}/claim", "devices": devices}
    files[places.of_claim(claim.ref.uid)] = (json.dumps(whole) + "\n").encode()
    return files


def _edits(device: GrantedDevice, dev_root: str) -> dict[str, Any]:
    env = {"env": [f"{name}={value}" for name, value in device.env.items()]} if device.env else {}
    return {**env, "deviceNodes": [node_edit(node, dev_root) for node in device.nodes]}


def _name_of(ref: ClaimRef, result: AllocatedDevice) -> str:
    return f"{ref.uid}{_ONLY}{result.request}" if result.admin else f"{ref.uid}_{result.name}"


def _in_container(claim: AllocatedClaim, request: str, driver: str) -> str:
    kind, name = ("resourceclaimtemplates", claim.pod_claim) if claim.pod_claim else ("resourceclaims", claim.ref.name)
    return f"{_IN_CONTAINER}/{kind}/{name}/{request}/{driver}-metadata.json"


def _metadata(claim: AllocatedClaim, request: str, granted: Sequence[GrantedDevice], driver: str) -> bytes:
    """A stream of JSON objects: the same object in each version."""
    ref = claim.ref
    devices = [
        {
            "driver": driver,
            "pool": device.result.pool,
            "name": device.result.device,
            "attributes": device.attributes,
        }
        for device in granted
        if device.result.request == request
    ]
    body = {
        "kind": "DeviceMetadata",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
            "generation": claim.generation,
        },
        **({"podClaimName": claim.pod_claim} if claim.pod_claim else {}),
        "requests": [{"name": request, "devices": devices}],
    }
    rest = json.dumps(body).removeprefix("{")
    return "".join(f'{{"apiVersion": "metadata.resource.k8s.io/{version}", {rest}\n' for version in _VERSIONS).encode()


def sibling_attributes(siblings: Iterable[str]) -> Attributes:
    """The addresses of a device's siblings, comma-separated, as the attribute ``siblings``; what exceeds the length of
    an attribute is in ``siblings2`` and so on.
    """
    values: list[str] = []
    for address in siblings:
        longer = f"{values[-1]},{address}" if values else address
        if values and len(longer) <= LONGEST_TEXT:
            values[-1] = longer
        else:
            values.append(address)
    return {f"siblings{number if number > 1 else ''}": attribute(value) for number, value in enumerate(values, 1)}


def cdi_devices(path: str, uid: str) -> frozenset[str]:
    """The names of the devices that a claim has, by its CDI file: not of those that it only looks at. Here and below
    they are the published ones, and those of shares (`share_name`).

    Raises:
        OSError: it can't be read.
        ValueError: it isn't the CDI file of this claim.
    """

    def published(value: object) -> str:
        claim, _, name = text(value).partition("_")
        if claim != uid:
            raise ValueError
        return name

    document = Fields(strict_json(read_regular(path)), "", FirstProblem())
    devices = list(document.objects("devices"))
    if not devices:
        raise ValueError("devices: there are none")
    return frozenset(
        device.needed("name", published, f"a device of the claim {uid}")
        for device in devices
        if not str(device.peek("name")).startswith(f"{uid}{_ONLY}")
    )


def metadata_devices(path: str, uid: str) -> frozenset[str]:
    """The names of the devices in a metadata file; none if it is of another claim.

    Raises:
        OSError: it can't be read.
        ValueError: it isn't a metadata file.
    """
    document = Fields(strict_json(read_regular(path).partition(b"\n")[0]), "", FirstProblem())
    claim = document.inner("metadata", required=True).needed("uid", text, "the UID of a claim")
    devices = [device for request in document.objects("requests") for device in request.objects("devices")]
    names = [share_name(device.needed("name", text, "the name of a device"), _share_in(device)) for device in devices]
    if not names:
        raise ValueError("requests: there is no device")
    return frozenset(names) if claim == uid else frozenset()


def _share_in(device: Fields) -> str:
    return device.inner("attributes").inner(SHARE_ID).optional("string", string, "the ID of a share") or ""


def metadata_files(places: ClaimPlaces, folder: str = "") -> Iterator[str]:
    """The paths of all metadata, or of that in one folder."""
    for name in [folder] if folder else [f"{places.metadata}/{name}" for name in _names(places.metadata)]:
        for request in _names(name):
            yield f"{name}/{request}/{_METADATA}"


def is_in_place(places: ClaimPlaces, ref: ClaimRef, devices: Sequence[PreparedDevice]) -> bool:
    """Whether all files of a claim are there, and are what they must be as far as the devices tell."""
    requests: dict[str, set[str]] = {}
    admin = {device.request for device in devices if device.admin}
    for device in devices:
        if not device.admin:
            requests.setdefault(device.request, set()).add(device.name)
    try:
        for request in admin:
            strict_json(read_regular(places.admin_file(ref.uid, request)))
        return cdi_devices(places.of_claim(ref.uid), ref.uid) == frozenset[str]().union(*requests.values()) and all(
            metadata_devices(path, ref.uid) == names and read_regular(path).count(b"\n") == len(_VERSIONS)
            for request, names in requests.items()
            for path in (places.metadata_file(ref, request),)
        )
    except (OSError, ValueError):
        return False


def files_left(places: ClaimPlaces, ref: ClaimRef) -> Iterator[str]:
    """The existing files of a claim, except its record and files of another claim with the same name."""
    yield places.of_claim(ref.uid)
    for request in _names(places.admin_folder(ref.uid)):
        yield places.admin_file(ref.uid, request)
    for path in metadata_files(places, places.metadata_folder(ref)):
        try:
            own = bool(metadata_devices(path, ref.uid))
        except OSError:
            continue
        except ValueError:
            own = True  # of no use to another claim either
        if own:
            yield path


def leftover_files(places: ClaimPlaces, records: ClaimRecords) -> Iterator[str]:
    """Files of claims without a record, and temporary files that were never completed."""
    recorded = records.claims.keys() | records.broken.keys()
    start = f"{places.driver}_"
    for name in _names(places.cdi):
        uid = name.removeprefix(start).removesuffix(SUFFIX)
        if name.startswith(f".{start}") or (name.startswith(start) and uid not in recorded):
            yield f"{places.cdi}/{name}"
    for name in _names(places.records):
        if name.startswith("."):
            yield f"{places.records}/{name}"
    yield from _leftover_states(places, recorded)
    if records.broken:
        return  # it is unknown which metadata belongs to those claims
    kept = {places.metadata_folder(record.ref) for record in records.claims.values()}
    for name in _names(places.metadata):
        folder = f"{places.metadata}/{name}"
        for request in _names(folder):
            for file in _names(f"{folder}/{request}"):
                if folder not in kept or file.startswith("."):
                    yield f"{folder}/{request}/{file}"
        remove_empty(folder)


def _leftover_states(places: ClaimPlaces, recorded: Collection[str]) -> Iterator[str]:
    for uid in _names(f"{places.data}/{ADMIN}"):
        for request in _names(places.admin_folder(uid)):
            for file in _names(places.admin_folder(uid, request)):
                if uid not in recorded or file.startswith("."):
                    yield f"{places.admin_folder(uid, request)}/{file}"
        remove_empty(places.admin_folder(uid))


def remove_empty(folder: str) -> None:
    """Remove the empty folders in a folder, and then the folder itself if it is empty."""
    for name in [f"/{each}" for each in _names(folder)] + [""]:
        with suppress(OSError):
            os.rmdir(folder + name)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def devices_in_files(places: ClaimPlaces, uid: str) -> frozenset[str] | None:
    """The names of a claim's devices, by its CDI file, else by its metadata.

    Both are written before the record and removed before it. None of them: the claim isn't prepared. Returns None if
    the devices can't be determined.
    """
    try:
        return cdi_devices(places.of_claim(uid), uid)
    except FileNotFoundError:
        without = frozenset[str]()
    except (OSError, ValueError):
        without = None
    devices: set[str] = set()
    for path in metadata_files(places):
        try:
            devices |= metadata_devices(path, uid)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        except ValueError:
            continue  # of no claim: it is written as a whole
    return frozenset(devices) or without


def with_claims(usage: Usage, kubelet_dir: str, boot: str) -> Usage:
    """Usage with the devices of ResourceClaims, from the records of all drivers on the node. For commands only: they
    may not see the CDI files, so a claim of which no file tells may have any device."""
    held = {resource: dict(devices) for resource, devices in usage.held.items()}
    complete = True
    for folder in sorted(glob(f"{escape(kubelet_dir)}/plugins/*/{FOLDER}")):
        places = ClaimPlaces(folder.split("/")[-2], kubelet_dir, DraConfig().cdi_folder)
        records = Checkpoint(folder, boot, Disk(), partial(devices_in_files, places)).read()
        claimed, all_of_them = records.held()
        complete &= all_of_them and all(broken.devices for broken in records.broken.values())
        for resource, devices in claimed.items():
            held.setdefault(resource, {}).update(devices)
    return usage._replace(source=usage.source if complete else "none", held=held)
