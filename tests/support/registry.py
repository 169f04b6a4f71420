"""Debian's docker-registry, on an address of its own, and a small index of packages: what a release is published to."""

from __future__ import annotations

import atexit
import email
import hashlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp

import yaml

from tests.tiers import find_program


@cache
def registry_program() -> str:
    """The program. Its package isn't installed where it isn't: it would start a service that everybody can reach."""
    if installed := find_program("docker-registry"):
        return installed
    folder = Path(mkdtemp(prefix="lk-registry-"))
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["apt-get", "--quiet", "download", "docker-registry"], cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    return str(folder / "usr/bin/docker-registry")


@contextmanager
def registry(folder: Path, users: Path | None = None) -> Iterator[str]:
    """An empty registry without TLS, for users of a file of htpasswd's, or everybody; gives its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
        **({"auth": {"htpasswd": {"realm": "test", "path": str(users)}}} if users else {}),
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "registry.log").open("w") as log:
        program = [registry_program(), "serve", str(folder / "registry.yaml")]
        process = subprocess.Popen(program, stdout=log, stderr=log)
    try:
        while not _answers(address):
            assert process.poll() is None, (folder / "registry.log").read_text()
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder / "registry", ignore_errors=True)


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


@contextmanager
def package_index(folder: Path) -> Iterator[str]:
    """An index that takes what twine uploads, once, and gives it to pip; its address, below which ``simple`` is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Index,), {"folder": folder}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Index(BaseHTTPRequestHandler):
    folder: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = {
            str(part.get_param("name", header="content-disposition")): part
            for part in email.message_from_bytes(head + body).walk()
            if not part.is_multipart()
        }
        name, content = form["content"].get_filename() or "", form["content"].get_payload(decode=True)
        assert isinstance(content, bytes)
        if (self.folder / name).exists():
            self.send_error(409, "there already")
            return
        (self.folder / name).write_bytes(content)
        self._answer(b"")

    def do_GET(self) -> None:
        where = self.path.strip("/").split("/")
        if where[0] == "files":
            self._answer((self.folder / where[1]).read_bytes())
            return
        files = [path for path in sorted(self.folder.iterdir()) if self._project(path) == where[1]]
        if not files:
            self.send_error(404)
            return
        links = (
            f'<a href="/files/{each.name}#sha256={hashlib.sha256(each.read_bytes()).hexdigest()}">{each.name}</a>'
            for each in files
        )
        self._answer("".join(links).encode())

    def _project(self, path: Path) -> str:
        return path.name.partition("-0")[0].replace("_", "-")

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass
