"""What to do about an Unhealthy device, by its reason."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.device import Reason


class Advice(NamedTuple):
    """For people who look after the node."""

    text: str
    code: str = ""
    """Of the error whose page says more."""


ADVICE: Mapping[Reason, Advice] = {
    "gone": Advice("See `dmesg` and the slot; `echo 1 > /sys/bus/pci/rescan` looks for it again.", "LK203"),
    "driver": Advice("Bind it to vfio-pci: `bind: true` in the rule, or `launcherkit-plugin bind`.", "LK204"),
    "no-group": Advice("Turn the IOMMU on, in the firmware and on the kernel's command line.", "LK204"),
    "not-viable": Advice("Bind all of its IOMMU group to vfio-pci, or choose a slot with a group of its own.", "LK204"),
    "node": Advice("Load vfio-pci: `modprobe vfio-pci`. In a pod, mount /dev/vfio.", "LK205"),
    "config-space": Advice("Reset the card or turn the machine's power off and on; see `dmesg` for why.", "LK208"),
    "asleep": Advice("Set `d3cold_allowed` to 0 and `power/control` to on, for all of its group.", "LK207"),
    "mate-in-use": Advice("Nothing: it can be had again when that pod has ended.", "LK714"),
    "other-use": Advice("Nothing: it can be had again when its other use has ended.", "LK843"),
    "other-type": Advice("Nothing: it can be had when the vGPUs of the other type are gone."),
    "no-room": Advice("Nothing: it can be had when vGPUs of that card are gone."),
    "usage": Advice("Nothing, for some seconds. If it stays, see whether the kubelet's PodResources can be read."),
    "failed": Advice("See the plugin's log: it has each attempt, with its error and the remedy."),
}
"""Every reason has some."""
