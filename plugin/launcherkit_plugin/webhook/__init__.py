"""A mutating admission webhook, for clusters that have no admission policies in CEL."""
