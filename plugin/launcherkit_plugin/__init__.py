"""The device plugin. It depends on `launcherkit`, never the other way round."""

__version__ = "0.1.0"
