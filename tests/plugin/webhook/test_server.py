"""The webhook as a process, with a certificate that `deploy/own_ca.py` has made."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.own_ca import certified
from deploy.render import injections
from tests.support import forked
from tests.support.certificates import own_certificate
from tests.support.json_patch import with_additions
from tests.support.launcher_pods import LABEL, VALUES, launcher_pod
from tests.support.provoked import provoked
from tests.support.waiting import until

YES = launcher_pod(**{LABEL: "true"})
PATH = "/launcherkit-sidecar"
HERE = "127.0.0.1"
PARAMETERS = {"image": "registry.example/a:1", "resources": "nvidia.com/"}


class Webhook:
    """Its folders, and the process once it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("injections", "parameters", "tls"):
            (folder / name).mkdir()
        for name, text in injections(VALUES).items():
            (folder / "injections" / f"{name}.yaml").write_text(text)
        self.give(PARAMETERS)
        self.certify()
        self.port = 0
        self.options = ["--https-port=0"]

    def give(self, parameters: Mapping[str, str], name: str = PATH[1:]) -> None:
        (self.folder / "parameters" / name).mkdir(exist_ok=True)
        for key, value in parameters.items():
            (self.folder / "parameters" / name / key).write_text(value)

    def certify(self) -> None:
        self.authority, certificate, key = certified("localhost")
        self.trusting = ssl.create_default_context(cadata=self.authority.decode())
        for name, content in (("tls.key", key), ("tls.crt", certificate)):
            (self.folder / "tls" / "new").write_bytes(content)
            os.replace(self.folder / "tls" / "new", self.folder / "tls" / name)

    def arguments(self) -> list[str]:
        named = {
            "--injections": "injections",
            "--parameters": "parameters",
            "--certificate": "tls/tls.crt",
            "--key": "tls/tls.key",
        }
        options = [f"{name}={self.folder / path}" for name, path in named.items()]
        return [forked.PLUGIN, "webhook", *options, *self.options]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        with forked.Process(self.arguments(), stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                line = process.stderr.readline()
                self.port = int(line.rsplit(" ", 1)[1])
                yield process
            finally:
                process.terminate()

    def connected(self) -> http.client.HTTPSConnection:
        """A connection to the certificate's name, which not every machine resolves."""
        connection = http.client.HTTPSConnection("localhost", self.port, context=self.trusting, timeout=60)
        here = partial(socket.create_connection, (HERE, self.port))
        connection._create_connection = lambda _, *rest: here(*rest)  # type: ignore[attr-defined]  # there is no other way
        return connection

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = self.connected()
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def reviewed(self, pod: dict[str, Any]) -> dict[str, Any]:
        status, body = self.ask("POST", PATH, review(pod))
        assert status == 200, body
        reported: dict[str, Any] = json.loads(body)["response"]
        return reported


def review(pod: object, **request: object) -> bytes:
    asked = {"uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "object": pod}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked | request}
    ).encode()


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    it = Webhook(tmp_path)
    with it.running():
        yield it


def test_a_review_is_answered_with_a_patch_or_left(webhook: Webhook) -> None:
    reported = webhook.reviewed(YES)
    assert (reported["uid"], reported["allowed"], reported["patchType"]) == ("u-1", True, "JSONPatch")
    changed = with_additions(YES, json.loads(base64.b64decode(reported["patch"])))
    assert [each["image"] for each in changed["spec"]["initContainers"]] == [PARAMETERS["image"]]
    assert webhook.reviewed(changed) == {"uid": "u-1", "allowed": True}
    # A change of the ConfigMap acts at once.
    webhook.give({"image": "registry.example/a:2"})
    assert b"registry.example/a:2" in base64.b64decode(webhook.reviewed(YES)["patch"])
    (webhook.folder / "parameters" / PATH[1:] / "image").unlink()
    reported = webhook.reviewed(YES)
    assert not reported["allowed"]
    assert "ConfigMap launcherkit-sidecar has no key image" in reported["status"]["message"]
    (webhook.folder / "parameters" / PATH[1:] / "resources").unlink()
    reported = webhook.reviewed(YES)
    assert reported["allowed"]
    assert "its ConfigMap is missing" in reported["warnings"][0]


BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "another version": review(YES).replace(b"k8s.io/v1", b"k8s.io/v2"),
    "an update": review(YES, operation="UPDATE"),
    "no pod": review(YES, kind={"kind": "Service"}),
    "a pod without containers' names": review({"spec": {"volumes": [1], "containers": [1]}, "metadata": {"labels": 1}}),
    "nested without end": b"[" * 100_000,
}


