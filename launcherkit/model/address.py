"""Where a device is: PCI addresses (BDF), mdev UUIDs and USB addresses.

Addresses are parsed once at the edge into values that can't be wrong (E3); ``parse`` and ``str`` are inverse. Addresses
of two types are never equal, whatever their fields: function 0000:01:00.0 of the host is not the guest's. Order and
hash are those of tuples.
"""

from typing import NamedTuple, Self, TypeAlias, TypeVar

AddressT = TypeVar("AddressT", bound=tuple[object, ...])


def _equal_to_its_own_type(cls: type[AddressT]) -> type[AddressT]:
    """Make values of a named tuple equal to none of another type.

    A method ``__eq__`` in the class would do the same, and type checkers would take its values for unhashable.
    """

    def equal(self: AddressT, other: object) -> bool:
        return other.__class__ is cls and tuple.__eq__(self, other)

    def unequal(self: AddressT, other: object) -> bool:
        return not equal(self, other)

    cls.__eq__, cls.__ne__ = equal, unequal  # type: ignore[method-assign, assignment]
    return cls


_HEX = frozenset("0123456789abcdefABCDEF")
_BDF = "%04x:%02x:%02x.%d"  # formats an address in half the time of an f-string


def _hex_digits(text: str, low: int, high: int) -> bool:
    return low <= len(text) <= high and _HEX.issuperset(text)


class PciSlot(NamedTuple):
    """A PCI device number on a bus, which all functions of a card share.

    Attributes:
        domain: PCI domain (segment), up to 32 bits.
        bus: 0 to 0xff.
        device: 0 to 0x1f.
    """

    domain: int
    bus: int
    device: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}"


@_equal_to_its_own_type
class PciAddress(NamedTuple):
    """The address of one PCI function; ``domain`` may have 32 bits (VMD).

    Attributes:
        domain: PCI domain (segment), up to 32 bits.
        bus: 0 to 0xff.
        device: 0 to 0x1f.
        function: 0 to 7.
    """

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return _BDF % self

    @property
    def slot(self) -> PciSlot:
        """The address without its function."""
        return PciSlot(*self[:3])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``[domain:]bb:dd.f`` (E3).

        Raises:
            ValueError: says what is wrong with the text, without quoting it.
        """
        if len(text) == 12 and text[4] == text[7] == ":" and text[10] == ".":
            # The common spelling, in a third of the time; anything else falls through, to find out what is wrong.
            digits = text.replace(":", "").replace(".", "")
            if len(digits) == 9 and _HEX.issuperset(digits):
                number = int(digits, 16)
                if number & 0xF <= 7 and number >> 4 & 0xFF <= 0x1F:
                    return cls(number >> 20, number >> 12 & 0xFF, number >> 4 & 0xFF, number & 0xF)
        head, dot, function = text.rpartition(".")
        parts = head.split(":")
        if not dot or len(parts) not in (2, 3):
            raise ValueError("not of the form [domain:]bb:dd.f")
        domain = parts[0] if len(parts) == 3 else "0000"
        bus, device = parts[-2], parts[-1]
        if not _hex_digits(domain, 4, 8):
            raise ValueError("the domain is not 4 to 8 hex digits")
        if not _hex_digits(bus, 2, 2):
            raise ValueError("the bus is not 2 hex digits")
        if not _hex_digits(device, 2, 2) or int(device, 16) > 0x1F:
            raise ValueError("the device is not in 00-1f")
        if len(function) != 1 or function not in "01234567":
            raise ValueError("the function is not in 0-7")
        return cls(int(domain, 16), int(bus, 16), int(device, 16), int(function))


@_equal_to_its_own_type
class MdevAddress(NamedTuple):
    """The UUID of a mediated device, in lower case.

    Attributes:
        uuid: In lower case, 8-4-4-4-12 hex digits.
    """

    uuid: str

    def __str__(self) -> str:
        return self.uuid

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a UUID as sysfs spells it, 8-4-4-4-12 hex digits in any case (E3).

        Raises:
            ValueError: the text is not such a UUID.
        """
        parts = text.split("-")
        if [len(part) for part in parts] != [8, 4, 4, 4, 12] or not all(map(_HEX.issuperset, parts)):
            raise ValueError("not a UUID of 8-4-4-4-12 hex digits")
        return cls(text.lower())


