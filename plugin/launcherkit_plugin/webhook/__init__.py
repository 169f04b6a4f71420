"""A mutating admission webhook, for clusters without mutating admission policies."""
