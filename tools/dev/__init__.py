"""What `./dev` does. Standard library alone, for it runs before there is an environment."""
