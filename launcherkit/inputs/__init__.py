"""The inputs of a translation on a command line, and `translate` on them: what the command and golden cases share."""
