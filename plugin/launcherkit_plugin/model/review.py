"""What the cluster says of a token that somebody shows to the page of the node."""

from launcherkit.model.value import NamedTuple


class Review(NamedTuple):
    """Whether it gets the page."""

    allowed: bool
    why: str
    """In words; empty for one that is allowed."""
