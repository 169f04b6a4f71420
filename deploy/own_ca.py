#!/usr/bin/env python3
"""Prints the webhook's certificate, in a Secret, and its registration, for ``kubectl apply -f -``.

The certificate is by an authority that openssl makes here and whose key is thrown away: nothing else can be certified
by it. Both last ten years; run this again for others.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent
DAYS = 3650
NAME = "launcherkit-webhook"


class NoCertificate(Exception):
    """openssl failed; the text is what it said."""


def manifests(registration: str) -> list[dict[str, Any]]:
    """The Secret and the registration.

    Args:
        registration: ``webhook-own-ca.yaml``, which has no authority yet.

    Raises:
        NoCertificate: there is no openssl from 3.0 on, or it failed.
    """
    hooks: dict[str, Any] = yaml.safe_load(registration)
    (namespace,) = {hook["clientConfig"]["service"]["namespace"] for hook in hooks["webhooks"]}
    authority, certificate, key = certified(f"{NAME}.{namespace}.svc")
    for hook in hooks["webhooks"]:
        hook["clientConfig"]["caBundle"] = _encoded(authority)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": f"{NAME}-tls", "namespace": namespace},
        "data": {"tls.crt": _encoded(certificate), "tls.key": _encoded(key)},
    }
    return [secret, hooks]


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def certified(host: str) -> tuple[bytes, bytes, bytes]:
    """An authority's certificate, one by it for a host, and the key of the latter; all PEM.

    Raises:
        NoCertificate: as `manifests`.
    """
    with tempfile.TemporaryDirectory(prefix="lk-ca-") as folder:  # for this user alone
        at = Path(folder)
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256"]
        made += ["-days", str(DAYS)]
        authority = ["-subj", f"/CN={NAME} authority", "-addext", "keyUsage=critical,keyCertSign"]
        _run([*made, *authority, "-keyout", f"{at}/ca.key", "-out", f"{at}/ca.crt"])
        leaf = ["-subj", f"/CN={NAME}", "-CA", f"{at}/ca.crt", "-CAkey", f"{at}/ca.key"]
        for extension in (f"subjectAltName=DNS:{host}", "basicConstraints=CA:false", "extendedKeyUsage=serverAuth"):
            leaf += ["-addext", extension]
        _run([*made, *leaf, "-keyout", f"{at}/tls.key", "-out", f"{at}/tls.crt"])
        authority_made, certificate, key = ((at / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key"))
    return authority_made, certificate, key


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # written above
    except FileNotFoundError:
        raise NoCertificate("openssl isn't there: apt-get install openssl") from None
    except subprocess.CalledProcessError as failure:
        raise NoCertificate(f"openssl, which has to be 3.0 or later: {failure.stderr.strip()}") from failure


def main() -> None:
    """Print both, as YAML."""
    try:
        made = manifests((DEPLOY / "webhook-own-ca.yaml").read_text())
    except NoCertificate as problem:
        sys.exit(f"deploy/own_ca.py: {problem}")
    sys.stdout.write(yaml.safe_dump_all(made, sort_keys=False))


if __name__ == "__main__":
    main()
