"""Certificates for tests, by the program openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def own_certificate(folder: Path, name: str, *options: str) -> Path:
    """A certificate that is its own authority, with its key, in ``NAME.pem``; the certificate alone is in ``NAME.crt``.

    Args:
        options: further ones of ``openssl req``.
    """
    made = folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", f"/CN={name}", "-keyout", str(made), "-out", str(folder / f"{name}.crt"), *options]
    subprocess.run(command, check=True, capture_output=True)
    with made.open("a") as both:
        both.write((folder / f"{name}.crt").read_text())
    return made
