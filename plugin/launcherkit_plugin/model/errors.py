"""What can go wrong in the device plugin. Codes and pages are one series with those of `launcherkit.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.errors import LauncherkitError, Misconfigured, Unavailable

if TYPE_CHECKING:
    from launcherkit.errors import Facts
    from launcherkit.rpc.unix_socket import InUse, NotMade

# 70x: configuration


class BadPluginConfig(Misconfigured):
    """The configuration file, or one of KubeVirt's, is not as its schema says."""

    code = "LK701"


class NameClash(Misconfigured):
    """Two resources have one name, socket or variable (K6)."""

    code = "LK702"


class ConfigNotRead(Unavailable):
    """The process that reads the configuration did not do its work."""

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
    """The kubelet is there and doesn't take a resource."""

    code = "LK715"


class PluginSocketInUse(Misconfigured):
    """Another process serves a resource of the same name."""

    code = "LK716"


class PluginSocketNotMade(Misconfigured):
    code = "LK717"


def plugin_socket_errors(*, in_use: str, not_made: str, key: str = "") -> tuple[InUse, NotMade]:
    """The errors of a socket on which the plugin serves, by their remedies: another process answers there; it can't be
    made. ``key`` is the option that names it.
    """
    facts: Facts = {"key": key} if key else {}
    return (
        lambda path: PluginSocketInUse(f"{path}: another process answers there", in_use, **{"file": path, **facts}),
        lambda path, why: PluginSocketNotMade(
            f"{path}: the socket can't be created: {why}", not_made, **{"file": path, **facts}
        ),
    )


class BadKubeletRequest(LauncherkitError):
    """A request that no kubelet makes: no device, one twice, or more must-include devices than devices."""

    code = "LK718"


# 72x: who holds what, and binding


class UsageUnreadable(Unavailable):
    """PodResources or the kubelet's checkpoint can't be read."""

    code = "LK721"


class BindRefused(LauncherkitError):
    """A member of the group must stay with its driver: the host uses it, or it has VFs or mdevs (K8)."""

    code = "LK722"


class DeviceHeld(Unavailable):
    """A pod or a process has a device of the group (K8)."""

    code = "LK723"


class HoldersUnknown(Unavailable):
    """Nobody can tell whether a pod or a process has a device of the group (K8)."""

    code = "LK724"


class NotBoundByUs(LauncherkitError):
    """Who bound it knows what was there before: only that is undone which is on record."""

    code = "LK725"


class NoVfioDriver(Misconfigured):
    """vfio-pci is not there and can't be loaded."""

    code = "LK726"


class StepFailed(Unavailable):
    """The kernel refused a step of binding, or did something else."""

    code = "LK727"


class StepHangs(Unavailable):
    """A step of binding does not return, or another process is at it (K8)."""

    code = "LK728"


class BadRecord(Misconfigured):
    """A record of what was bound before can't be read."""

    code = "LK729"


# 73x: vGPU


class VgpuNotMade(Unavailable):
    """The driver did not make an mdev, or did not set the type of a VF (G2, G4)."""

    code = "LK731"


class NoVgpuRoom(LauncherkitError):
    """The card has no room for a vGPU of that type beside those that it has (G1)."""

    code = "LK732"


class WrongVgpu(LauncherkitError):
    """What is at the place of a vGPU is another one (G2)."""

    code = "LK733"


class VgpuInUse(LauncherkitError):
    """A vGPU can't be removed: a pod holds it, or a process has it open (G3)."""

    code = "LK734"


class VgpuNotRemoved(Unavailable):
    """The driver did not take a vGPU away."""

    code = "LK735"


class BadLayout(Misconfigured):
    """A layout that no driver here could bring about (G5)."""

    code = "LK736"


class VmLacksDevices(LauncherkitError):
    """A VM is about to start, and its pod has fewer vGPUs than it asks for."""

    code = "LK737"


# 74x: the cluster


class NoCluster(Unavailable):
    """The configuration wants something from the cluster, and there is no API server that answers."""

    code = "LK741"


class NoMetricsAddress(Misconfigured):
    """Metrics can't be served where they should."""

    code = "LK742"


class ClusterSocketNotMade(Misconfigured):
    """The socket that the cluster's process dials can't be made."""

    code = "LK743"


class BadMetricsToken(Misconfigured):
    """The file with the token for the metrics has none."""

    code = "LK744"


class NoProbeSocket(Unavailable):
    """The socket of the probes can't be made, or nobody answers at it."""

    code = "LK745"


class CdiNotWritten(Unavailable):
    """The file by which the container runtime finds the devices can't be written: a full disk, no folder."""

    code = "LK746"


# 75x: work that may hang


class WorkHangs(Unavailable):
    """Work on a card or group does not return from the kernel, and nothing else is begun there (K9)."""

    code = "LK750"


class BindingTooSlow(Unavailable):
    """Binding a group on demand takes longer than an Allocate may wait; the work goes on (K8, K9)."""

    code = "LK751"


class NotBoundOnDemand(Unavailable):
    """A group can't be bound for the pod that is getting it; it is as it was (K8)."""

    code = "LK752"


class NotGivenBackOnDemand(Unavailable):
    """A card that is bound to VFIO can't be given back to its driver for the container that is getting it (K10)."""

    code = "LK753"


class GivingBackTooSlow(Unavailable):
    """Giving a card back to its driver takes longer than an Allocate may wait; the work goes on (K9, K10)."""

    code = "LK754"


# 80x: what is published by DRA, and the parameters of claims


class CardInBothWorlds(Misconfigured):
    """Rules for DRA and for the device plugin select one card (D1)."""

    code = "LK801"


class BadDeviceConfig(LauncherkitError):
    """The opaque parameters of a claim or its DeviceClass are not as their schema says (D6)."""

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
    """Preparing a claim takes longer than the kubelet waits; it may come to pass later."""

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


# 84x: what other runtimes than KubeVirt's need


class CdiKindRefused(Misconfigured):
    """CDI files are to be called after the resources, and one has a name that CDI can't say."""

    code = "LK841"


class SharedRequestTooLarge(LauncherkitError):
    """A container requests several replicas of shared cards, and the configuration allows one (K10)."""

    code = "LK842"


class CardInOtherUse(LauncherkitError):
    """A card is requested for a VM while a container has it, or the other way round (K10)."""

    code = "LK843"


# 85x: the page of the node


class PageNotServed(Misconfigured):
    """The page is wanted, and something is missing without which it can't be, or not safely."""

    code = "LK851"


class TokenNotReviewed(Unavailable):
    """Nobody says whether a token is good: the cluster's process is away, or may not ask."""

    code = "LK852"


# 86x: rehearsals


class NotOffered(LauncherkitError):
    """A node has not as many devices of a resource to give as a VM asks for."""

    code = "LK861"


class BadNodeRecord(LauncherkitError):
    """What a node's device plugin has published of it can't be read, or there is nothing."""

    code = "LK865"


# 88x: the webhook


class BadInjections(Misconfigured):
    """What the webhook is to add to pods is not written as its schema says."""

    code = "LK881"


class BadCertificate(Misconfigured):
    """The webhook's certificate or its key can't be used."""

    code = "LK882"


class NoWebhookPort(Unavailable):
    """The webhook can't listen where it should."""

    code = "LK883"
