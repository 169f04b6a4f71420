"""Signatures as cosign has them: ECDSA on the curve P-256 over SHA-256, in base64.

An image or another artefact is signed by a document that names its digest. The document and its signature are an
artefact of their own, which `cosign verify --key`, podman, CRI-O and skopeo look for under a tag that is made of the
digest. The same key gives the same signature of the same bytes (RFC 6979), so that a release can be published again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tools.release.oci import Descriptor, Layer, Layout

ANNOTATION = "dev.cosignproject.cosign/signature"
_PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
_SETTINGS = "application/vnd.oci.image.config.v1+json"


class UnusableKey(Exception):
    """The key can't sign; the text says why, and never has anything of the key."""


class Key:
    """A private key."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private

    def __repr__(self) -> str:
        return "Key(...)"

    def public(self) -> bytes:
        """The public key, as PEM: cosign.pub."""
        pem: bytes = self._private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem

    def sign(self, content: bytes) -> str:
        """The signature of bytes, in base64."""
        return base64.b64encode(self._private.sign(content, ec.ECDSA(hashes.SHA256(), True))).decode()


def read_key(path: Path, passphrase_file: Path | None = None) -> Key:
    """Read a private key in PEM.

    Raises:
        UnusableKey: it is no such key, encrypted with another passphrase, or others can read the file.
    """
    try:
        if mode := stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UnusableKey(f"{path} can be read or written by others (mode ...{mode:03o}): chmod 600 {path}")
        text = path.read_bytes()
        passphrase = passphrase_file.read_bytes().rstrip(b"\n") if passphrase_file else None
    except OSError as error:
        raise UnusableKey(str(error)) from None
    try:
        private = load_pem_private_key(text, passphrase)
    except TypeError:
        said = "is not encrypted, and a passphrase is given" if passphrase else "is encrypted: give --passphrase-file"
        raise UnusableKey(f"{path} {said}") from None
    except ValueError:
        remedy = (
            "; cosign's own format is not read: keep the key in PEM, as openssl makes it" if b"SIGSTORE" in text else ""
        )
        raise UnusableKey(f"{path} has no private key in PEM, or its passphrase is another{remedy}") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise UnusableKey(f"{path} has no ECDSA key on the curve P-256, the only kind that cosign signs with")
    return Key(private)


def signature_reference(reference: str, digest: str) -> str:
    """Where the signature of what has a digest is, beside it."""
    return f"{reference.partition(':')[0]}:{digest.replace(':', '-')}.sig"


def sign_all(layout: Layout, registry: str, key: Key) -> None:
    """Sign what is in a layout, and each image of an index: those who pull for one architecture check that one's."""
    for reference, descriptor in layout.references().items():
        if not reference.endswith(".sig"):
            for each in [descriptor, *layout.images(descriptor)]:
                _sign(layout, reference, each, registry, key)


def _sign(layout: Layout, reference: str, signed: Descriptor, registry: str, key: Key) -> None:
    repository = f"{registry}/{reference.partition(':')[0]}"
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": signed["digest"]},
        "type": "cosign container image signature",
    }
    payload = json.dumps({"critical": critical, "optional": None}, separators=(",", ":")).encode()
    settings = {
        "architecture": "",
        "os": "",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(payload).hexdigest()}"]},
    }
    layout.add_artefact(
        signature_reference(reference, signed["digest"]),
        Layer(json.dumps(settings).encode(), _SETTINGS),
        [Layer(payload, _PAYLOAD, {ANNOTATION: key.sign(payload)})],
    )
