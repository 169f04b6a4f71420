"""Answers for nodes that are elsewhere: what a daemon there would advertise and give away (`launcherkit rehearse`)."""
