"""What developers run: `./dev` and what it does, releases, and the pins of everything. Nothing here is shipped."""
