"""Escapes text for XML, wherever it comes from (T3)."""

from __future__ import annotations

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/ ")
_MARKUP = "&<>\"'\t\n\r"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def escaped(text: str) -> str:
    """Escape text for the value of an attribute, in quotes of either kind, or for the content of an element.

    Markup, white space that a parser would change, and everything that is not ASCII become character references, so the
    result is valid in every encoding that a document may have (X5). Characters that XML excludes become U+FFFD.
    """
    return text if _PLAIN.issuperset(text) else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _MARKUP:
        return f"&#{ord(character)};"
    if " " <= character <= "~":
        return character
    return f"&#{ord(character if _is_xml(character) else _REPLACEMENT)};"


def _is_xml(character: str) -> bool:
    """XML 1.0's ``Char``: no control characters, no surrogates, not U+FFFE and U+FFFF."""
    return " " <= character <= "\ud7ff" or "\ue000" <= character <= "\ufffd" or character >= "\U00010000"
