"""All errors: each has a stable code, a message that names its subject, and a remedy.

A class is a kind of error that a caller may want to catch; a `Code` is one error of that kind, and the codes are the
table at the end of this module. A code is called to make its error: ``raise BAD_PCI_ADDRESS(message, remedy)``.

Library code raises errors and never exits; the process edge prints them and exits with `exit_code`.
``docs/errors/LKnnn.md`` is the page of a code, and ``launcherkit explain LKnnn`` prints it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Self, TypedDict, TypeVar, Unpack


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
        code: which error this is.
        message: one line that names the subject.
        remedy: what to do; commands may follow, one on each line.
        facts: what the message is about: any of the attributes from ``device`` on.

    Attributes:
        code: ``LK204``: the same in every version.
        exit_code: With which a program ends that fails by it: 65 for bad input, 69 for a service that isn't there, 78
            for configuration.
        message: One line that names the subject.
        remedy: What to do; commands may follow, one on each line.
        facts: The attributes below that aren't None, in the order in which they were given.
        device: An address as text, such as ``0000:e1:00.0`` or the UUID of an mdev.
        group: The number of an IOMMU group.
        driver: A kernel driver.
        variable: A variable of the environment.
        resource: The name of a resource.
        file: A path or URI as it was given, or what messages call an input that has neither.
        key: A place in that: a JSON path, a line, an option of a command.
        domain: The name of a libvirt domain.
    """

    def __init__(self, code: "Code[LauncherkitError]", message: str, remedy: str, **facts: Unpack[ErrorFields]) -> None:
        message = one_line(message)
        super().__init__(message)
        self.code: str = code.code
        self.exit_code: int = code.exit_code
        self.message = message
        self.remedy = remedy
        self.facts = facts
        self.device: str | None = facts.get("device")
        self.group: int | None = facts.get("group")
        self.driver: str | None = facts.get("driver")
        self.variable: str | None = facts.get("variable")
        self.resource: str | None = facts.get("resource")
        self.file: str | None = facts.get("file")
        self.key: str | None = facts.get("key")
        self.domain: str | None = facts.get("domain")

    def __reduce__(self) -> tuple[Callable[..., "LauncherkitError"], tuple[object, ...]]:
        return _unpickled, (type(self), self.args, self.__dict__)

    def leaves(self) -> Iterator["LauncherkitError"]:
        """This error, or the errors that it stands for."""
        yield self

    @staticmethod
    def codes() -> dict[str, "Code[LauncherkitError]"]:
        """Every code of the modules that are imported, sorted."""
        return dict(sorted(_CODES.items()))


def _unpickled(cls: type[LauncherkitError], args: tuple[object, ...], fields: dict[str, object]) -> LauncherkitError:
    """An error as it was, whatever its ``__init__`` takes."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


ErrorT_co = TypeVar("ErrorT_co", bound=LauncherkitError, covariant=True)


class Code(NamedTuple, Generic[ErrorT_co]):
    """A row of the table: one error that there is. Calling it makes the error.

    Attributes:
        code: ``LK204``: the same in every version.
        title: What its page is called.
        exit_code: As that of `LauncherkitError`.
        kind: The class of its errors.
    """

    code: str
    title: str
    exit_code: int
    kind: type[ErrorT_co]

    def __call__(self, message: str, remedy: str, **facts: Unpack[ErrorFields]) -> ErrorT_co:
        """The error; for the arguments see `LauncherkitError`."""
        return self.kind(self, message, remedy, **facts)


_CODES: dict[str, Code[LauncherkitError]] = {}


def register(names: Mapping[str, Any]) -> None:
    """Make the codes among the names of a module known to `LauncherkitError.codes`."""
    _CODES.update((row.code, row) for row in names.values() if isinstance(row, Code))


class SeveralErrors(LauncherkitError):
    """All errors of one input, found in one pass. It has no code of its own, and the exit code of the first.

    Attributes:
        errors: In the order in which they were found.
    """

    def __init__(self, errors: Iterable[LauncherkitError]) -> None:
        self.errors: tuple[LauncherkitError, ...] = tuple(errors)
        first = self.errors[0]
        message = "; ".join(error.message for error in self.errors)
        super().__init__(Code("", "several errors", first.exit_code, SeveralErrors), message, first.remedy)

    def leaves(self) -> Iterator[LauncherkitError]:
        yield from self.errors


def one_line(text: str) -> str:
    """A message on one line, without terminal controls: parts of it may be untrusted text."""
    line = text if text.isprintable() else " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


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


# The kinds


class BadInput(LauncherkitError):
    """An input isn't what it should be: an entry of a variable, a document, a file; ``file`` and ``key`` say where."""


class NotAllowed(LauncherkitError):
    """An input asks for what only the operator, or nobody, may set (T1)."""


class Conflict(LauncherkitError):
    """Two inputs, or two parts of one, contradict each other."""


class UnreadableFile(LauncherkitError):
    """A file can't be read; ``file`` says which."""


class UnwritableFile(LauncherkitError):
    """A file can't be written or removed; ``file`` says which."""


