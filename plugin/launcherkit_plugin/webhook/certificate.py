"""The webhook's certificate, its key, and the authority of those whom it answers."""

from __future__ import annotations

import ssl
from pathlib import Path

from launcherkit_plugin.model.errors import BadCertificate
from launcherkit_plugin.telemetry.reporter import Log


class Certificate:
    """The TLS context of a server by its files, which are read again when they have changed.

    Args:
        certificate: PEM, the server's own certificate first.
        key: PEM.
        client_ca: PEM. Clients with a certificate that no authority in it has signed are turned away in the handshake.
            One without a certificate isn't: the kubelet's probes have none. None: no client is asked for one.
        log: called if changed files can't be used.

    Raises:
        BadCertificate: they can't be read, or don't belong together.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None, log: Log) -> None:
        self._certificate, self._key, self._log = certificate, key, log
        self.client_ca = client_ca
        self._seen, self._context = self._load()
        self._failed: list[int] | None = None

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. A mounted Secret may be replaced while the server runs."""
        state = self._state()
        if state not in (self._seen, self._failed):
            try:
                self._seen, self._context = self._load()
            except BadCertificate as problem:
                self._failed = state  # as it is now it isn't tried again: every pod may connect, as often as it likes
                self._log("error", f"the certificate has changed and can't be used; the old one is kept: {problem}")
        return self._context

    def _state(self) -> list[int]:
        """When each file was changed last; -1 for one that isn't there."""
        return [_changed(path) for path in (self._certificate, self._key, self.client_ca) if path]

    def _load(self) -> tuple[list[int], ssl.SSLContext]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.num_tickets = 0  # the API server doesn't resume sessions
        files, remedy = (
            f"{self._certificate}, {self._key}",
            "Give a certificate and the key that belongs to it, as PEM.",
        )
        try:
            state = self._state()
            context.load_cert_chain(self._certificate, self._key)
            if self.client_ca:
                files, remedy = str(self.client_ca), "Give certificates of authorities, as PEM."
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except OSError as problem:  # includes ssl.SSLError
            raise BadCertificate(
                f"{files}: {problem.strerror or problem}", remedy, file=files.partition(",")[0]
            ) from problem
        return state, context


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1
