"""Answers for other nodes: what the daemon there would advertise and allocate (`launcherkit rehearse`)."""
