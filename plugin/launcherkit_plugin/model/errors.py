"""The errors of the device plugin. Their codes and pages continue those of `launcherkit.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.errors import LauncherkitError, Misconfigured, Unavailable

if TYPE_CHECKING:
    from launcherkit.errors import ErrorFields
    from launcherkit.rpc.unix_socket import InUse, NotMade

# 70x: configuration


class BadPluginConfig(Misconfigured):
    """The configuration file, or one of KubeVirt's, doesn't match its schema."""

    code = "LK701"


class NameClash(Misconfigured):
    """Two resources have one name, socket or variable (K6)."""

    code = "LK702"


class ConfigNotRead(Unavailable):
    """The process that reads the configuration failed."""

    code = "LK703"


class EmptyPluginConfig(Misconfigured):
    """The plugin would run, and advertise nothing."""

    code = "LK704"


# 71x: the kubelet and what it asks for


class NoKubelet(Unavailable):
    code = "LK711"


class UnknownDevice(LauncherkitError):
    """The kubelet asks for a device that is not, or no longer, advertised (K2)."""

    code = "LK712"


class DeviceUnhealthy(LauncherkitError):
    """The kubelet asks for a device that isn't available (K2, K5)."""

    code = "LK713"


class GroupSplit(LauncherkitError):
    """An Allocate that would give two devices of one IOMMU group to two pods (K3)."""

    code = "LK714"


class RegistrationRefused(Unavailable):
    """The kubelet is there and refuses a resource."""

    code = "LK715"


class PluginSocketInUse(Misconfigured):
    """Another process serves a resource of the same name."""

    code = "LK716"


class PluginSocketNotMade(Misconfigured):
    code = "LK717"


def plugin_socket_errors(*, in_use: str, not_made: str, key: str = "") -> tuple[InUse, NotMade]:
    """The errors of a socket on which the plugin serves: another process answers there; it can't be created.

    Args:
        in_use, not_made: their remedies.
        key: the option that names the socket.
    """
    facts: ErrorFields = {"key": key} if key else {}
    return (
        lambda path: PluginSocketInUse(f"{path}: another process answers there", in_use, **{"file": path, **facts}),
        lambda path, why: PluginSocketNotMade(
            f"{path}: the socket can't be created: {why}", not_made, **{"file": path, **facts}
        ),
    )


class BadKubeletRequest(LauncherkitError):
    """A request that no kubelet sends: no device, one twice, or more must-include devices than devices."""

    code = "LK718"


# 72x: usage and binding


class UsageUnreadable(Unavailable):
    """PodResources or the kubelet's checkpoint can't be read."""

    code = "LK721"


class BindRefused(LauncherkitError):
    """A member of the group must keep its driver: the host uses it, or it has VFs or mdevs (K8)."""

    code = "LK722"


class DeviceHeld(Unavailable):
    """A pod or a process has a device of the group (K8)."""

    code = "LK723"


class HoldersUnknown(Unavailable):
    """It is unknown whether a pod or a process has a device of the group (K8)."""

    code = "LK724"


class NotBoundByUs(LauncherkitError):
    """The function isn't on record as bound by launcherkit, so it isn't given back: its former driver is unknown."""

    code = "LK725"


class NoVfioDriver(Misconfigured):
    """vfio-pci is not there and can't be loaded."""

    code = "LK726"


class StepFailed(Unavailable):
    """The kernel refused a step of binding, or the step had another result than it should."""

    code = "LK727"


class StepHangs(Unavailable):
    """A step of binding does not return, or another process is binding the function (K8)."""

    code = "LK728"


class BadRecord(Misconfigured):
    """A record in the ledger can't be read."""

    code = "LK729"


# 73x: vGPU


class VgpuNotMade(Unavailable):
    """The driver did not create an mdev, or did not set the type of a VF (G2, G4)."""

    code = "LK731"


class NoVgpuRoom(LauncherkitError):
    """The card has no room for a vGPU of that type in addition to those that it has (G1)."""

    code = "LK732"


class WrongVgpu(LauncherkitError):
    """Another vGPU is in the place of this one (G2)."""

    code = "LK733"


class VgpuInUse(LauncherkitError):
    """A vGPU can't be removed: a pod holds it, or a process has it open (G3)."""

    code = "LK734"


class VgpuNotRemoved(Unavailable):
    """The driver did not remove a vGPU."""

    code = "LK735"


class BadLayout(Misconfigured):
    """A layout that no driver on this node can provide (G5)."""

    code = "LK736"


class VmLacksDevices(LauncherkitError):
    """A VM is about to start, and its pod has fewer vGPUs than it asks for."""

    code = "LK737"


# 74x: the cluster


