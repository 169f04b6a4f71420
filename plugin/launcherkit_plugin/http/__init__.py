"""HTTP for the servers of this program, by h11."""
