"""What a key of a policy is, beside its type and default: its kind of values, and a record of what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args, get_origin

from launcherkit.errors import shown
from launcherkit.model.address import PciAddress
from launcherkit.model.host import is_vfio_name

ALIAS_PREFIX_RULE = "libvirt keeps only aliases that begin with ua-, with letters, digits, - and _ after it."
VARIABLE_PREFIX_RULE = "A prefix has upper case letters, digits and underscores, such as PCIDEVICE."
FUNCTION_RULE = "A function is named by its address, 0000:65:00.0, or by vendor and device, 10de:2342."
ROM_RULE = "A ROM is on, off or the absolute path of a file."
DRIVER_RULE = "A VFIO driver's name ends in vfio_pci, as nvgrace_gpu_vfio_pci does."


def is_alias_prefix(text: object) -> bool:
    """Whether it begins with ``ua-`` and contains only what an alias may."""
    return (
        isinstance(text, str)
        and text.startswith("ua-")
        and text.isascii()
        and text.replace("-", "").replace("_", "").isalnum()
    )


def is_variable_prefix(text: object) -> bool:
    """Whether it has only upper case letters, digits and underscores, a letter first."""
    return (
        isinstance(text, str)
        and text.isascii()
        and text.replace("_", "").isalnum()
        and text == text.upper()
        and text[:1].isalpha()
    )


def is_function(text: object) -> bool:
    """Whether it is an address as in sysfs, or vendor and device as ``vvvv:dddd``, in lower case."""
    if not isinstance(text, str):
        return False
    parts = text.split(":")
    if len(parts) == 2:
        return all(len(part) == 4 and set(part) <= set("0123456789abcdef") for part in parts)
    try:
        return str(PciAddress.parse(text)) == text
    except ValueError:
        return False


def is_rom(text: object) -> bool:
    """Whether it is ``on``, ``off`` or an absolute path."""
    return isinstance(text, str) and (text in ("on", "off") or (text.startswith("/") and text.isprintable()))


def is_driver(text: object) -> bool:
    """Whether it names vfio-pci or a variant."""
    return (
        isinstance(text, str)
        and is_vfio_name(text)
        and text.isascii()
        and text.replace("_", "").replace("-", "").isalnum()
    )


class ValueKind:
    """A kind of values.

    Args:
        values: which they are, for people; in Markdown.
        problem: what is wrong with a value, and what is valid; None if nothing is wrong.
        choices: all values, if they are few.
        from_text: a value from the text of a variable, for ``problem`` to check; None if a variable can't hold one.
        text_rule: what is valid in a variable, if ``problem`` says it of a file only.
    """

    def __init__(
        self,
        values: str,
        problem: Callable[[object], tuple[str, str] | None],
        choices: tuple[object, ...] = (),
        from_text: Callable[[str], object] | None = None,
        text_rule: str = "",
    ) -> None:
        self.values = values
        self.problem = problem
        self.choices = choices
        self.from_text = from_text
        self.text_rule = text_rule

    @property
    def words(self) -> Mapping[str, object]:
        """The choices by the words for them on a command line and in a variable."""
        return {word_for(choice): choice for choice in self.choices}


def word_for(choice: object) -> str:
    """How a choice is written: ``yes`` and ``no`` for booleans."""
    return {True: "yes", False: "no"}[choice] if isinstance(choice, bool) else str(choice)


def one_of(choices: tuple[object, ...]) -> ValueKind:
    """The kind of a key with few values."""

    def problem(value: object) -> tuple[str, str] | None:
        if any(value is choice or (value == choice and isinstance(value, str)) for choice in choices):
            return None
        valid = "Give one of them, or leave it out for the default."
        return f"{shown(value)} is none of {', '.join(map(str, choices))}", valid

    return ValueKind(", ".join(f"`{word_for(choice)}`" for choice in choices), problem, choices)


def _alias_prefix_problem(value: object) -> tuple[str, str] | None:
    return None if is_alias_prefix(value) else (f"{shown(value)} is not a prefix of aliases", ALIAS_PREFIX_RULE)


def _variable_prefixes_problem(value: object) -> tuple[str, str] | None:
    if not isinstance(value, tuple):
        return f"{shown(value)} is not a tuple", VARIABLE_PREFIX_RULE
    wrong = [prefix for prefix in value if not is_variable_prefix(prefix)]
    return (f"{shown(wrong[0])} is not a prefix of variables", VARIABLE_PREFIX_RULE) if wrong else None


def _variable_prefixes(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (prefix.strip().rstrip("_") for prefix in text.split(","))))


def _directory_problem(value: object) -> tuple[str, str] | None:
    if isinstance(value, str) and value:
        return None
    return f"{shown(value)} is not a path", "Give the directory with the host's sys/ and dev/."


def _by_function(values: str, is_value: Callable[[object], bool], rule: str) -> ValueKind:
    def problem(mapping: object) -> tuple[str, str] | None:
        valid = f"{FUNCTION_RULE} {rule}"
        if not isinstance(mapping, Mapping):
            return f"{shown(mapping)} is not a mapping", valid
        for function, value in mapping.items():
            if not is_function(function):
                return f"{shown(function)} names no function", valid
            if not is_value(value):
                return f"{shown(value)} is not valid for {shown(function)}", valid
        return None

    return ValueKind(values, problem)


_ANY = ValueKind("", lambda _: None)
ALIAS_PREFIX = ValueKind("begins with `ua-`", _alias_prefix_problem, from_text=str)
VARIABLE_PREFIXES = ValueKind(
    "list of prefixes",
    _variable_prefixes_problem,
    from_text=_variable_prefixes,
    text_rule="Name prefixes such as PCIDEVICE, with commas between.",
)
DIRECTORY = ValueKind("directory", _directory_problem, from_text=str)
ROMS = _by_function("functions with `off`, `on` or the path of a file", is_rom, ROM_RULE)
DRIVERS = _by_function("functions with the name of a VFIO driver", is_driver, DRIVER_RULE)


class PolicyKey:
    """What is declared of a policy's key at its field; `stand_at` adds what the field itself says.

    Args:
        help_: what it decides; without a capital and a full stop.
        more: what its values mean, in short, for those who write a file.
        rules: the rules that it is about.
        kind: of its values. For choices and booleans it follows from the field's type.
        no_default: what is used without a value, if the default is empty.
        within: the values that attach nothing beyond a value, which a VMI's annotation may set (T1). None if the key is
            only for the operator.
        within_text: what a tenant is told who asked for more; in the place of ``{}``, the values within.
        off: the choice that ``--no-FIELD`` stands for too; empty if there is no such option.
        alone: the choice that the option stands for without a value; empty if it needs one.
        variable: empty if it follows from the field, or if a variable can't hold a value.
    """

    def __init__(  # noqa: PLR0913  # what is said of a key, each by name
        self,
        help_: str,
        *,
        more: str = "",
        rules: str = "",
        kind: ValueKind = _ANY,
        no_default: str = "none",
        within: Callable[[Any], Collection[Any]] | None = None,
        within_text: str = "Within it: {}.",
        off: str = "",
        alone: str = "",
        variable: str = "",
    ) -> None:
        self.help = help_
        self.more = more
        self.rules = rules
        self.kind = kind
        self.no_default = no_default
        self.within = within
        self.within_text = within_text
        self.off = off
        self.alone = alone
        self.variable = variable

    def stand_at(self, field: str, group: str, type_: Any, default: object) -> None:
        """Add what its field says.

        Args:
            field: of `Policy`, or of the value ``group`` in it.
            group: the field of `Policy` that it is in; empty if it is a field itself.
            type_: the field's, which may give the choices.
            default: the field's.
        """
        choices = (True, False) if type_ is bool else get_args(type_) if get_origin(type_) is Literal else ()
        if choices:
            self.kind = one_of(choices)
        if not self.variable and (choices or self.kind.from_text):
            self.variable = _PREFIX + field.upper()
        self.field = field
        self.group = group
        self.type = type_
        self.default = default

    @property
    def name(self) -> str:
        """As in a policy file: ``nodeCheck``, ``aliasPrefixes.gpu``."""
        return ".".join(_camel_case(part) for part in (self.group, self.field) if part)

    @property
    def option(self) -> str:
        """Of the command line; empty if there is none."""
        return "--" + self.field.replace("_", "-") if self.kind.choices else ""

    @property
    def off_option(self) -> str:
        """``--no-FIELD``, which sets `off`; empty if there is none."""
        return "--no-" + self.field.replace("_", "-") if self.off else ""

    @property
    def off_variable(self) -> str:
        """As `off_option`; it is ``yes`` or ``no``."""
        return _PREFIX + "NO_" + self.field.upper() if self.off else ""

    @property
    def default_word(self) -> str:
        """The default, for people."""
        return word_for(self.default) if isinstance(self.default, bool) else str(self.default or self.no_default)

    def of(self, policy: Any) -> Any:
        """The value in a policy."""
        return getattr(getattr(policy, self.group) if self.group else policy, self.field)


_PREFIX = "LAUNCHERKIT_"


def _camel_case(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))
