"""Our named tuples are those of ``typing`` in all that code can see."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any
from typing import NamedTuple as TypingNamedTuple

import pytest

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail
from launcherkit.model.policy import AliasPrefixes, Policy
from launcherkit.model.value import NamedTuple


class Ours(NamedTuple):
    """A value."""

    a: int
    b: str = "x"

    @property
    def twice(self) -> int:
        return 2 * self.a


class Theirs(TypingNamedTuple):
    a: int
    b: str = "x"


def test_fields_defaults_order_and_names_are_the_same() -> None:
    assert Ours._fields == Theirs._fields == ("a", "b")
    assert tuple(Ours(1)) == tuple(Theirs(1)) == (1, "x")
    assert Ours(1) == Ours(1, "x")
    assert repr(Ours(1)) == "Ours(a=1, b='x')"
    assert Ours.__doc__ == "A value."
    assert set(Ours.__annotations__) == {"a", "b"}
    assert Ours._field_defaults == {"b": "x"}
    assert Ours.__mro__ == (Ours, tuple, object)
    assert Ours.__match_args__ == Theirs.__match_args__
    assert list(inspect.signature(Ours).parameters.values())[1].default == "x"
    assert Ours(b="y", a=2) == Ours(2, "y")
    assert Ours(2)._asdict() == Theirs(2)._asdict()
    assert Ours._make([2, "y"])._replace(a=3) == (3, "y")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda value: value(),
        lambda value: value(1, "x", 2),
        lambda value: value(1, c=2),
        lambda value: value._make([1]),
        lambda value: value(1)._replace(c=2),
    ],
)
@pytest.mark.parametrize("value", [Ours, Theirs])
def test_what_is_no_such_value_is_refused_with_its_name(value: Any, wrong: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:  # Python 3.13 made the last one a TypeError
        wrong(value)
    assert value.__name__ in str(refused.value) or "arguments, got" in str(refused.value) or "'c'" in str(refused.value)


def test_a_value_can_have_as_many_fields_as_any_of_ours() -> None:
    assert PciDetail._fields[-1] == "link"
    values = range(len(PciDetail._fields))
    assert tuple(PciDetail._make(values)) == tuple(PciDetail(*values)) == tuple(values)


def test_methods_and_properties_are_kept() -> None:
    assert Ours(2).twice == 4
    assert Policy()._replace(alias_prefixes=AliasPrefixes(gpu="ua-x-")).alias_prefixes.gpu == "ua-x-"


def test_values_can_be_pickled_and_hashed() -> None:
    address = PciAddress(0, 0xE1, 0, 0)
    assert pickle.loads(pickle.dumps(address)) == address
    assert {address: 1}[PciAddress.parse("0000:e1:00.0")] == 1
