"""The errors of the device plugin: kinds, and the table of codes, which continues that of `launcherkit.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.errors import (
    EX_CONFIG,
    EX_DATAERR,
    EX_UNAVAILABLE,
    BadConfig,
    BadInput,
    CannotServe,
    Code,
    Conflict,
    DeviceUnusable,
    LauncherkitError,
    NoPlace,
    NotAllowed,
    NotInstalled,
    NotOnHost,
    Refused,
    Taken,
    TooFew,
    Unavailable,
    UnwritableFile,
    UsageUnknown,
    register,
)

if TYPE_CHECKING:
    from launcherkit.errors import ErrorFields
    from launcherkit.rpc.unix_socket import InUse, NotMade

# The kinds


class NoKubelet(Unavailable):
    """The kubelet doesn't answer."""


class NoCluster(Unavailable):
    """Something of the cluster is needed, and no API server or no cluster container answers."""


class TooSlow(Unavailable):
    """Work on a device takes longer than one may wait, or hangs in the kernel (K9); it may still come about."""


class StepFailed(Unavailable):
    """The kernel or a driver did not do what was asked of it (K8, G2)."""


class BadRecord(LauncherkitError):
    """A record that launcherkit has written can't be read."""


# The codes

# 70x: configuration

BAD_PLUGIN_CONFIG = Code("LK701", "the plugin's configuration is wrong", EX_CONFIG, BadConfig)
NAME_CLASH = Code("LK702", "two resources have one name", EX_CONFIG, Conflict)
CONFIG_NOT_READ = Code("LK703", "the configuration could not be read", EX_UNAVAILABLE, Unavailable)
EMPTY_PLUGIN_CONFIG = Code("LK704", "the plugin's configuration has no rules", EX_CONFIG, BadConfig)

# 71x: the kubelet and what it asks for

NO_KUBELET = Code("LK711", "no kubelet answers", EX_UNAVAILABLE, NoKubelet)
UNKNOWN_DEVICE = Code("LK712", "there is no such device to allocate", EX_DATAERR, NotOnHost)
DEVICE_UNHEALTHY = Code("LK713", "the device is no longer available", EX_DATAERR, DeviceUnusable)
GROUP_SPLIT = Code("LK714", "two pods would share an IOMMU group", EX_DATAERR, Taken)
REGISTRATION_REFUSED = Code("LK715", "the kubelet refuses a resource", EX_UNAVAILABLE, Refused)
PLUGIN_SOCKET_IN_USE = Code("LK716", "another process serves the resource", EX_CONFIG, CannotServe)
PLUGIN_SOCKET_NOT_MADE = Code("LK717", "the socket of a resource can't be created", EX_CONFIG, CannotServe)
BAD_KUBELET_REQUEST = Code("LK718", "a request that no kubelet makes", EX_DATAERR, BadInput)

# 72x: usage and binding

USAGE_UNREADABLE = Code("LK721", "the holders of devices can't be read", EX_UNAVAILABLE, UsageUnknown)
BIND_REFUSED = Code("LK722", "a function must stay with its driver", EX_DATAERR, Refused)
DEVICE_HELD = Code("LK723", "the device is in use", EX_UNAVAILABLE, Taken)
HOLDERS_UNKNOWN = Code("LK724", "the holder of the device is unknown", EX_UNAVAILABLE, UsageUnknown)
NOT_BOUND_BY_US = Code("LK725", "the function was bound by something else", EX_DATAERR, Refused)
NO_VFIO_DRIVER = Code("LK726", "there is no VFIO driver", EX_CONFIG, NotInstalled)
STEP_FAILED = Code("LK727", "the kernel refuses a step of binding", EX_UNAVAILABLE, StepFailed)
STEP_HANGS = Code("LK728", "a step of binding does not return", EX_UNAVAILABLE, TooSlow)
BAD_RECORD = Code("LK729", "a record of what was bound can't be read", EX_CONFIG, BadRecord)

# 73x: vGPU

