"""The daemon: its parts put together, and its one loop."""