def test_what_is_no_review_of_a_pod_is_refused_and_the_server_goes_on(webhook: Webhook) -> None:
    for name, body in BAD.items():
        assert webhook.ask("POST", PATH, body)[0] == 400, name
    assert webhook.ask("POST", "/other", review(YES))[0] == 404
    assert webhook.ask("GET", "/other")[0] == 404
    assert webhook.ask("PUT", PATH)[0] == 501
    assert webhook.ask("GET", "/healthz") == (200, b"ok\n")
    connection = webhook.connected()
    connection.putrequest("POST", PATH)
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["too long", "in chunks"])
def test_who_is_refused_while_he_sends_still_gets_the_answer(webhook: Webhook, chunked: bool) -> None:
    connection = webhook.connected()
    body = [b"x" * (1 << 20)] * 9
    connection.request("POST", PATH, iter(body), {} if chunked else {"Content-Length": str(9 << 20)})
    response = connection.getresponse()
    assert (response.status, response.read()) == (413, b"a review has a length, of at most 4194304 bytes\n")
    connection.close()


def test_chunks_are_refused_even_with_a_length(webhook: Webhook) -> None:
    """By RFC 9112 the length counts for nothing then."""
    connection = webhook.connected()
    connection.request("POST", PATH, iter([review(YES)]), {"Content-Length": "10", "Transfer-Encoding": "chunked"})
    response = connection.getresponse()
    assert (response.status, response.read()) == (413, b"a review has a length, of at most 4194304 bytes\n")
    connection.close()


@pytest.mark.parametrize(("path", "status"), [("/other", 404), (PATH, 413)])
def test_who_is_refused_is_told_so_before_he_sends_the_rest(webhook: Webhook, path: str, status: int) -> None:
    connection = webhook.connected()
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str((4 << 20) + 1))
    connection.endheaders()
    assert connection.getresponse().status == status
    connection.close()


def test_a_client_may_ask_whether_its_review_is_wanted(webhook: Webhook) -> None:
    body = review(YES)
    headers = f"Host: a\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n"
    plain = socket.create_connection((HERE, webhook.port))
    with webhook.trusting.wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall(f"POST {PATH} HTTP/1.1\r\n{headers}\r\n".encode())
        assert secure.recv(4096).startswith(b"HTTP/1.1 100 ")
        secure.sendall(body)
        with secure.makefile("rb") as answered:
            assert answered.readline().startswith(b"HTTP/1.1 200 ")


def test_of_a_head_request_only_the_headers_are_answered(webhook: Webhook) -> None:
    assert webhook.ask("HEAD", PATH) == (501, b"")


