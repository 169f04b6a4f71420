"""Our named tuples are those of ``typing`` in all that code can see."""

from __future__ import annotations

import pickle
from typing import NamedTuple as TypingNamedTuple

from launcherkit.model.address import PciAddress
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


def test_methods_and_properties_are_kept() -> None:
    assert Ours(2).twice == 4
    assert Policy()._replace(alias_prefixes=AliasPrefixes(gpu="ua-x-")).alias_prefixes.gpu == "ua-x-"


def test_values_can_be_pickled_and_hashed() -> None:
    address = PciAddress(0, 0xE1, 0, 0)
    assert pickle.loads(pickle.dumps(address)) == address
    assert {address: 1}[PciAddress.parse("0000:e1:00.0")] == 1
