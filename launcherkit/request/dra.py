"""Reads the allocations of Dynamic Resource Allocation from the metadata files in the container (E5).

The driver of a claim leaves ``<driver>-metadata.json`` under
``resourceclaims/<claim>/<request>/``, or ``resourceclaimtemplates/<pod's name of the claim>/<request>/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from launcherkit.errors import BAD_CLAIM, UnreadableFile, counted, shown
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.request import Allocation, DraClaim, Kind, Request
from launcherkit.request.fields import Fields, Problems, read_file, strict_json_stream, text

DRA_ROOT = "/var/run/kubernetes.io/dra-device-attributes"
_FOLDERS = {"claim": "resourceclaims", "template": "resourceclaimtemplates"}
_MAX_BYTES = 1 << 20
_SHOWN = 5
_VERSIONS = ("metadata.resource.k8s.io/v1alpha1", "metadata.resource.k8s.io/v1beta1")
_MDEV, _MDEV_TOO, _PCI = "mdevUUID", "mDevUUID", "resource.kubernetes.io/pciBusID"
"""KubeVirt reads the first; its enhancement proposal also has the second, so drivers may use it."""
_USB = "usbAddress"
"""Bus and device number, of launcherkit's own driver: nobody has a name for that."""
_REMEDY = (
    "See what the DRA driver wrote: kubectl exec POD -c compute -- find {root} -name '*-metadata.json'. It must "
    "publish device metadata with "
    + _PCI
    + " or "
    + _MDEV
    + "; as many gpus and hostDevices of the VMI as the request has "
    "devices can name it, or one for all."
)
_SIBLINGS = re.compile("siblings[0-9]*")


_ATTRIBUTES: tuple[tuple[str, Kind, Callable[[str], HostAddress]], ...] = (
    (_MDEV, "mdev", MdevAddress.parse),
    (_MDEV_TOO, "mdev", MdevAddress.parse),
    (_PCI, "pci", PciAddress.parse),
    (_USB, "usb", UsbAddress.parse),
)


_KINDS: Mapping[Kind, str] = {"pci": "PCI functions", "mdev": "mediated devices", "usb": "USB devices"}


