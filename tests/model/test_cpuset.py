"""Lists of CPUs and nodes as the kernel and libvirt write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.model.address import format_cpuset, parse_cpuset


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("0", {0}), ("0-3,8\n", {0, 1, 2, 3, 8}), ("0-7,^3,^5", {0, 1, 2, 4, 6, 7}), (" 1 , 2-2 ", {1, 2})],
)
def test_what_lists_mean(text: str, numbers: set[int]) -> None:
    assert parse_cpuset(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0x1", "16384", "0-99999999999", "^", "١"])  # noqa: RUF001
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_cpuset(text)


@given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_reads_back(numbers: frozenset[int]) -> None:
    assert parse_cpuset(format_cpuset(numbers)) == numbers
