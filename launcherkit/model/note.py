"""What the operator should know even though nothing failed."""

from launcherkit.model.value import NamedTuple, documented


@documented(
    topic="A stable word to filter by: ``repeat``, ``left-alone``, ...",
    text="One line.",
)
class Note(NamedTuple):
    """A remark for the operator."""

    topic: str
    text: str

    def __str__(self) -> str:
        return self.text
