"""Signatures: what a key signs it recognises, the same each time, and no other key's or bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="`./dev build` has it")

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tools.release.assemble import FILES_REFERENCE, seal
from tools.release.oci import Layer, Layout
from tools.release.signing import ANNOTATION, Key, UnusableKey, read_key, sign_all, signature_reference


def write(path: Path, private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, passphrase: bytes = b"") -> Path:
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    path.touch(mode=0o600)
    path.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return path


def has_signed(key: Key, content: bytes, signature: str) -> bool:
    """Whether a signature is one of these bytes, by the public key that is published."""
    public = serialization.load_pem_public_key(key.public())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(base64.b64decode(signature), content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()))


def test_a_signature_is_the_same_each_time_so_that_a_release_can_be_published_again(path: Path) -> None:
    assert read_key(path).sign(b"text") == read_key(path).sign(b"text")


def test_a_changed_byte_and_another_key_are_noticed(path: Path) -> None:
    key, other = read_key(path), Key(ec.generate_private_key(ec.SECP256R1()))
    signature = key.sign(b"text")
    assert has_signed(key, b"text", signature)
    assert not has_signed(key, b"test", signature)
    assert not has_signed(other, b"text", signature)
    assert not has_signed(key, b"text", signature[:-8] + "AAAAAAA=")


def test_a_key_with_a_passphrase_is_read_with_it(tmp_path: Path) -> None:
    path = write(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()), b"secret")
    (tmp_path / "passphrase").write_text("secret\n")
    assert read_key(path, tmp_path / "passphrase").sign(b"text")
    with pytest.raises(UnusableKey, match="is encrypted: give --passphrase-file"):
        read_key(path)
    (tmp_path / "passphrase").write_text("other\n")
    with pytest.raises(UnusableKey, match="its passphrase is another"):
        read_key(path, tmp_path / "passphrase")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_or_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(UnusableKey, match=f"chmod 600 {path}"):
        read_key(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    for private in (ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(UnusableKey, match="P-256"):
            read_key(write(tmp_path / "key.pem", private))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("no key", "no private key in PEM"), ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", "cosign")],
)
def test_what_is_no_key_is_refused_without_showing_any_of_it(path: Path, text: str, problem: str) -> None:
    path.write_text(f"{text}\ngeheim\n")
    with pytest.raises(UnusableKey, match=problem) as caught:
        read_key(path)
    assert "geheim" not in str(caught.value)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableKey, match=r"No such file.*key\.pem"):
        read_key(tmp_path / "key.pem")


def test_a_key_is_not_shown(path: Path) -> None:
    assert f"{read_key(path)!r}" == "Key(...)"


def test_the_signature_is_beside_what_it_signs_in_the_format_that_cosign_verifies(path: Path, tmp_path: Path) -> None:
    """https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md"""
    layout, key = Layout(tmp_path / "oci"), read_key(path)
    layout.create()
    for architecture in ("amd64", "arm64"):
        settings = Layer(json.dumps({"architecture": architecture, "os": "linux"}).encode(), "a/b")
        layout.add_artefact(f"it:1-{architecture}", settings, [])
    index = layout.merge("it:1", ["it:1-amd64", "it:1-arm64"])
    sign_all(layout, "registry.example/gpu", key)
    signed = [index, *layout.images(index)]
    assert layout.references().keys() == {"it:1", *(signature_reference("it:1", each["digest"]) for each in signed)}
    for each in signed:
        manifest = layout.document(layout.references()[f"it:{each['digest'].replace(':', '-')}.sig"])
        (layer,) = manifest["layers"]
        assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
        payload = layout.folder / "blobs/sha256" / layer["digest"].removeprefix("sha256:")
        assert json.loads(payload.read_bytes())["critical"] == {
            "type": "cosign container image signature",
            "identity": {"docker-reference": "registry.example/gpu/it"},
            "image": {"docker-manifest-digest": each["digest"]},
        }
        signature = layer["annotations"][ANNOTATION]
        assert base64.b64decode(signature, validate=True)
        assert has_signed(key, payload.read_bytes(), signature)
    before = (layout.folder / "index.json").read_bytes()
    sign_all(layout, "registry.example/gpu", key)
    assert (layout.folder / "index.json").read_bytes() == before


def test_a_release_that_is_signed_again_keeps_no_signature_of_another_key(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    layout = Layout(folder / "oci")
    layout.create()
    (folder / "SHA256SUMS").write_text("sums\n")
    other = Key(ec.generate_private_key(ec.SECP256R1()))
    seen = []
    for key in (other, None, read_key(path), read_key(path)):
        seal(folder, "registry.example", key)
        files = {each.name for each in folder.iterdir() if each.is_file()} - {"SHA256SUMS"}
        signed = [name for name in layout.references() if name != FILES_REFERENCE]
        assert len(signed) == (1 if key else 0)
        assert files == ({"SHA256SUMS.sig", "cosign.pub"} if key else set())
        seen.append((folder / "oci" / "index.json").read_bytes())
    assert seen[2] == seen[3]
    assert has_signed(read_key(path), b"sums\n", (folder / "SHA256SUMS.sig").read_text())
