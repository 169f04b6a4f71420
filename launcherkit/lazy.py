"""Names of a module that are imported when they are first used.

A process imports only what it uses: the exec hook, which takes 40 ms in all, saves 0.2 to 1.5 ms for each module, and
the device plugin, which uses only the host model, needs no lxml (12 MB).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazily(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a module (PEP 562) whose names are defined in others.

    Args:
        module: its ``__name__``.
        homes: the module that defines each name.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return find