class TooFew(LauncherkitError):
    """There are fewer devices than are asked for, or none."""


class NotOnHost(LauncherkitError):
    """A device or its node is not there, or no longer."""


class GroupNotViable(LauncherkitError):
    """No IOMMU isolates a device, or the kernel would not let QEMU have its group (V1)."""


class DeviceUnusable(LauncherkitError):
    """A device is there, and no guest can have it: it is asleep, broken, or of a kind that can't be attached (V3)."""


class NoPlace(LauncherkitError):
    """There is no place where a device could go: a slot of the guest, a NUMA cell, room on a card."""


class BadConfig(LauncherkitError):
    """What the operator configured is not valid; ``file`` or ``variable`` and ``key`` say where."""


class NoSysfs(LauncherkitError):
    """There is no sysfs from which facts about the host could be read."""


class NotInstalled(LauncherkitError):
    """Something optional is needed and isn't installed: an extra, a package, a kernel module."""


class CannotServe(LauncherkitError):
    """A socket or an address on which to serve can't be had."""


class Refused(LauncherkitError):
    """libvirt, the kubelet or the host doesn't allow it; to try again is no use before something has changed."""


class Taken(LauncherkitError):
    """Another guest, pod, claim or process has the device."""


class Unavailable(LauncherkitError):
    """Something doesn't answer, or has failed, that may work later."""


class LibvirtNotThere(Unavailable):
    """libvirt doesn't answer, or has stopped answering."""


class UsageUnknown(Unavailable):
    """It can't be known who has which device."""


# The codes

# 1xx: the inputs of one VM: environment, VMI, domain document

BAD_PCI_ADDRESS = Code("LK101", "an entry is not a PCI address", EX_DATAERR, BadInput)
BAD_MDEV_UUID = Code("LK102", "an entry is not the UUID of a mediated device", EX_DATAERR, BadInput)
BAD_USB_ADDRESS = Code("LK103", "an entry is not a USB address", EX_DATAERR, BadInput)
VARIABLE_CLASH = Code("LK104", "two resources have the same variable", EX_DATAERR, Conflict)
BAD_ENV_FILE = Code("LK105", "a line of the environment file is not an assignment", EX_DATAERR, BadInput)
ANNOTATION_WIDENS = Code("LK106", "an annotation would widen the policy", EX_DATAERR, NotAllowed)
OPERATORS_KEY = Code("LK107", "an annotation sets what only the operator can", EX_DATAERR, NotAllowed)
ANNOTATIONS_OFF = Code("LK108", "annotations are switched off, and the VMI has one", EX_DATAERR, NotAllowed)
BAD_VMI = Code("LK111", "this is not a VMI, or a key has a wrong value", EX_DATAERR, BadInput)
BAD_CLAIM = Code("LK112", "a DRA claim's metadata names no device", EX_DATAERR, BadInput)
MIXED_BACKENDS = Code("LK113", "an IOMMU group would be opened both ways", EX_DATAERR, Conflict)
BAD_NETWORK_STATUS = Code("LK114", "the network status doesn't say which device a network has", EX_DATAERR, BadInput)
NOT_XML = Code("LK121", "the domain document is not well-formed XML", EX_DATAERR, BadInput)
FORBIDDEN_XML = Code("LK122", "the domain document has a document type", EX_DATAERR, BadInput)
DOMAIN_TOO_LARGE = Code("LK123", "the domain document is too large", EX_DATAERR, BadInput)
NOT_A_DOMAIN = Code("LK124", "the document is not a domain", EX_DATAERR, BadInput)
BAD_ENCODING = Code("LK125", "the encoding of the domain document is not supported", EX_DATAERR, BadInput)
BAD_HOSTDEV = Code("LK126", "a hostdev of the domain has no usable source address", EX_DATAERR, BadInput)
STALE_HOSTDEV = Code("LK127", "a hostdev has a device that was not allocated here", EX_DATAERR, Conflict)
CANT_REPLACE = Code("LK128", "an allocated device can't take the place of the one before", EX_DATAERR, Conflict)
UNREADABLE_FILE = Code("LK131", "a file can't be read", EX_DATAERR, UnreadableFile)
UNWRITABLE_FILE = Code("LK132", "a file can't be written", EX_DATAERR, UnwritableFile)

# 2xx: the host against the requests

VARIABLE_MISSING = Code("LK201", "no variable answers a request", EX_DATAERR, TooFew)
TOO_FEW_DEVICES = Code("LK202", "a variable holds too few devices", EX_DATAERR, TooFew)
NOT_ON_HOST = Code("LK203", "an allocated device is not on this host", EX_DATAERR, NotOnHost)
GROUP_NOT_VIABLE = Code("LK204", "the IOMMU group is not viable", EX_DATAERR, GroupNotViable)
NODE_MISSING = Code("LK205", "a device node is missing", EX_DATAERR, NotOnHost)
VGPU_PHYSICAL_FUNCTION = Code("LK206", "the physical function of a vGPU card was allocated", EX_DATAERR, DeviceUnusable)
DEVICE_ASLEEP = Code("LK207", "the device is in D3cold", EX_DATAERR, DeviceUnusable)
UNKNOWN_MDEV_MODEL = Code("LK209", "libvirt has no model for a mediated device", EX_DATAERR, DeviceUnusable)
DEVICE_GONE = Code("LK208", "the device has fallen off the bus", EX_DATAERR, DeviceUnusable)
NO_IOMMU_GROUP = Code("LK210", "no IOMMU isolates the device", EX_DATAERR, GroupNotViable)

