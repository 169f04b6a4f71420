"""What a configuration has been read as."""

from launcherkit.model.note import Note
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.config import Config


class Reading(NamedTuple):
    """A configuration and what belongs with it."""

    config: Config
    """With the rules of ``auto`` behind the others."""
    notes: tuple[Note, ...] = ()
    files: tuple[str, ...] = ()
    """What was read: when one of them changes it is time to read again."""
    cluster: bool = False
    """It asks for the cluster's KubeVirt settings: when these change it is time too."""
