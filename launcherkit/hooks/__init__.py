"""Thin shells over the pipeline, one module each."""
