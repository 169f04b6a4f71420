"""Reports to people and monitoring: log, metrics, probes, Events, node labels."""