class UsbAddress(NamedTuple):
    """Bus and device number of a USB device, as in ``/dev/bus/usb/BBB/DDD``.

    Attributes:
        bus: The USB bus.
        device: The device's number on it.
    """

    bus: int
    device: int

    def __str__(self) -> str:
        return f"{self.bus}:{self.device}"

    @property
    def node(self) -> str:
        """The path of its device node."""
        return f"/dev/bus/usb/{self.bus:03d}/{self.device:03d}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``bus:device``, decimal, up to three digits each (E3).

        Raises:
            ValueError: the text is not of that form.
        """
        bus, _, device = text.partition(":")
        for part in (bus, device):
            if not (1 <= len(part) <= 3 and part.isascii() and part.isdigit()):
                raise ValueError("not of the form bus:device in decimal")
        return cls(int(bus), int(device))


@_equal_to_its_own_type
class UsbModel(NamedTuple):
    """A USB device that a document names by ``vendor:product``; variables never do.

    Attributes:
        ids: Vendor and product, as the document writes them: ``0x046d:0xc52b``.
    """

    ids: str

    def __str__(self) -> str:
        return self.ids


HostAddress: TypeAlias = PciAddress | MdevAddress | UsbAddress | UsbModel


CardAddress: TypeAlias = PciSlot | HostAddress
"""What a device is a part of."""


def card_of(address: HostAddress) -> CardAddress:
    """The card of a device: the slot for a PCI function, the address itself for any other device."""
    return address.slot if isinstance(address, PciAddress) else address


@_equal_to_its_own_type
class GuestAddress(NamedTuple):
    """A PCI address inside the guest.

    Attributes:
        domain: PCI domain, 0 by default.
        bus: The index of the controller that it is behind.
        slot: 0 to 0x1f.
        function: 0 to 7.
    """

    domain: int
    bus: int
    slot: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"

    @property
    def function_0(self) -> Self:
        """Function 0 of the same slot, which identifies the slot."""
        return self._replace(function=0)


# Sets of numbers as the kernel and libvirt write them: ``0-3,8``, and libvirt's ``0-7,^3``.


_HIGHEST = 16383
"""libvirt's highest CPU number; the kernel's is below it."""


def parse_cpuset(text: str) -> frozenset[int]:
    """The numbers of a list; ``^n`` removes a number that comes earlier in the list.

    Raises:
        ValueError: a part is neither a number nor a range, or beyond 16383.
    """
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.startswith("^"):
            numbers.discard(_number(part[1:]))
            continue
        first, dash, last = part.partition("-")
        numbers.update(range(_number(first), _number(last if dash else first) + 1))
    return frozenset(numbers)


def _number(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(_HIGHEST)) or int(digits) > _HIGHEST:
        raise ValueError(f"{digits[:20]!r} is not a number from 0 to {_HIGHEST}")
    return int(digits)


def format_cpuset(numbers: frozenset[int]) -> str:
    """Numbers as the kernel lists them: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def read_cpuset(text: str | None) -> frozenset[int]:
    """A set of numbers; empty if it is missing or invalid."""
    try:
        return parse_cpuset(text or "")
    except ValueError:
        return frozenset()


# Numbers as libvirt reads them.


def number(text: str | None) -> int | None:
    """A number as libvirt reads it: C's strtoul with base 0, so ``010`` is 8."""
    digits = (text or "").lstrip(" \t\n\r").removeprefix("+")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" and len(digits) > 1 else 10
    digits = digits[2:] if base == 16 else digits
    if not digits.isascii() or not digits.isalnum() or len(digits.lstrip("0")) > 16:
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None
