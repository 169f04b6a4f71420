"""What the operator should know even though nothing failed."""

from typing import NamedTuple


class Note(NamedTuple):
    """A remark for the operator.

    Attributes:
        topic: A stable word to filter by: ``repeat``, ``left-alone``, ...
        text: One line.
    """

    topic: str
    text: str

    def __str__(self) -> str:
        return self.text
