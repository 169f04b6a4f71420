"""The page of this node: what it has, who holds it, what is wrong with it; live, and read only."""
