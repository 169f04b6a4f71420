"""All errors: each has a stable code, a message that names its subject, and a remedy.

Library code raises these and never exits; the process edge prints them and exits with `exit_code`.
``docs/errors/LKnnn.md`` is the page of a code, and ``launcherkit explain LKnnn`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Self, TypedDict, Unpack


class ErrorFields(TypedDict, total=False):
    """What an error is about: see `LauncherkitError`."""

    device: str
    group: int
    driver: str
    variable: str
    resource: str
    file: str
    key: str
    domain: str


EX_USAGE = 2
EX_DATAERR = 65
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_CONFIG = 78


class LauncherkitError(Exception):
    """The base of all errors.

    Args:
        message: one line that names the subject.
        remedy: what to do; commands may follow, one on each line.
        facts: what the message is about, as far as it applies: ``device``, an address as text; ``group``, the number of
            an IOMMU group; ``driver``, a kernel driver; ``variable``, one of the environment; ``resource``, its name;
            ``file``, its path or URI as given, or what messages call an input that has neither; ``key``, a place in
            that: a JSON path, a line, a flag; ``domain``, the name of a libvirt domain.
    """

    code: ClassVar[str] = ""
    exit_code: ClassVar[int] = EX_DATAERR

    def __init__(self, message: str, remedy: str, **facts: Unpack[ErrorFields]) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.facts = facts
        """The facts that apply, in the order in which they were given."""
        self.device = facts.get("device")
        self.group = facts.get("group")
        self.driver = facts.get("driver")
        self.variable = facts.get("variable")
        self.resource = facts.get("resource")
        self.file = facts.get("file")
        self.key = facts.get("key")
        self.domain = facts.get("domain")

    def __reduce__(self) -> tuple[Callable[..., LauncherkitError], tuple[object, ...]]:
        return _unpickled, (type(self), self.args, self.__dict__)

    def leaves(self) -> Iterator[LauncherkitError]:
        """This error, or the errors that it stands for."""
        yield self

    @classmethod
    def codes(cls) -> dict[str, type[LauncherkitError]]:
        """Every code there is, sorted."""
        return {leaf.code: leaf for leaf in sorted(_leaves(cls), key=lambda leaf: leaf.code)}


def _unpickled(cls: type[LauncherkitError], args: tuple[object, ...], fields: dict[str, object]) -> LauncherkitError:
    """An error as it was, whatever its ``__init__`` takes."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


def _leaves(cls: type[LauncherkitError]) -> Iterator[type[LauncherkitError]]:
    if cls.code:
        yield cls
    for sub in cls.__subclasses__():
        yield from _leaves(sub)


class Unavailable(LauncherkitError):
    """Base of errors about something that is missing or doesn't work."""

    exit_code: ClassVar[int] = EX_UNAVAILABLE


class Misconfigured(LauncherkitError):
    """Base of errors after which the machine or its configuration must be changed first."""

    exit_code: ClassVar[int] = EX_CONFIG