def test_with_an_authority_for_clients_only_its_clients_get_reviews_and_everyone_a_probe(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    api_server, stranger = (own_certificate(tmp_path, name) for name in ("kube-apiserver", "stranger"))
    it.options.append(f"--client-ca={tmp_path}/kube-apiserver.crt")
    with it.running():
        status, said = it.ask("POST", PATH, review(YES))
        assert (status, b"--client-ca" in said) == (403, True)
        assert it.ask("GET", "/healthz") == (200, b"ok\n")
        it.trusting.load_cert_chain(api_server)
        assert it.reviewed(YES)["allowed"]
        it.trusting.load_cert_chain(stranger)
        with pytest.raises(OSError, match="unknown ca"):
            it.ask("GET", "/healthz")
        # A replaced authority is used like a replaced certificate.
        os.replace(tmp_path / "stranger.crt", tmp_path / "kube-apiserver.crt")
        assert it.reviewed(YES)["allowed"]


def test_it_does_not_start_with_an_authority_that_is_none(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    it.options.append(f"--client-ca={tmp_path}/tls/tls.key")
    code, (reported,) = refused(it, it.arguments())
    assert (code, "error[LK882]: /etc/launcherkit-webhook/tls/tls.key: " in reported) == (78, True)


def test_other_methods_are_refused_in_words(webhook: Webhook) -> None:
    assert webhook.ask("PUT", PATH, b"x" * (1 << 20)) == (501, b"Unsupported method ('PUT')\n")


def test_who_says_nothing_or_no_tls_keeps_nobody_out(webhook: Webhook) -> None:
    silent = [socket.create_connection((HERE, webhook.port)) for _ in range(20)]
    silent[0].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    try:
        assert webhook.reviewed(YES)["allowed"]
    finally:
        for each in silent:
            each.close()


def test_several_reviews_go_over_one_connection(webhook: Webhook) -> None:
    connection = webhook.connected()
    for _ in range(3):
        connection.request("POST", PATH, review(YES))
        assert connection.getresponse().read()
    connection.close()


def test_a_certificate_that_is_replaced_is_used_and_a_bad_one_is_not(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    with it.running() as process:
        it.certify()  # by another authority
        assert it.reviewed(YES)["allowed"]
        (tmp_path / "tls" / "tls.crt").write_text("no certificate")
        assert it.reviewed(YES)["allowed"]
        assert process.stderr is not None
        assert "the certificate has changed and can't be used; the old one is kept" in process.stderr.readline()
        assert it.reviewed(YES)["allowed"]
        it.certify()
        assert it.reviewed(YES)["allowed"]
        process.terminate()
        assert "can't be used" not in process.stderr.read()


def test_it_ends_at_sigterm(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    with it.running() as process:
        process.terminate()
        until(lambda: process.poll() is not None, "it end")
        assert process.returncode == 0


def refused(webhook: Webhook, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """The exit code, and what is told as in a container."""
    done = forked.run(arguments, capture_output=True, text=True)
    assert done.stdout == ""
    lines = done.stderr.replace(str(webhook.folder), "/etc/launcherkit-webhook").splitlines()
    return done.returncode, [line for line in lines if line.startswith("error[")]


def shown(code: str) -> list[str]:
    return [line.replace(code, f"error[{code}]", 1) for line in provoked("webhook", code)]


def test_it_does_not_start_with_an_injection_that_is_wrong(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    (tmp_path / "injections" / "one.yaml").write_text("name: one\nwhen: {}\nwhne: {}\nadd: {}\n")
    assert refused(it, it.arguments()) == (78, shown("LK881"))


def test_it_does_not_start_without_a_certificate_or_with_another_ones_key(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    key = tmp_path / "tls" / "tls.key"
    key.write_bytes(certified("localhost")[2])
    code, (reported,) = refused(it, it.arguments())
    assert (code, "mismatch" in reported.lower()) == (78, True)
    key.unlink()
    assert refused(it, it.arguments()) == (78, shown("LK882"))


def test_a_port_that_it_may_not_have_is_reported(tmp_path: Path) -> None:
    it = Webhook(tmp_path)
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        code, (reported,) = refused(it, [*it.arguments()[:-1], f"--https-port={port}"])
    # Root may have every port, so who asks for one below 1024 is told the same in other words.
    assert (code, [reported.replace(str(port), "443").replace("Address already in use", "Permission denied")]) == (
        69,
        shown("LK883"),
    )
