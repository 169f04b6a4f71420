"""The page of this node: its devices, who holds them, and what is wrong with them; live and read-only."""
