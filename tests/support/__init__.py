"""What several tests build their inputs with."""
