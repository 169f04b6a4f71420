"""What few VMs need. Each module here is imported when something of it is first asked for.

Most VMs get what they asked for, whole GPUs from variables. The four modules take 0.6 ms to import, a fiftieth of what
the exec hook takes in all (docs/decisions/0003-the-hook-is-a-short-process.md).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcherkit.resolve.chosen import chosen
    from launcherkit.resolve.display import decide_displays
    from launcherkit.resolve.missing import check_requests, not_in_domain
    from launcherkit.resolve.notes import notes_about
    from launcherkit.sources.dra import DraFiles

__all__ = ["DraFiles", "check_requests", "chosen", "decide_displays", "not_in_domain", "notes_about"]

_HOME = {
    "DraFiles": "launcherkit.sources.dra",
    "check_requests": "launcherkit.resolve.missing",
    "chosen": "launcherkit.resolve.chosen",
    "decide_displays": "launcherkit.resolve.display",
    "not_in_domain": "launcherkit.resolve.missing",
    "notes_about": "launcherkit.resolve.notes",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
