"""What all programs of launcherkit share: the process edge, commands, options from variables."""
