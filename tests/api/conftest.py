"""The API server is that of all tests of the tier."""

from tests.support.cluster import api

__all__ = ["api"]
