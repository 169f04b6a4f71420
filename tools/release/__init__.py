"""How the distributions are built, and what goes with them: bills of materials and provenance."""