VGPU_NOT_MADE = Code("LK731", "a vGPU can't be created", EX_UNAVAILABLE, StepFailed)
NO_VGPU_ROOM = Code("LK732", "the card has no room for the vGPU", EX_DATAERR, NoPlace)
WRONG_VGPU = Code("LK733", "another vGPU is in its place", EX_DATAERR, Refused)
VGPU_IN_USE = Code("LK734", "the vGPU is in use", EX_DATAERR, Taken)
VGPU_NOT_REMOVED = Code("LK735", "a vGPU can't be removed", EX_UNAVAILABLE, StepFailed)
BAD_LAYOUT = Code("LK736", "the layout doesn't fit the node", EX_CONFIG, BadConfig)
VM_LACKS_DEVICES = Code("LK737", "the VM's pod has too few vGPUs", EX_DATAERR, TooFew)

# 74x: the cluster

NO_CLUSTER = Code("LK741", "the cluster can't be reached", EX_UNAVAILABLE, NoCluster)
NO_METRICS_ADDRESS = Code("LK742", "metrics can't be served there", EX_CONFIG, CannotServe)
CLUSTER_SOCKET_NOT_MADE = Code("LK743", "the cluster's socket can't be created", EX_CONFIG, CannotServe)
BAD_METRICS_TOKEN = Code("LK744", "the file for the metrics' token has no token", EX_CONFIG, BadConfig)
NO_PROBE_SOCKET = Code("LK745", "a probe gets no answer", EX_UNAVAILABLE, CannotServe)
CDI_NOT_WRITTEN = Code("LK746", "the CDI file can't be written", EX_UNAVAILABLE, UnwritableFile)

# 75x: work that may hang

WORK_HANGS = Code("LK750", "work on a card does not return", EX_UNAVAILABLE, TooSlow)
BINDING_TOO_SLOW = Code("LK751", "binding on demand takes too long", EX_UNAVAILABLE, TooSlow)
NOT_BOUND_ON_DEMAND = Code("LK752", "a device can't be bound for its pod", EX_UNAVAILABLE, StepFailed)
NOT_GIVEN_BACK_ON_DEMAND = Code("LK753", "a card can't be given back for a container", EX_UNAVAILABLE, StepFailed)
GIVING_BACK_TOO_SLOW = Code("LK754", "giving a card back takes too long", EX_UNAVAILABLE, TooSlow)
NOT_CLEANED = Code("LK755", "a device can't be cleaned", EX_UNAVAILABLE, StepFailed)
CAME_BACK_WRONG = Code("LK756", "a device is in quarantine", EX_UNAVAILABLE, DeviceUnusable)

# 76x: devices that are kept for VMs

DEVICE_KEPT = Code("LK761", "a device is kept for another VM", EX_DATAERR, Taken)
CALLER_UNKNOWN = Code("LK762", "it isn't certain which pod asks for a device", EX_UNAVAILABLE, UsageUnknown)

# 77x: virtual functions

VFS_REFUSED = Code("LK771", "virtual functions can't be made or taken away now", EX_DATAERR, Refused)
VFS_NOT_MADE = Code("LK772", "virtual functions can't be made", EX_UNAVAILABLE, StepFailed)

# 78x: fabric partitions

FABRIC_UNREACHABLE = Code("LK781", "Fabric Manager can't be asked", EX_UNAVAILABLE, Unavailable)
NO_PARTITION = Code("LK782", "no fabric partition has exactly these cards", EX_DATAERR, NoPlace)
PARTITION_OF_OTHERS = Code("LK783", "something else has activated a fabric partition", EX_UNAVAILABLE, Taken)
PARTITION_NOT_CHANGED = Code(
    "LK784", "a fabric partition can't be activated or deactivated", EX_UNAVAILABLE, StepFailed
)
PARTITION_LOST = Code("LK785", "the fabric partition of a pod is not active", EX_UNAVAILABLE, DeviceUnusable)
FABRIC_MISFIT = Code("LK786", "the configuration doesn't fit the NVSwitch board", EX_CONFIG, BadConfig)

# 79x: NVML: GPU instances, errors of cards

