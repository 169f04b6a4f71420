"""The command `launcherkit-plugin`."""
