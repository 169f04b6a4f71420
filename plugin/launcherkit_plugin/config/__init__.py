"""Reads the configuration: YAML files and KubeVirt's own settings become the values of `model.config`."""
