"""Code that few VMs need, imported on first use (docs/decisions/0003-the-hook-is-a-short-process.md).

Most VMs get whole GPUs from variables, as many as they asked for, and have room for the BARs.
"""

from __future__ import annotations

from launcherkit.lazy import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcherkit.domain.address_space import read_address_space
    from launcherkit.pipeline.networks import answer_networks
    from launcherkit.resolve.chosen import chosen
    from launcherkit.resolve.claimed import claimed_devices, for_each_device
    from launcherkit.resolve.display import decide_displays
    from launcherkit.resolve.missing import check_requests, not_in_domain
    from launcherkit.resolve.notes import notes_about
    from launcherkit.resolve.retarget import notes_on, retarget, reuse, unanswered
    from launcherkit.sources.dra import DraFiles
    from launcherkit.sources.network_status import read_network_status

__all__ = [
    "DraFiles",
    "answer_networks",
    "check_requests",
    "chosen",
    "claimed_devices",
    "decide_displays",
    "for_each_device",
    "not_in_domain",
    "notes_about",
    "notes_on",
    "read_address_space",
    "read_network_status",
    "retarget",
    "reuse",
    "unanswered",
]

_HOME = {
    "DraFiles": "launcherkit.sources.dra",
    "answer_networks": "launcherkit.pipeline.networks",
    "check_requests": "launcherkit.resolve.missing",
    "chosen": "launcherkit.resolve.chosen",
    "claimed_devices": "launcherkit.resolve.claimed",
    "decide_displays": "launcherkit.resolve.display",
    "for_each_device": "launcherkit.resolve.claimed",
    "not_in_domain": "launcherkit.resolve.missing",
    "notes_about": "launcherkit.resolve.notes",
    "notes_on": "launcherkit.resolve.retarget",
    "read_address_space": "launcherkit.domain.address_space",
    "read_network_status": "launcherkit.sources.network_status",
    "retarget": "launcherkit.resolve.retarget",
    "reuse": "launcherkit.resolve.retarget",
    "unanswered": "launcherkit.resolve.retarget",
}


__getattr__ = lazily(__name__, _HOME)
