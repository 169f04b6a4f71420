"""The texts of a configuration: what they mean, and which are valid. Each function raises ValueError if one isn't."""

from launcherkit.model.address import PciAddress
from launcherkit.model.policy_key import is_variable_prefix

_HEX = frozenset("0123456789abcdef")
_GLOB = _HEX | set(":.*?[]!-")
_WILD = frozenset("*?[")

LONGEST_NAME = 61
"""Characters after the slash. Kubernetes allows 63, but the name is part of the socket's path, which has at most 107
characters: ``/var/lib/kubelet/device-plugins/`` takes 32 of them, and ``kubevirt-.sock`` 14."""
_LONGEST_DOMAIN = 244
"""Kubernetes prefixes the name with ``requests.``, and allows 253."""

_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_ALNUM = _LOWER | {letter.upper() for letter in _LOWER}
IN_NAME = _ALNUM | set("-_.")
_BLANK = " \t\n\f\r"
_LONGEST_DRIVER = 63
_LONGEST_NAME_OF_DRIVER = 64
STABLE_MAC = "stable"
"""MAC addresses that are derived from that of the physical function, so they are the same after each boot."""


def parse_id(text: str) -> int:
    """A vendor, device or subsystem ID: ``10de``, ``0x10DE``.

    Raises:
        ValueError: it isn't an ID.
    """
    digits = text.strip().lower().removeprefix("0x")
    if len(digits) != 4 or not _HEX.issuperset(digits):
        raise ValueError("an ID is four hex digits, such as 10de")
    return int(digits, 16)


def parse_pair(text: str) -> tuple[int, int]:
    """Two IDs with a colon: ``10de:2204``.

    Raises:
        ValueError: it isn't a pair of IDs.
    """
    first, colon, second = text.partition(":")
    if not colon:
        raise ValueError("a pair of IDs is two IDs with a colon between them, such as 10de:2204")
    return parse_id(first), parse_id(second)


def parse_class(text: str) -> str:
    """The beginning of a class code, two, four or six digits: ``03``, ``0x0302``.

    Raises:
        ValueError: it isn't one.
    """
    digits = text.strip().lower().removeprefix("0x")
    if len(digits) not in (2, 4, 6) or not _HEX.issuperset(digits):
        raise ValueError("a class is two, four or six hex digits, such as 03 or 0302")
    return digits


def parse_address_glob(text: str) -> str:
    """An address or a glob over addresses, with its domain and in lower case: ``e1:00.*`` becomes ``0000:e1:00.*``.

    Raises:
        ValueError: it is neither.
    """
    glob = text.strip().lower()
    if _WILD.isdisjoint(glob):
        return str(PciAddress.parse(glob))
    if not _GLOB.issuperset(glob):
        raise ValueError("an address has hex digits, ':' and '.', with * ? and [...] as wildcards: 0000:e1:00.*")
    return f"0000:{glob}" if glob.count(":") == 1 else glob


def parse_address(text: str) -> str:
    """An address, with its domain and in lower case.

    Raises:
        ValueError: it isn't one.
    """
    return str(PciAddress.parse(text.strip().lower()))


