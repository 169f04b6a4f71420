"""Where in the guest the devices go. Pure; it sees facts about the domain, not XML."""
