"""The device plugin. It depends on `launcherkit`, never the other way round, and has the same version."""

from launcherkit import __version__

__all__ = ["__version__"]
