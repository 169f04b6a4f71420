"""The device plugin. It depends on `launcherkit`, never the other way round."""
