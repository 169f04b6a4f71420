"""The objects of a list, parsed one at a time while it arrives.

A parsed list takes up to 27 times the memory of its text. So neither is ever there as a whole: what arrives is cut at
the objects' braces, each object is parsed within limits, and the caller keeps what it needs of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

ITEM_BYTES = 3 << 19
"""The most bytes of an object in a list, and of a list without its objects; etcd accepts 1.5 MiB."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}"]', re.DOTALL)
"""A string or a bracket; a quotation mark alone begins a string whose end hasn't arrived."""
_BETWEEN = frozenset(b", \t\r\n")


def split_list(chunks: Iterable[bytes], receive: Callable[[bytes], object], item_bytes: int = ITEM_BYTES) -> bytes:
    """Cut a list's text into its objects.

    Args:
        chunks: the text of a list as Kubernetes writes it: an object with ``items``.
        receive: called with the text of each object in ``items``, in their order; it may not be JSON.
        item_bytes: the most bytes of an object, and of the list without its objects.

    Returns:
        The text of the list without objects in ``items``.

    Raises:
        ValueError: its brackets don't match, ``items`` has something else than objects, or one of them is too long.
    """
    splitter = _Splitter(receive, item_bytes)
    for chunk in chunks:
        splitter.feed(chunk)
    return splitter.rest()


class _Splitter:
    """Cuts what has arrived."""

    def __init__(self, receive: Callable[[bytes], object], item_bytes: int) -> None:
        self._receive = receive
        self._item_bytes = item_bytes
        self._head = bytearray()
        """What is outside ``items``."""
        self._pending = b""
        self._scanned = 0
        """How much of ``_pending`` needs no second look."""
        self._depth = 0
        self._key = b""
        """The last string of the outermost object."""
        self._in_items = False

    def feed(self, chunk: bytes) -> None:
        """Cut another piece of the text."""
        self._pending += chunk
        begin = 0
        for token in _TOKEN.finditer(self._pending, self._scanned):
            if token.group() == b'"':
                self._scanned = token.start()
                break
            begin = self._cut(token, begin)
            self._scanned = token.end()
        if not self._in_items:
            self._head += self._pending[begin : self._scanned]
            begin = self._scanned
        self._pending, self._scanned = self._pending[begin:], self._scanned - begin
        if max(len(self._pending), len(self._head)) > self._item_bytes:
            raise ValueError(f"an object of more than {self._item_bytes} bytes")

    def _cut(self, token: re.Match[bytes], begin: int) -> int:
        """Hand out what ends at a token; returns where the rest begins."""
        text = token.group()
        if text[:1] == b'"':
            if self._depth == 1:
                self._key = text
            elif self._in_items and self._depth == 2:
                raise ValueError("a string among its items")
        elif text in b"[{":
            self._depth += 1
            if self._depth == 2 and text == b"[" and self._key == b'"items"':
                self._in_items = True
                self._head += self._pending[begin : token.end()]
                return token.end()
            if self._in_items and self._depth == 3:
                self._check_between(begin, token.start())
                if text != b"{":
                    raise ValueError("a list among its items")
                return token.start()
        else:
            self._depth -= 1
            if self._in_items and self._depth == 2:
                self._receive(self._pending[begin : token.end()])
                return token.end()
            if self._in_items and self._depth == 1:
                self._check_between(begin, token.start())
                self._in_items = False
                return token.start()
        return begin

    def _check_between(self, begin: int, end: int) -> None:
        if not _BETWEEN.issuperset(self._pending[begin:end]):
            raise ValueError("something else than objects among its items")

    def rest(self) -> bytes:
        """What is outside ``items``, once all has arrived."""
        if self._depth or self._in_items:
            raise ValueError("it is cut off")
        return bytes(self._head) + self._pending
