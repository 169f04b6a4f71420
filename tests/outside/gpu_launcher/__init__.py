"""Uses every public name of launcherkit; it is checked, and never run."""