class NoCluster(Unavailable):
    """The configuration needs something from the cluster, and no API server answers."""

    code = "LK741"


class NoMetricsAddress(Misconfigured):
    """Metrics can't be served at the given address."""

    code = "LK742"


class ClusterSocketNotMade(Misconfigured):
    """The socket to which the cluster container connects can't be created."""

    code = "LK743"


class BadMetricsToken(Misconfigured):
    """The file with the token for the metrics contains no token."""

    code = "LK744"


class NoProbeSocket(Unavailable):
    """The socket of the probes can't be created, or nobody answers there."""

    code = "LK745"


class CdiNotWritten(Unavailable):
    """The CDI file, from which the container runtime takes the devices, can't be written: a full disk, no folder."""

    code = "LK746"


# 75x: work that may hang


class WorkHangs(Unavailable):
    """Work on a card or group does not return from the kernel; no other work on it is begun (K9)."""

    code = "LK750"


class BindingTooSlow(Unavailable):
    """Binding a group on demand takes longer than an Allocate may wait; the work goes on (K8, K9)."""

    code = "LK751"


class NotBoundOnDemand(Unavailable):
    """A group can't be bound for the pod to which it is allocated; it is as it was (K8)."""

    code = "LK752"


class NotGivenBackOnDemand(Unavailable):
    """A card that is bound to VFIO can't be given back to its driver for the container that gets it (K10)."""

    code = "LK753"


class GivingBackTooSlow(Unavailable):
    """Giving a card back to its driver takes longer than an Allocate may wait; the work goes on (K9, K10)."""

    code = "LK754"


# 80x: what is published by DRA, and the parameters of claims


class CardInBothWorlds(Misconfigured):
    """Rules for DRA and for the device plugin select one card (D1)."""

    code = "LK801"


class BadDeviceConfig(LauncherkitError):
    """The opaque parameters of a claim or its DeviceClass don't match their schema (D6)."""

    code = "LK802"


class DeviceConfigRefused(LauncherkitError):
    """A device doesn't allow what the parameters ask for, or a claim sets what only its class may set (D6, T1)."""

    code = "LK803"


# 81x: claims of Dynamic Resource Allocation on the node


class BadResourceClaim(LauncherkitError):
    """The ResourceClaim is another one, isn't allocated, or asks for admin access, which is never given."""

    code = "LK811"


class DeviceTaken(LauncherkitError):
    """A device that is to be prepared for a claim is another claim's, or a pod's."""

    code = "LK812"


class PrepareLate(Unavailable):
    """Preparing a claim takes longer than the kubelet waits; it may succeed later."""

    code = "LK813"


class BadClaimRecord(LauncherkitError):
    """The record of a prepared claim can't be read."""

    code = "LK814"


class ClaimFilesFailed(Unavailable):
    """A file of a claim can't be written or removed: a full disk, a folder that isn't mounted."""

    code = "LK815"


class MixedNodes(LauncherkitError):
    """Devices of one claim have device nodes that can't go into one container together (V2)."""

    code = "LK816"


# 82x: the cluster's side of Dynamic Resource Allocation


class ClaimUnreadable(Unavailable):
    """The ResourceClaim that the kubelet wants prepared can't be read: it is gone, or nobody answers."""

    code = "LK821"


# 84x: CDI kinds, shared cards, several uses of a card


class CdiKindRefused(Misconfigured):
    """The CDI kind is to be the name of the resource, and one has a name that CDI doesn't allow."""

    code = "LK841"


class SharedRequestTooLarge(LauncherkitError):
    """A container requests several replicas of shared cards, and the configuration allows one (K10)."""

    code = "LK842"


class CardInOtherUse(LauncherkitError):
    """A card is requested for a VM while a container has it, or the other way round (K10)."""

    code = "LK843"


# 85x: metrics and the page of the node, for the web process


class NoWebSocket(Misconfigured):
    """The socket to which the web process connects can't be created."""

    code = "LK851"


class TokenNotReviewed(Unavailable):
    """It is unknown whether a token is valid: the cluster container doesn't answer, or may not ask the API server."""

    code = "LK852"


# 86x: rehearsals


class NotOffered(LauncherkitError):
    """A node has fewer free devices of a resource than a VM asks for."""

    code = "LK861"


class BadNodeRecord(LauncherkitError):
    """A node's record, which its device plugin publishes, can't be read or doesn't exist."""

    code = "LK865"


# 88x: the webhook


class BadInjections(Misconfigured):
    """The file of the webhook's injections doesn't match its schema."""

    code = "LK881"


class BadCertificate(Misconfigured):
    """The webhook's certificate or its key can't be used."""

    code = "LK882"


class NoWebhookPort(Unavailable):
    """The webhook can't listen at the given address."""

    code = "LK883"