# 3xx: the guest's PCI topology

SLOT_TAKEN = Code("LK301", "the guest slot can't take the siblings", EX_DATAERR, NoPlace)
NO_ROOM = Code("LK302", "the guest has no free slot", EX_DATAERR, NoPlace)
NOT_ALIGNED = Code("LK341", "a device can't be placed by NUMA cell", EX_DATAERR, NoPlace)
NO_INITIATORS = Code("LK342", "a Grace GPU can't be a generic initiator", EX_DATAERR, NoPlace)

# 4xx: what people wrote to configure us

BAD_POLICY = Code("LK401", "the policy file is wrong", EX_CONFIG, BadConfig)
BAD_SETTING = Code("LK402", "a variable LAUNCHERKIT_* has an invalid value", EX_CONFIG, BadConfig)
BAD_ANNOTATION = Code("LK403", "the annotation launcherkit.io/policy is wrong", EX_CONFIG, BadConfig)
BAD_GOLDEN_CASE = Code("LK404", "a golden case is wrong", EX_CONFIG, BadConfig)

# 5xx: where host facts come from

NO_SYSFS = Code("LK501", "there is no sysfs at that place", EX_CONFIG, NoSysfs)
BAD_SNAPSHOT = Code("LK502", "the snapshot is wrong", EX_DATAERR, BadInput)
BAD_RECORDING = Code("LK503", "the recording is wrong", EX_DATAERR, BadInput)

# 6xx: the other sides of the adapters; 61x: hooks over gRPC

SOCKET_IN_USE = Code("LK611", "another process serves on the socket", EX_CONFIG, CannotServe)
SOCKET_NOT_MADE = Code("LK612", "the socket can't be created", EX_CONFIG, CannotServe)
BAD_HOOK_NAME = Code("LK613", "a name is not valid for a socket", EX_CONFIG, BadConfig)
SIDECAR_NOT_INSTALLED = Code("LK614", "the modules for hooks over gRPC are not installed", EX_CONFIG, NotInstalled)
MESSAGE_TOO_LARGE = Code("LK615", "a request is too large", EX_DATAERR, BadInput)
UNKNOWN_DOMAIN_TYPE = Code("LK616", "the domain is not libvirt's", EX_DATAERR, BadInput)

# 62x: libvirt, for `define` and `run`

LIBVIRT_NOT_THERE = Code("LK621", "libvirt does not answer", EX_UNAVAILABLE, LibvirtNotThere)
LIBVIRT_MODULE_MISSING = Code("LK622", "libvirt's Python module is missing", EX_CONFIG, NotInstalled)
DOMAIN_REFUSED = Code("LK623", "libvirt refuses the domain", EX_DATAERR, Refused)
GUEST_NOT_STARTED = Code("LK624", "the guest does not start", EX_UNAVAILABLE, Refused)
DEVICE_BUSY = Code("LK625", "the device is busy", EX_UNAVAILABLE, Taken)
DOMAIN_IN_THE_WAY = Code("LK626", "a domain of that name is in the way", EX_DATAERR, Conflict)
HOST_NEEDS_DEVICE = Code("LK627", "the host needs the device", EX_DATAERR, Refused)
GUEST_AGENT = Code("LK628", "the guest agent does not answer, or may not read files", EX_UNAVAILABLE, Refused)
NO_RUNNING_DOMAIN = Code("LK629", "no domain of that name is running", EX_DATAERR, BadInput)

# 63x: templates

NO_SUCH_TEMPLATE = Code("LK631", "there is no such template", EX_DATAERR, BadInput)
BAD_TEMPLATE = Code("LK632", "the template is wrong", EX_DATAERR, BadInput)
BAD_TEMPLATE_VALUE = Code("LK633", "a value for the template is wrong", EX_DATAERR, BadInput)

# 86x: rehearsals

CLAIM_NOT_REHEARSED = Code("LK862", "a ResourceClaim is not rehearsed", EX_DATAERR, BadInput)
PLUGIN_NOT_INSTALLED = Code("LK863", "the device plugin is not installed", EX_CONFIG, NotInstalled)
NO_NODES = Code("LK864", "there is no such node to rehearse on", EX_DATAERR, BadInput)

# 87x: pods' devices, and shell completion

POD_RESOURCES_UNREADABLE = Code(
    "LK871", "the kubelet can't be asked which pod holds which device", EX_UNAVAILABLE, UsageUnknown
)
COMPLETION_NOT_INSTALLED = Code("LK872", "the module for completion is not installed", EX_CONFIG, NotInstalled)

register(globals())
