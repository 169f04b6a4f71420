"""NVML, NVIDIA's management library, as its processes call it: one may hang or crash.

The binding is ``pynvml`` of nvidia-ml-py; what each call does and returns is in NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NOT_SUPPORTED = 3


class NvmlLibrary:
    """The binding, which remembers the last function that was called."""

    def __init__(self) -> None:
        self.binding: Any = importlib.import_module("pynvml")
        self.function = ""

    def __call__(self, function: str, *arguments: Any) -> Any:
        self.function = function
        return getattr(self.binding, function)(*arguments)

    def unless(self, codes: tuple[int, ...], function: str, *arguments: Any) -> Any:
        """What a function returns; None if it fails with one of some codes."""
        try:
            return self(function, *arguments)
        except self.binding.NVMLError as error:
            if error.value not in codes:
                raise
            return None

    def card(self, address: str) -> Any:
        """The handle of a card, which is open from now on."""
        return self("nvmlDeviceGetHandleByPciBusId", address)

    def failure(self, error: Any) -> dict[str, Any]:
        """An error of the last function, for an answer."""
        return {"code": error.value, "from": self.function, "text": str(error)}


def with_nvml(work: Callable[[NvmlLibrary], dict[str, Any]]) -> dict[str, Any]:
    """What calls return; or the first error, with its code and function; or ``missing``, if there is no binding."""
    try:
        library = NvmlLibrary()
    except ImportError as problem:
        return {"missing": str(problem)}
    try:
        library("nvmlInit")
        try:
            return work(library)
        finally:
            with suppress(library.binding.NVMLError):
                library.binding.nvmlShutdown()
    except library.binding.NVMLError as error:
        return library.failure(error)
