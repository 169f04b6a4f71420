"""Calls ``libnvfm.so``, the library of NVIDIA's Fabric Manager, in a process of its own: it may crash or hang.

Run as a file with ``-I -S``: it imports nothing of ours. Its arguments are the library, the kind of the address
(``socket`` or ``address``), and the address. On its standard input, a socket, it gets lines of JSON, each a list of
calls, and answers each call with a line: ``{"code": 0, "from": "fmActivateFabricPartition"}``, with ``partitions`` if
these were asked for; or ``{"error": "..."}`` if the library can't be loaded. The same state is the same line. It ends
with its standard input.

With ``seen`` and ``rename``, an activation has a condition: the answer to reading the partitions is ``seen``, and the
first path of ``rename`` can be renamed to the second, in this order. Otherwise it answers ``{"begun": false}``.

Layouts, versions and return codes are those of ``nv_fm_types.h`` and ``nv_fm_agent.h`` (of driver 575), and of NVIDIA's
Fabric Manager User Guide, "Fabric Manager SDK".
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

SUCCESS, IN_USE, CONNECTION_NOT_VALID = 0, -7, -9
_TEXT, _UUID, _ADDRESS = 256, 80, 32
MAX_GPUS, MAX_PARTITIONS = 16, 64
_INET, _UNIX = 1, 2
_CONNECT_MILLISECONDS = 5000
_PARTITIONS = {"call": "partitions"}


class ConnectParameters(ctypes.Structure):
    """``fmConnectParams_v2``."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("addressInfo", ctypes.c_char * _TEXT),
        ("timeoutMs", ctypes.c_uint),
        ("addressIsUnixSocket", ctypes.c_uint),
        ("addressType", ctypes.c_int),
    )


class GpuInfo(ctypes.Structure):
    """``fmFabricPartitionGpuInfo_t``."""

    _fields_ = (
        ("physicalId", ctypes.c_uint),
        ("uuid", ctypes.c_char * _UUID),
        ("pciBusId", ctypes.c_char * _ADDRESS),
        ("numNvLinksAvailable", ctypes.c_uint),
        ("maxNumNvLinks", ctypes.c_uint),
        ("nvlinkLineRateMBps", ctypes.c_uint),
    )


class PartitionInfo(ctypes.Structure):
    """``fmFabricPartitionInfo_t``."""

    _fields_ = (
        ("partitionId", ctypes.c_uint),
        ("isActive", ctypes.c_uint),
        ("numGpus", ctypes.c_uint),
        ("gpuInfo", GpuInfo * MAX_GPUS),
    )


