"""The wire of KubeVirt's hooks: ``*.proto``, and what is generated from them by ``python -m tests.support.protos``."""
