"""What people configure: YAML files and KubeVirt's own settings, made into the values of `model.config`."""
