"""The inputs of a translation on a command line, and `translate` on them, for the command and golden cases."""
