"""The cluster is that of all tests that want one."""

from tests.support.cluster import cluster

__all__ = ["cluster"]
