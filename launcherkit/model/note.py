"""What the operator should know although nothing failed."""

from launcherkit.model.value import NamedTuple, documented


@documented(
    topic="A stable word to filter by: ``repeat``, ``left-alone``, ...",
    text="One line.",
)
class Note(NamedTuple):
    """``topic`` is a stable word to filter by (``repeat``, ``left-alone``, ...); ``text`` one line."""

    topic: str
    text: str

    def __str__(self) -> str:
        return self.text