NVML_BINDING = (
    "Install the device plugin with its extra `nvml`, which has the module pynvml; the default image doesn't have it."
)
"""The remedy where the Python binding of NVML is missing."""
NO_NVML = Code("LK791", "NVML can't be used", EX_CONFIG, NotInstalled)
GPU_INSTANCES_REFUSED = Code("LK792", "the GPU instances of a layout can't be made now", EX_DATAERR, Refused)
GPU_INSTANCES_NOT_CHANGED = Code("LK793", "GPU instances can't be read or changed", EX_UNAVAILABLE, StepFailed)

XIDS_UNSEEN = Code("LK794", "critical errors of cards aren't seen", EX_UNAVAILABLE, Unavailable)

# 80x: what is published by DRA, and the parameters of claims

CARD_IN_BOTH_WORLDS = Code("LK801", "a card is for DRA and for the device plugin", EX_CONFIG, Conflict)
BAD_DEVICE_CONFIG = Code("LK802", "the parameters of a claim are wrong", EX_DATAERR, BadInput)
DEVICE_CONFIG_REFUSED = Code("LK803", "a device doesn't allow what the claim asks for", EX_DATAERR, NotAllowed)

# 81x: claims of Dynamic Resource Allocation on the node

BAD_RESOURCE_CLAIM = Code("LK811", "the ResourceClaim can't be prepared", EX_DATAERR, BadInput)
DEVICE_TAKEN = Code("LK812", "the device is already in use", EX_DATAERR, Taken)
PREPARE_LATE = Code("LK813", "preparing a claim takes too long", EX_UNAVAILABLE, TooSlow)
BAD_CLAIM_RECORD = Code("LK814", "the record of a claim can't be read", EX_DATAERR, BadRecord)
CLAIM_FILES_FAILED = Code("LK815", "a file of a claim can't be written", EX_UNAVAILABLE, UnwritableFile)
MIXED_NODES = Code("LK816", "devices of a claim can't go into one container", EX_DATAERR, Conflict)

# 82x: the cluster's side of Dynamic Resource Allocation

CLAIM_UNREADABLE = Code("LK821", "the claim can't be read", EX_UNAVAILABLE, NoCluster)

# 84x: CDI kinds, shared cards, several uses of a card

CDI_KIND_REFUSED = Code("LK841", "a resource's name is not valid as a CDI kind", EX_CONFIG, BadConfig)
SHARED_REQUEST_TOO_LARGE = Code("LK842", "a container requests several of a shared resource", EX_DATAERR, NotAllowed)
CARD_IN_OTHER_USE = Code("LK843", "the card is in use for another purpose", EX_DATAERR, Taken)

# 85x: metrics and the page of the node, for the web process

NO_WEB_SOCKET = Code("LK851", "the web process's socket can't be created", EX_CONFIG, CannotServe)
TOKEN_NOT_REVIEWED = Code("LK852", "a token can't be reviewed", EX_UNAVAILABLE, NoCluster)

# 86x: rehearsals

NOT_OFFERED = Code("LK861", "a node has too few of a resource", EX_DATAERR, TooFew)
BAD_NODE_RECORD = Code("LK865", "the record of a node can't be read", EX_DATAERR, BadRecord)

# 88x: the webhook

BAD_INJECTIONS = Code("LK881", "an injection is not valid", EX_CONFIG, BadConfig)
BAD_CERTIFICATE = Code("LK882", "the webhook's certificate can't be used", EX_CONFIG, BadConfig)
NO_WEBHOOK_PORT = Code("LK883", "the webhook can't listen", EX_UNAVAILABLE, CannotServe)

register(globals())


def plugin_socket_errors(*, in_use: str, not_made: str, key: str = "") -> tuple[InUse, NotMade]:
    """The errors of a socket on which the plugin serves: another process answers there; it can't be created.

    Args:
        in_use, not_made: their remedies.
        key: the option that names the socket.
    """
    facts: ErrorFields = {"key": key} if key else {}
    return (
        lambda path: PLUGIN_SOCKET_IN_USE(f"{path}: another process answers there", in_use, **{"file": path, **facts}),
        lambda path, reason: PLUGIN_SOCKET_NOT_MADE(
            f"{path}: the socket can't be created: {reason}", not_made, **{"file": path, **facts}
        ),
    )
