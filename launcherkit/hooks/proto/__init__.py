"""Messages of KubeVirt's hooks: ``*.proto``, and modules generated from them by ``python -m tests.support.protos``."""