class SeveralErrors(LauncherkitError):
    """All errors of one input, found in one pass."""

    def __init__(self, errors: Iterable[LauncherkitError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(error.message for error in self.errors), self.errors[0].remedy)

    def leaves(self) -> Iterator[LauncherkitError]:
        yield from self.errors

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # the first error's
        return self.errors[0].exit_code


def on_one_line(remedy: str) -> str:
    """A remedy with its commands on one line, joined so that a shell can still run them."""
    text, *commands = remedy.split("\n")
    return " ".join([text, "; ".join(commands)]) if commands else text


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def shown(value: object) -> str:
    """A value for a message: its ``repr``, cut to 60 characters; only the kind of a list or an object."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()  # as in JSON and YAML
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    try:
        text = repr(value)
    except ValueError:  # Python doesn't write integers of more than 4300 digits
        return "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."


_OF_ADDRESSES = frozenset("0123456789abcdefABCDEF:.-")
_LONGEST_ADDRESS = 36  # a UUID


def shown_entry(text: str) -> str:
    """An entry that should be an address, for a message: as it is if it looks like one, else only its length.

    A variable may hold something other than its name says, and messages reach people who may not read variables (T1).
    """
    looks_like_one = len(text) <= _LONGEST_ADDRESS and _OF_ADDRESSES.issuperset(text) and (":" in text or "-" in text)
    return repr(text) if looks_like_one else f"text of length {len(text)}"


class Collector:
    """Collects the errors of one document, so that all are reported together.

    As a context manager it collects what its block raises, and execution continues after the block.
    """

    def __init__(self, errors: Iterable[LauncherkitError] = ()) -> None:
        self._errors = [*errors]

    @property
    def errors(self) -> tuple[LauncherkitError, ...]:
        """The collected errors, in order."""
        return tuple(self._errors)

    def add(self, error: LauncherkitError) -> None:
        self._errors.append(error)

    def extend(self, errors: Iterable[LauncherkitError]) -> None:
        self._errors.extend(errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, raised: object, _trace: object) -> bool:
        if not isinstance(raised, LauncherkitError):
            return False
        self._errors.extend(raised.leaves())
        return True

    def raise_if_any(self) -> None:
        """Raise the collected errors: one as itself, several as `SeveralErrors`."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise SeveralErrors(self._errors)


# 1xx: the inputs of one VM: environment, VMI, domain document


class BadPciAddress(LauncherkitError):
    code = "LK101"


class BadMdevUuid(LauncherkitError):
    code = "LK102"


class BadUsbAddress(LauncherkitError):
    code = "LK103"


class VariableClash(LauncherkitError):
    """Two requested resources have one variable name (E2)."""

    code = "LK104"


class BadEnvFile(LauncherkitError):
    code = "LK105"


class AnnotationWidens(LauncherkitError):
    """A VMI's annotation asks for more than the operator's policy allows (T1)."""

    code = "LK106"


class OperatorsKey(LauncherkitError):
    """A VMI's annotation sets what only the operator can (T1)."""

    code = "LK107"


class AnnotationsOff(LauncherkitError):
    """A VMI has an annotation, and the operator's policy takes none (T1)."""

    code = "LK108"


class BadVmi(LauncherkitError):
    code = "LK111"


class BadClaim(LauncherkitError):
    """The metadata of a DRA claim doesn't name one device that can be attached (E5)."""

    code = "LK112"


class MixedBackends(LauncherkitError):
    """Hostdevs of the document open one IOMMU group through iommufd and through the group."""

    code = "LK113"


class BadNetworkStatus(LauncherkitError):
    """The pod's annotation doesn't say which device an SR-IOV network has."""

    code = "LK114"


class NotXml(LauncherkitError):
    code = "LK121"


class ForbiddenXml(LauncherkitError):
    """A DTD, an entity, an external reference (X5)."""

    code = "LK122"


class DomainTooLarge(LauncherkitError):
    code = "LK123"


class NotADomain(LauncherkitError):
    code = "LK124"


class BadEncoding(LauncherkitError):
    code = "LK125"


class BadHostdev(LauncherkitError):
    code = "LK126"


class StaleHostdev(LauncherkitError):
    """A hostdev under a request's alias has a device that wasn't allocated here, and can't get another (X2)."""

    code = "LK127"


class UnreadableFile(LauncherkitError):
    code = "LK131"


class UnwritableFile(LauncherkitError):
    code = "LK132"


# 2xx: the host against the requests


class VariableMissing(LauncherkitError):
    """No variable holds what a request asks for (E4)."""

    code = "LK201"


class TooFewDevices(LauncherkitError):
    """A variable holds fewer devices than were asked for (C4)."""

    code = "LK202"


class NotOnHost(LauncherkitError):
    code = "LK203"


class GroupNotViable(LauncherkitError):
    """The kernel would not let QEMU have the group (V1)."""

    code = "LK204"


class NodeMissing(LauncherkitError):
    code = "LK205"


class VgpuPhysicalFunction(LauncherkitError):
    code = "LK206"


class DeviceAsleep(LauncherkitError):
    """D3cold (V3)."""

    code = "LK207"


class UnknownMdevModel(LauncherkitError):
    """A mediated device has a device API that no hostdev can have as its model."""

    code = "LK209"


class DeviceGone(LauncherkitError):
    """Config space reads all ones (V3)."""

    code = "LK208"


class NoIommuGroup(LauncherkitError):
    """No IOMMU isolates a device that is to go to a guest (V1)."""

    code = "LK210"


# 3xx: the guest's PCI topology


class SlotTaken(LauncherkitError):
    code = "LK301"


class NoRoom(LauncherkitError):
    code = "LK302"


class NotAligned(LauncherkitError):
    """A device can't be placed by NUMA cell, and the policy allows no other place (P4)."""

    code = "LK341"


class NoInitiators(LauncherkitError):
    """A GPU can't get cells for its memory, though the policy wants it; or libvirt is too old for it (P7)."""

    code = "LK342"


# 4xx: what people wrote to configure us


class BadPolicy(Misconfigured):
    code = "LK401"


class BadSetting(Misconfigured):
    """A variable ``LAUNCHERKIT_*`` has an invalid value."""

    code = "LK402"


class BadAnnotation(Misconfigured):
    code = "LK403"


class BadGoldenCase(Misconfigured):
    code = "LK404"


# 5xx: where host facts come from


class NoSysfs(Misconfigured):
    code = "LK501"


class BadSnapshot(LauncherkitError):
    code = "LK502"


class BadRecording(LauncherkitError):
    code = "LK503"


# 6xx: the other sides of the adapters; 61x: hooks over gRPC


class SocketInUse(Misconfigured):
    """Another process already serves at the socket's path."""

    code = "LK611"


class SocketNotMade(Misconfigured):
    code = "LK612"


class BadHookName(Misconfigured):
    """A container's or plugin's name can't name a socket."""

    code = "LK613"


class SidecarNotInstalled(Misconfigured):
    """The extra ``[sidecar]`` is missing."""

    code = "LK614"


class MessageTooLarge(LauncherkitError):
    code = "LK615"


class UnknownDomainType(LauncherkitError):
    """A plugin's hook was called for a domain that is not libvirt's."""

    code = "LK616"


# 62x: libvirt, for `define` and `run`


class LibvirtNotThere(Unavailable):
    """libvirt doesn't answer at the URI, or has stopped answering."""

    code = "LK621"


class LibvirtModuleMissing(Misconfigured):
    """The extra ``[libvirt]`` is missing."""

    code = "LK622"


class DomainRefused(LauncherkitError):
    """libvirt would not define the domain."""

    code = "LK623"


class GuestNotStarted(Unavailable):
    """libvirt or QEMU could not start the guest."""

    code = "LK624"


class DeviceBusy(Unavailable):
    """Another guest or process has the device."""

    code = "LK625"


class DomainInTheWay(LauncherkitError):
    """A domain of that name exists and may not be replaced."""

    code = "LK626"


class HostNeedsDevice(LauncherkitError):
    """libvirt would take a device from this host that the host can't do without, or may not be able to (V1)."""

    code = "LK627"


# 63x: templates


class NoSuchTemplate(LauncherkitError):
    code = "LK631"


class BadTemplate(LauncherkitError):
    """It isn't valid Jinja2, or does what a template may not do."""

    code = "LK632"


class BadTemplateValue(LauncherkitError):
    """A value for a template is missing, unknown or malformed."""

    code = "LK633"


# 86x: rehearsals


class ClaimNotRehearsed(LauncherkitError):
    """A device is asked for by a ResourceClaim; which one it gets is the scheduler's choice."""

    code = "LK862"


class PluginNotInstalled(Misconfigured):
    """The device plugin's package, which answers for nodes, is not installed."""

    code = "LK863"


class NoNodes(LauncherkitError):
    """There is no node to rehearse on, none of that name, or two of one name."""

    code = "LK864"


# 87x: pods' devices, and shell completion


class PodResourcesUnreadable(Unavailable):
    """The kubelet doesn't say which pod holds which device."""

    code = "LK871"


class CompletionNotInstalled(Misconfigured):
    """The extra ``[completion]`` is missing."""

    code = "LK872"
