"""Where the devices go in the guest. Pure; it sees facts about the domain, not XML."""
