"""Bytes of a fuzzer as decisions, so that a target that needs structured input gets it from any bytes at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Takes decisions from bytes, first to last; when they are used up every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        """A number from 0 to ``below`` - 1, from as many bytes as that takes."""
        size = max(1, ((below - 1).bit_length() + 7) // 8)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "big") % below

    def flag(self) -> bool:
        return self.number(2) == 1

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.number(len(options))]

    def some_of(self, options: Sequence[T], most: int) -> list[T]:
        """Up to ``most`` of them, repeats and all."""
        return [self.one_of(options) for _ in range(self.number(most + 1))] if options else []

    def raw(self, most: int) -> bytes:
        """Up to ``most`` bytes as they are."""
        size = self.number(most + 1)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def text(self, most: int) -> str:
        """Up to ``most`` characters, of the first 256 and some that stand for nothing alone."""
        return self.raw(most).decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        taken = self._data[self._at :]
        self._at = len(self._data)
        return taken