class DraFiles:
    """The metadata files of one container.

    Args:
        root: the folder with ``resourceclaims`` and ``resourceclaimtemplates``.
    """

    def __init__(self, root: str = DRA_ROOT) -> None:
        self.root = root

    def present(self) -> bool:
        """Whether this container got anything by DRA; a sidecar did not (Q2)."""
        return os.path.isdir(self.root)

    def read(self, request: Request, askers: int = 1) -> Allocation:
        """The devices that answer a request by claim, with the siblings that the driver lists.

        Args:
            request: has a claim.
            askers: how many entries of the VMI name the same request of the claim; a single one gets all devices.

        Raises:
            BAD_CLAIM: there isn't exactly one file with a device for each, or the file names nothing that can be
                attached.
        """
        claim = request.dra_claim
        if claim is None:
            raise ValueError(f"{request.path} has no claim")
        path = self._one_file(request, claim)
        faults = _Faults()
        listed = list(_devices(Fields(self._document(request, path), "$", faults), claim, faults))
        parsed = [self._device(request, path, device, faults) for device in listed]
        if not parsed or 1 < askers < len(parsed):
            asked_for = f", and {askers} entries of the VMI name it" if askers > 1 else ""
            devices = counted(len(parsed), "device")
            self._fail(request, f"{path} has {devices} for the request {claim.request_name!r}{asked_for}{faults}")
        kinds = [kind for kind, _ in parsed]
        if len(set(kinds)) > 1:
            present = " and ".join(words for kind, words in _KINDS.items() if kind in kinds)
            self._fail(request, f"{path} has {present} for the request {claim.request_name!r}")
        addresses = tuple(entries[0] for _, entries in parsed)
        for number, address in enumerate(addresses):
            if address in addresses[:number]:
                self._fail(request, f"{path} has {address} twice for the request {claim.request_name!r}")
        entries = tuple(dict.fromkeys(entry for _, entries in parsed for entry in entries))
        roms = {address: rom for address, device in zip(addresses, listed, strict=True) if (rom := _rom(device))}
        return Allocation(path, str(claim), kinds[0], entries, addresses, roms)

    def _one_file(self, request: Request, claim: DraClaim) -> str:
        folder = os.path.join(self.root, _FOLDERS[claim.kind], claim.name, claim.request_name)
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith("-metadata.json"))
        except OSError as problem:
            self._fail(request, f"{folder}: {problem.strerror}")
        if len(names) != 1:
            present = ", ".join(names) or "none"
            self._fail(request, f"{folder} must have one *-metadata.json; there are {len(names)}: {present}")
        return os.path.join(folder, names[0])

    def _document(self, request: Request, path: str) -> dict[str, Any]:
        try:
            content = read_file(path, _MAX_BYTES).decode()
            versions: list[Any] = []
            for document in strict_json_stream(content):
                if not isinstance(document, dict):
                    self._fail(request, f"{path}: object {len(versions) + 1} is not an object")
                version = document.get("apiVersion")
                if version in _VERSIONS:
                    return document
                versions.append(version)
        except UnreadableFile as problem:
            self._fail(request, problem.message)
        except ValueError as problem:
            self._fail(request, f"{path} is not JSON: {problem}")
        present = ", ".join(map(shown, versions[:_SHOWN])) + (", ..." if len(versions) > _SHOWN else "")
        holds = f"has the apiVersion {present}" if versions else "holds no object"
        return self._fail(request, f"{path} {holds}; known are {' and '.join(_VERSIONS)}")

    def _device(
        self, request: Request, path: str, device: _Attributes, faults: _Faults
    ) -> tuple[Kind, tuple[HostAddress, ...]]:
        """An mdev by its UUID, even if there is a PCI address, its parent's; else a function with its siblings (E5).

        Empty strings count as absent, as for KubeVirt.
        """
        filled = {key: value for key, value in device.items() if _raw(value) != ""}
        for name, kind, parse in _ATTRIBUTES:
            value = next((value for key, value in filled.items() if key == name or key.endswith("/" + name)), None)
            if value is None:
                continue
            address = self._parsed(request, path, name, value, parse)
            return kind, (address, *(self._siblings(request, path, filled) if kind == "pci" else ()))
        names = ", ".join(shown(key) + ("" if key in filled else " (empty)") for key in device) or "none"
        return self._fail(
            request, f"{path}: the device has neither {_PCI} nor {_MDEV}; its attributes: {names}{faults}"
        )

    def _siblings(self, request: Request, path: str, attributes: dict[str, Any]) -> Iterator[HostAddress]:
        """The siblings that the driver has given: in ``siblings``, and if that is full in ``siblings2`` and so on."""
        for name in sorted(filter(_SIBLINGS.fullmatch, attributes)):
            for address in _text(attributes[name]).split(","):
                yield self._parsed(request, path, name, address, PciAddress.parse)

    def _parsed(
        self, request: Request, path: str, name: str, value: Any, parse: Callable[[str], HostAddress]
    ) -> HostAddress:
        try:
            return parse(_text(value))
        except ValueError as problem:
            self._fail(request, f"{path}, attribute {name}: {shown(_raw(value))}: {problem}")

    def _fail(self, request: Request, fault: str) -> NoReturn:
        raise BAD_CLAIM(f"{request.path} {request.name!r}: {fault}", _REMEDY.format(root=self.root), key=request.path)


class _Faults(Problems):
    """What is wrong in a metadata file. It is ignored, unless the devices of a request aren't found."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, where: str, message: str) -> None:
        if len(self._texts) < _SHOWN:
            self._texts.append(f"; {where}: {message}")

    def __str__(self) -> str:
        return "".join(self._texts)


_Attributes: TypeAlias = Mapping[str, Any]
"""The attributes of a device, by name: their values, with their type or without."""


def _rom(device: _Attributes) -> Literal["on", "off"] | None:
    """What launcherkit's own driver says about the ROM, by the parameters of the device's class."""
    value = device.get("rom")
    rom = value.get("bool") if isinstance(value, dict) else None
    return None if not isinstance(rom, bool) else "on" if rom else "off"


def _raw(value: Any) -> Any:
    """An attribute's value, with its type or without."""
    return value.get("string") if isinstance(value, dict) else value


def _text(value: Any) -> str:
    raw = _raw(value)
    return raw if isinstance(raw, str) else ""


def _devices(document: Fields, claim: DraClaim, faults: _Faults) -> Iterator[_Attributes]:
    """The attributes of the devices of a request; if a subrequest was chosen from a list, the name is
    ``request/subrequest``."""
    for entry in document.objects("requests"):
        name = entry.required("name", text, "the name of a request", "")
        if name.partition("/")[0] == claim.request_name:
            for index, device in enumerate(entry.listed("devices")):
                yield Fields(device, f"{entry.at('devices')}[{index}]", faults).mapping("attributes")
