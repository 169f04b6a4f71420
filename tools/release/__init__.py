"""How the two distributions are built, and what goes with them: bills of materials and provenance."""
