"""What every program of launcherkit has: the process edge, commands of commands, options from variables."""
