"""A Kubernetes API by its kubeconfig, for what a run with a DRA driver reads and writes of it."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_SECONDS = 30


class ApiError(Exception):
    """The API can't be reached, or has said no; ``code`` is HTTP's, 0 where there is none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """An API server, by the current context of a kubeconfig: with a token, a client certificate, or nothing.

    Raises:
        ApiError: the file isn't one, or wants another program to log in.
    """

    def __init__(self, kubeconfig: Path) -> None:
        try:
            config = yaml.safe_load(kubeconfig.read_text())
            context = _named(config["contexts"], config["current-context"])["context"]
            cluster = _named(config["clusters"], context["cluster"])["cluster"]
            user = _named(config.get("users") or [], context.get("user", "")).get("user") or {}
            self.url = str(cluster["server"]).rstrip("/")
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise ApiError(f"{kubeconfig}: no kubeconfig with a current context: {error!r}") from None
        if {"exec", "auth-provider"} & user.keys():
            raise ApiError(f"{kubeconfig}: its user logs in by another program; make one with a token")
        token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else "")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.authority = _authority(cluster, kubeconfig.parent)
        """The certificate of its authority, in PEM; empty if the kubeconfig has none."""
        self._tls = _tls(cluster, user, kubeconfig.parent, self.authority) if self.url.startswith("https:") else None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What it answers.

        Raises:
            ApiError: see there.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers | ({} if body is None else {"Content-Type": "application/json"}),
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS, context=self._tls) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except urllib.error.HTTPError as refusal:
            with refusal:
                text = refusal.read().decode(errors="replace")
            raise ApiError(f"{method} {path}: {refusal.code} {_message(text)}", refusal.code) from None
        except (OSError, ValueError) as error:
            raise ApiError(f"{method} {self.url}{path}: {error}") from None


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((entry for entry in entries if entry["name"] == name), {})


def _authority(cluster: Mapping[str, Any], beside: Path) -> bytes:
    try:
        if data := cluster.get("certificate-authority-data"):
            return base64.b64decode(data)
        return (beside / cluster["certificate-authority"]).read_bytes() if cluster.get("certificate-authority") else b""
    except (OSError, ValueError) as error:
        raise ApiError(f"the kubeconfig's certificate-authority: {error}") from None


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], beside: Path, authority: bytes) -> ssl.SSLContext:
    """By the certificates of a kubeconfig, which are in it, or in files that it names, relative to it."""
    with tempfile.TemporaryDirectory() as folder:

        def file_of(key: str) -> str | None:
            if data := user.get(f"{key}-data"):
                Path(folder, key).write_bytes(base64.b64decode(data))
                return f"{folder}/{key}"
            return str(beside / user[key]) if user.get(key) else None

        # Comments beside certificates may have any letters.
        context = ssl.create_default_context(cadata=authority.decode("ascii", "ignore") or None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate := file_of("client-certificate"):
            context.load_cert_chain(certificate, file_of("client-key"))
        return context