class PartitionList(ctypes.Structure):
    """``fmFabricPartitionList_v2``, whose version is 1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numPartitions", ctypes.c_uint),
        ("maxNumPartitions", ctypes.c_uint),
        ("partitionInfo", PartitionInfo * MAX_PARTITIONS),
    )


class PciDevice(ctypes.Structure):
    """``fmPciDevice_t``."""

    _fields_ = tuple((name, ctypes.c_uint) for name in ("domain", "bus", "device", "function"))


def version(structure: type[ctypes.Structure], number: int) -> int:
    """``MAKE_FM_PARAM_VERSION``."""
    return ctypes.sizeof(structure) | number << 24


_HANDLE = ctypes.c_void_p
_ARGUMENTS: dict[str, list[Any]] = {
    "fmLibInit": [],
    "fmConnect": [ctypes.POINTER(ConnectParameters), ctypes.POINTER(_HANDLE)],
    "fmDisconnect": [_HANDLE],
    "fmGetSupportedFabricPartitions": [_HANDLE, ctypes.POINTER(PartitionList)],
    "fmActivateFabricPartition": [_HANDLE, ctypes.c_uint],
    "fmActivateFabricPartitionWithVFs": [_HANDLE, ctypes.c_uint, ctypes.POINTER(PciDevice), ctypes.c_uint],
    "fmDeactivateFabricPartition": [_HANDLE, ctypes.c_uint],
}


class Library:
    """The library, with a connection to Fabric Manager that is made when it is needed, and again once it is lost.

    Raises:
        OSError, AttributeError: the library can't be loaded, or lacks a function.
    """

    def __init__(self, name: str, kind: str, address: str) -> None:
        self._library = ctypes.CDLL(name)
        for function, arguments in _ARGUMENTS.items():
            getattr(self._library, function).argtypes = arguments
            getattr(self._library, function).restype = ctypes.c_int
        self._parameters = ConnectParameters(
            version(ConnectParameters, 2),
            os.fsencode(address),
            _CONNECT_MILLISECONDS,
            int(kind == "socket"),
            _UNIX if kind == "socket" else _INET,
        )
        self._handle: ctypes.c_void_p | None = None
        self._is_initialized = False

    def answer(self, question: dict[str, Any]) -> str:
        """Make a call, and return its answer."""
        if question["call"] == "partitions":
            partitions = PartitionList(version(PartitionList, 1))
            answer = self._call("fmGetSupportedFabricPartitions", ctypes.byref(partitions))
            if answer["code"] == CONNECTION_NOT_VALID:  # Fabric Manager may have been started again
                answer = self._call("fmGetSupportedFabricPartitions", ctypes.byref(partitions))
            if answer["code"] != SUCCESS:
                return json.dumps(answer | {"partitions": []})
            number = min(partitions.numPartitions, MAX_PARTITIONS)  # one that is larger than its array isn't believed
            return _read(ctypes.string_at(partitions.partitionInfo, number * ctypes.sizeof(PartitionInfo)))
        if "seen" in question and not (question["seen"] == self.answer(_PARTITIONS) and _renamed(*question["rename"])):
            return json.dumps({"begun": False})
        return json.dumps(self._change(question))

    def _change(self, question: dict[str, Any]) -> dict[str, Any]:
        number = question["id"]
        if question["call"] == "deactivate":
            return self._call("fmDeactivateFabricPartition", number)
        if not question["vfs"]:
            return self._call("fmActivateFabricPartition", number)
        vfs = (PciDevice * len(question["vfs"]))(*(PciDevice(*address) for address in question["vfs"]))
        return self._call("fmActivateFabricPartitionWithVFs", number, vfs, len(vfs))

    def _call(self, function: str, *arguments: Any) -> dict[str, Any]:
        code, made = self._connect()
        if code == SUCCESS:
            code, made = getattr(self._library, function)(self._handle, *arguments), function
        if code == CONNECTION_NOT_VALID and self._handle is not None:
            self._library.fmDisconnect(self._handle)  # what it says doesn't matter: the connection is lost
            self._handle = None
        return {"code": code, "from": made}

    def _connect(self) -> tuple[int, str]:
        if not self._is_initialized:
            code = self._library.fmLibInit()
            if code not in (SUCCESS, IN_USE):
                return code, "fmLibInit"
            self._is_initialized = True
        if self._handle is None:
            handle = ctypes.c_void_p()
            code = self._library.fmConnect(ctypes.byref(self._parameters), ctypes.byref(handle))
            if code != SUCCESS:
                return code, "fmConnect"
            self._handle = handle
        return SUCCESS, "fmConnect"


def _renamed(path: str, to: str) -> bool:
    """Whether a file could be renamed. That need not survive a power cut: nothing is active after one."""
    try:
        os.rename(path, to)
    except OSError:
        return False
    return True


@lru_cache(maxsize=8)
def _read(data: bytes) -> str:
    """The answer with partitions, of their structures; it takes longer than the call, and few states come again."""
    partitions = [
        {
            "id": partition.partitionId,
            "active": partition.isActive != 0,
            "gpus": [
                {"module": gpu.physicalId, "uuid": _text(gpu.uuid), "address": _text(gpu.pciBusId)}
                for gpu in partition.gpuInfo[: min(partition.numGpus, MAX_GPUS)]
            ],
        }
        for partition in (PartitionInfo * (len(data) // ctypes.sizeof(PartitionInfo))).from_buffer_copy(data)
    ]
    return json.dumps({"code": SUCCESS, "from": "fmGetSupportedFabricPartitions", "partitions": partitions})


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace")


def main(arguments: list[str]) -> None:
    """Answer until the other side closes the socket."""
    answer: Callable[[dict[str, Any]], str]
    try:
        answer = Library(*arguments).answer
    except (OSError, AttributeError) as problem:
        error = json.dumps({"error": str(problem)})
        answer = lambda _: error  # noqa: E731
    with socket.socket(fileno=os.dup(0)) as connection, connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall("".join(f"{answer(question)}\n" for question in json.loads(line)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
