"""What is reported to people and to monitoring: log, metrics, probes, Events, labels."""