def parse_module(text: str) -> int:
    """NVIDIA's module ID of a card on an NVSwitch board, from 1.

    Raises:
        ValueError: it isn't one.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 100):
        raise ValueError("a module ID is a number from 1, as `nvidia-smi -q` shows it")
    return int(text)


def parse_device_node(text: str) -> str:
    """The path of a device node: absolute, below ``/dev``, without ``.`` and ``..``.

    Raises:
        ValueError: it isn't one.
    """
    parts = text.split("/")
    if parts[:2] != ["", "dev"] or len(parts) < 3 or not all(part not in ("", ".", "..") for part in parts[1:]):
        raise ValueError("a device node is a path below /dev, such as /dev/nvidiactl")
    return text


def check_resource_name(name: str) -> str:
    """Check that Kubernetes accepts a name for an extended resource; returns it.

    Raises:
        ValueError: says what is wrong with it.
    """
    domain, slash, rest = name.partition("/")
    if not slash:
        raise ValueError("a resource's name is <domain>/<NAME>, such as nvidia.com/GA102_GEFORCE_RTX_3090")
    check_domain(domain)
    check_short_name(rest)
    return name


def check_domain(domain: str) -> str:
    """Check the domain, the part before the slash; returns it.

    Raises:
        ValueError: says what is wrong with it.
    """
    labels = domain.split(".")
    if len(domain) > _LONGEST_DOMAIN or not all(_is_label(label) for label in labels):
        raise ValueError(
            f"a domain consists of lower-case letters, digits, dashes and dots, at most {_LONGEST_DOMAIN} characters"
        )
    if domain.endswith("kubernetes.io") or domain.startswith("requests."):
        raise ValueError("Kubernetes reserves domains that end with kubernetes.io or begin with requests.")
    return domain


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and _LOWER.issuperset(label.replace("-", "")) and label.strip("-") == label


def check_short_name(name: str) -> str:
    """Check the part after the slash; returns it.

    Raises:
        ValueError: says what is wrong with it.
    """
    if not (name and IN_NAME.issuperset(name) and name[0] in _ALNUM and name[-1] in _ALNUM):
        raise ValueError(
            "a name consists of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit"
        )
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name has {len(name)} characters; the path of its socket leaves room for {LONGEST_NAME}")
    return name


def type_key(name: str) -> str:
    """The form in which KubeVirt and NVIDIA's plugin compare vGPU types: ``GRID T4-1Q`` equals ``GRID_T4-1Q``."""
    for blank in _BLANK:
        name = name.replace(blank, " ")
    return "_".join(part for part in name.split(" ") if part)


def parse_alias_key(text: str) -> str:
    """The key of an alias: a model, ``10de:2204``, or a vGPU type, whose spaces become ``_``.

    Raises:
        ValueError: it has a colon and isn't a model.
    """
    if ":" in text:
        vendor, device = parse_pair(text)
        return f"{vendor:04x}:{device:04x}"
    return type_key(text)


def parse_prefix(text: str) -> str:
    """The prefix of a variable's name; an underscore at its end is removed.

    Raises:
        ValueError: a name can't begin with it.
    """
    prefix = text.rstrip("_")
    if not is_variable_prefix(prefix):
        raise ValueError("a prefix has upper case letters, digits and underscores, such as PCI_RESOURCE")
    return prefix


def parse_driver(text: str) -> str:
    """The name of a DRA driver.

    Raises:
        ValueError: Kubernetes wouldn't accept it.
    """
    if len(text) > _LONGEST_DRIVER:
        raise ValueError(f"the name of a DRA driver has at most {_LONGEST_DRIVER} characters")
    return check_domain(text)


def parse_kernel_driver(text: str) -> str:
    """The name of a PCI driver of the kernel. It is used as one part of a path.

    Raises:
        ValueError: no driver is called so.
    """
    if not (text and IN_NAME.issuperset(text) and text[0] in _ALNUM and len(text) <= _LONGEST_NAME_OF_DRIVER):
        raise ValueError("a driver's name has letters, digits, '-', '_' and '.', such as vfio-pci")
    return text


def parse_mac(text: str) -> str:
    """``stable``, or the MAC address of one interface, in lower case.

    Raises:
        ValueError: it is neither.
    """
    mac = text.lower()
    if mac == STABLE_MAC:
        return mac
    parts = mac.split(":")
    if len(parts) != 6 or not all(len(part) == 2 and _HEX.issuperset(part) for part in parts):
        raise ValueError("a MAC address has six pairs of hex digits, 02:00:00:00:10:00; or say `stable`")
    if int(parts[0], 16) & 1 or mac == "00:00:00:00:00:00":
        raise ValueError(f"{mac} is not the address of one interface")
    return mac
