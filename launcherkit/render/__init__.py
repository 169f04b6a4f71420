"""What people read: a translation, or what is known of one that failed, in words. Pure."""
