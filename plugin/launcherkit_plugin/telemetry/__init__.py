"""What people and monitoring are told: log, metrics, probes, Events, labels."""
