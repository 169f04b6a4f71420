"""A stand-in for a Kubernetes API server, as strict as the real one: lists, watches, Events, slices, claims over HTTP.

It refuses who has no token, paths and verbs that the manifests give no right to, fields that it can't select by, a
watch from a version that it has forgotten, and Events that the real one would not store; and changes of a slice of an
older version.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

from launcherkit_plugin.cluster.requests import ACCESSREVIEWS_PATH, TOKENREVIEWS_PATH
from tests.support.certificates import own_certificate

REVIEWS = (TOKENREVIEWS_PATH, ACCESSREVIEWS_PATH)
TOKEN = "secret-token"
KUBEVIRTS, PODS, NODES = "/apis/kubevirt.io/v1/kubevirts", "/api/v1/pods", "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/vms/resourceclaims"
CONFIGMAPS = "/api/v1/namespaces/launcherkit/configmaps"
SELECTABLE = {
    CONFIGMAPS: set[str](),
    PODS: {"spec.nodeName"},
    NODES: {"metadata.name"},
    KUBEVIRTS: set[str](),
    SLICES: {"spec.nodeName", "spec.driver"},
    CLAIMS: set[str](),
}


class Change(NamedTuple):
    version: int
    kind: str
    path: str
    item: dict[str, Any]


class ApiServer:
    """What is stored, and what was asked. Objects get a UID and a version when they are put."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.version = 100
        self.oldest = 0
        self.objects: dict[str, dict[str, dict[str, Any]]] = {path: {} for path in SELECTABLE}
        self.changes: list[Change] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.absent: set[str] = set()
        """Paths of kinds that the cluster doesn't have."""
        self.away = False
        """Whether it fails whatever it is asked, as one does that has lost its etcd."""
        self.refused: list[str] = []
        """The paths of requests that came while it was away."""
        self.writes: list[str] = []
        """What slices and claims were changed by: ``POST``, ``PUT``, ``DELETE``, ``PATCH``, in their order."""
        self.tokens: dict[str, dict[str, Any]] | None = {}
        """What is said of a token: its audiences and its user. None: nobody may ask."""
        self.permitted: set[tuple[str, str, str]] = set()
        """User, path and verb of what is no resource."""
        self.accounts: set[tuple[str, str]] = set()
        """The service accounts that there are, by namespace and name; with a token of theirs one may do all."""
        self.watches = 0
        self.lists = 0
        self.ending = False

    def put(self, path: str, item: dict[str, Any]) -> None:
        """Make an object or change it; those of one name and namespace are the same."""
        with self.lock:
            metadata = item["metadata"]
            uid = metadata.setdefault("uid", f"uid-{metadata.get('namespace', '')}-{metadata['name']}")
            self._changed("MODIFIED" if uid in self.objects[path] else "ADDED", path, item)
            self.objects[path][uid] = item

    def remove(self, path: str, name: str) -> None:
        with self.lock:
            (uid,) = [uid for uid, item in self.objects[path].items() if item["metadata"]["name"] == name]
            self._changed("DELETED", path, self.objects[path].pop(uid))

    def _changed(self, kind: str, path: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(self.version, kind, path, json.loads(json.dumps(item))))
        self.lock.notify_all()

    def forget(self) -> None:
        """Drop the past, as etcd's compaction does, and end the watches: what they know is too old then."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.changes.clear()
            self.lock.notify_all()

    def bookmark(self) -> None:
        """Tell the watches how far they have come."""
        with self.lock:
            for path in self.objects:
                self.version += 1
                self.changes.append(
                    Change(self.version, "BOOKMARK", path, {"metadata": {"resourceVersion": str(self.version)}})
                )
            self.lock.notify_all()

    def wait_for(self, what: str, condition: Any) -> None:
        """Wait until something holds that requests bring about."""
        with self.lock:
            assert self.lock.wait_for(condition, timeout=60), what

    @contextmanager
    def running(self, folder: Path, *, tls: bool = False) -> Iterator[Path]:
        """Serve; gives a kubeconfig file."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"api": self}))
        address, authority = f"127.0.0.1:{server.server_address[1]}", None
        if tls:
            own = own_certificate(folder, "api", "-addext", "subjectAltName=IP:127.0.0.1")
            authority = own.with_suffix(".crt")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(own)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        # How often it looks whether it should end, in seconds: whoever ends it waits for that.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            path = folder / "kubeconfig"
            path.write_text(yaml.safe_dump(kubeconfig_of(f"{'https' if tls else 'http'}://{address}", authority)))
            yield path
        finally:
            with self.lock:
                self.ending = True
                self.lock.notify_all()
            server.shutdown()
            server.server_close()
            thread.join()


def kubeconfig_of(url: str, authority: Path | None = None) -> dict[str, Any]:
    """A kubeconfig file with this server's token."""
    trusted = {} if authority is None else {"certificate-authority": str(authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": url, **trusted}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def do_PATCH(self) -> None:
        self._answered(self._patch)

    def do_PUT(self) -> None:
        self._answered(self._put)

    def do_DELETE(self) -> None:
        self._answered(self._delete)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that it overrides
        """Requests are no news."""

    def _answered(self, handle: Any) -> None:
        try:
            scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
            if (scheme.lower(), token) != ("bearer", TOKEN):  # kubernetes' client writes it small in a pod
                raise _Refused(401, "Unauthorized")
            if self.api.away:
                with self.api.lock:
                    self.api.refused.append(urlsplit(self.path).path)
                    self.api.lock.notify_all()
                raise _Refused(500, "etcdserver: no leader")
            handle()
        except _Refused as refused:
            self._send(refused.code, {"kind": "Status", "code": refused.code, "message": str(refused)})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, code: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _get(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        kind, _, name = url.path.rpartition("/")
        # Where there are service accounts, who administers the server asks, too.
        if kind in (CLAIMS, CONFIGMAPS) or (kind == NODES and self.api.accounts):
            with self.api.lock:
                self._send(200, self._named(kind, name))
            return
        if url.path not in self.api.objects:
            raise _Refused(403, f"may not list {url.path}")
        if url.path in self.api.absent:
            raise _Refused(404, "the server could not find the requested resource")
        known = {"fieldSelector", "watch", "resourceVersion", "allowWatchBookmarks", "timeoutSeconds"}
        known |= {"labelSelector"} if url.path in (CONFIGMAPS, PODS) else set()
        if unknown := set(query) - known:
            raise _Refused(400, f"unknown parameters {unknown}")
        selected = _selected(url.path, query.get("fieldSelector", ""), query.get("labelSelector", ""))
        if query.get("watch") == "true":
            self._watch(url.path, int(query["resourceVersion"]), selected)
            return
        with self.api.lock:
            self.api.lists += 1
            items = [item for item in self.api.objects[url.path].values() if selected(item)]
            body = {"kind": "List", "metadata": {"resourceVersion": str(self.api.version)}, "items": items}
        self._send(200, body)

    def _watch(self, path: str, version: int, selected: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.api.lock:
            self.api.watches += 1
            self.api.lock.notify_all()
        while True:
            with self.api.lock:
                while not self.api.ending and self.api.version <= version:
                    self.api.lock.wait()
                if self.api.ending:
                    break
                if version < self.api.oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    self._chunk({"type": "ERROR", "object": gone})
                    break
                found = [change for change in self.api.changes if change.version > version and change.path == path]
                version = self.api.version
            for change in found:
                if change.kind == "BOOKMARK" or selected(change.item):
                    self._chunk({"type": change.kind, "object": change.item})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Mapping[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        for part in (data[:7], data[7:]):  # an event may come in pieces
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.flush()

    def _body(self, kinds: set[str]) -> dict[str, Any]:
        if self.headers.get("Content-Type") not in kinds:
            raise _Refused(415, f"the body is {self.headers.get('Content-Type')}")
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _post(self) -> None:
        body = self._body({"application/json"})
        if self.path == SLICES:
            self._create_slice(body)
            return
        if self.path == CLAIMS:
            self._create_claim(body)
            return
        if self.path in REVIEWS and self.api.tokens is not None:
            self._send(201, {**body, "status": self._review(body["spec"])})
            return
        if self.path.endswith("/token"):
            self._send(201, {**body, "status": {"token": self._token(body["spec"])}})
            return
        if self.path != EVENTS:
            raise _Refused(403, f"may not create at {self.path}")
        name = body["metadata"]["name"]
        required = {"type", "reason", "message", "involvedObject", "firstTimestamp", "lastTimestamp", "count"}
        if missing := required - set(body):
            raise _Refused(422, f"no {missing}")
        if body["metadata"]["namespace"] != "default" or body["involvedObject"].get("namespace"):
            raise _Refused(422, "involvedObject.namespace: does not match event.namespace")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name) or body["type"] not in {"Normal", "Warning"}:
            raise _Refused(422, "metadata.name or type: invalid")
        if any(
            not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", body[each])
            for each in ("firstTimestamp", "lastTimestamp")
        ):
            raise _Refused(400, "no time")
        with self.api.lock:
            if name in self.api.events:
                raise _Refused(409, f"events {name!r} already exists")
            self.api.events[name] = body
            self.api.lock.notify_all()
        self._send(201, body)

    def _token(self, spec: dict[str, Any]) -> str:
        """TokenRequest: of a service account that there is, bound to a Node that there is."""
        *_, namespace, _, name, _ = self.path.split("/")
        if (namespace, name) not in self.api.accounts:
            raise _Refused(404, f'serviceaccounts "{name}" not found')
        bound = spec["boundObjectRef"]
        if (bound["kind"], bound["uid"]) != ("Node", self._named(NODES, bound["name"])["metadata"]["uid"]):
            raise _Refused(409, f"cannot bind token for serviceaccount {namespace}/{name} to {bound}")
        if not 600 <= spec["expirationSeconds"] <= 1 << 32:
            raise _Refused(422, "spec.expirationSeconds: may not be less than 10 minutes")
        return TOKEN

    def _named(self, path: str, name: str) -> dict[str, Any]:
        for item in self.api.objects[path].values():
            if item["metadata"]["name"] == name:
                return item
        raise _Refused(404, f"{path.rpartition('/')[2]} {name!r} not found")

    def _review(self, spec: dict[str, Any]) -> dict[str, Any]:
        if self.path == ACCESSREVIEWS_PATH:
            wanted = spec["nonResourceAttributes"]
            return {"allowed": (spec["user"], wanted["path"], wanted["verb"]) in self.api.permitted}
        found = (self.api.tokens or {}).get(spec["token"])
        audiences = [each for each in spec["audiences"] if found and each in found["audiences"]]
        if not found or not audiences:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": found["user"], "audiences": audiences}

    def _create_slice(self, body: dict[str, Any]) -> None:
        metadata, spec = body["metadata"], body["spec"]
        if set(metadata) - {"generateName", "ownerReferences"} or not {"driver", "nodeName", "pool"} <= set(spec):
            raise _Refused(422, "ResourceSlice is invalid")
        with self.api.lock:
            number = self.api.version + 1
            metadata["name"] = f"{metadata['generateName']}{number:05x}"
            metadata["uid"] = f"uid-slice-{number}"
            self.api.writes.append("POST")
            self.api.put(SLICES, body)
            self._send(201, body)

    def _create_claim(self, body: dict[str, Any]) -> None:
        metadata, requests = body["metadata"], body["spec"]["devices"]["requests"]
        if metadata["namespace"] != "vms" or any(not one["exactly"]["deviceClassName"] for one in requests):
            raise _Refused(422, "ResourceClaim is invalid")
        with self.api.lock:
            if any(item["metadata"]["name"] == metadata["name"] for item in self.api.objects[CLAIMS].values()):
                raise _Refused(409, f"resourceclaims {metadata['name']!r} already exists")
            metadata["uid"] = f"uid-claim-{self.api.version}"  # another one of that name gets another
            self.api.put(CLAIMS, {**body, "status": {}})
            self._send(201, body)

    def _replace_claim_status(self, name: str, body: dict[str, Any]) -> None:
        with self.api.lock:
            there = self._named(CLAIMS, name)
            if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
                raise _Refused(409, "the object has been modified; please apply your changes to the latest version")
            requests = {one["name"] for one in there["spec"]["devices"]["requests"]}
            results = body["status"].get("allocation", {}).get("devices", {}).get("results", [])
            if unknown := {one["request"] for one in results} - requests:
                raise _Refused(422, f"status.allocation: not requested: {unknown}")
            self.api.put(CLAIMS, {**there, "status": body["status"]})
            self._send(200, body)

    def _put(self) -> None:
        body = self._body({"application/json"})
        if self.path.startswith(f"{CLAIMS}/") and self.path.endswith("/status"):
            self._replace_claim_status(self.path.removeprefix(f"{CLAIMS}/").removesuffix("/status"), body)
            return
        with self.api.lock:
            there = self._named(SLICES, self.path.removeprefix(f"{SLICES}/"))
            if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
                raise _Refused(409, "the object has been modified; please apply your changes to the latest version")
            if any(body["spec"][key] != there["spec"][key] for key in ("driver", "nodeName")):
                raise _Refused(422, "spec: field is immutable")
            self.api.writes.append("PUT")
            self.api.put(SLICES, body)
            self._send(200, body)

    def _delete(self) -> None:
        if self.path.startswith(f"{CLAIMS}/"):
            with self.api.lock:
                there = self._named(CLAIMS, self.path.removeprefix(f"{CLAIMS}/"))
                self.api.remove(CLAIMS, there["metadata"]["name"])
                self._send(200, {"kind": "Status", "status": "Success"})
            return
        options = self._body({"application/json"})
        with self.api.lock:
            there = self._named(SLICES, self.path.removeprefix(f"{SLICES}/"))
            if options["preconditions"] != {"uid": there["metadata"]["uid"]}:
                raise _Refused(409, "the UID in the precondition does not match the UID in record")
            self.api.writes.append("DELETE")
            self.api.remove(SLICES, there["metadata"]["name"])
            self._send(200, {"kind": "Status", "status": "Success"})

    def _apply_status(self, name: str, query: str) -> None:
        if parse_qs(query) != {"fieldManager": ["launcherkit-plugin"], "force": ["true"]}:
            raise _Refused(400, f"no field manager: {query}")
        body = self._body({"application/apply-patch+yaml"})
        with self.api.lock:
            there = self._named(CLAIMS, name)
            if body["metadata"]["uid"] != there["metadata"]["uid"]:
                raise _Refused(409, "Precondition failed: UID in precondition does not match")
            self.api.writes.append("PATCH")
            self.api.put(CLAIMS, {**there, "status": {**there.get("status", {}), **body["status"]}})
            self._send(200, there)

    def _apply_map(self, name: str, query: str) -> None:
        if parse_qs(query) != {"fieldManager": ["launcherkit-plugin"], "force": ["true"]}:
            raise _Refused(400, f"no field manager: {query}")
        body = self._body({"application/apply-patch+yaml"})
        if body["metadata"]["name"] != name or len(json.dumps(body["data"])) > 1 << 20:
            raise _Refused(422, "ConfigMap is invalid")
        with self.api.lock:
            self.api.writes.append("PATCH")
            self.api.put(CONFIGMAPS, body)
            self._send(200, body)

    def _patch(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith(f"{CLAIMS}/") and url.path.endswith("/status"):
            self._apply_status(url.path.removeprefix(f"{CLAIMS}/").removesuffix("/status"), url.query)
            return
        if url.path.startswith(f"{CONFIGMAPS}/"):
            self._apply_map(url.path.removeprefix(f"{CONFIGMAPS}/"), url.query)
            return
        change = self._body({"application/merge-patch+json"})
        folder, _, name = self.path.rpartition("/")
        with self.api.lock:
            if folder != EVENTS:
                raise _Refused(403, f"may not patch {self.path}")
            if name not in self.api.events:
                raise _Refused(404, f"events {name!r} not found")
            self.api.events[name] |= change
            self.api.lock.notify_all()
            body = dict(self.api.events[name])
        self._send(200, body)


def _selected(path: str, selector: str, labels: str) -> Any:
    """By fields, and by labels: ``key=value``, or ``key`` alone for any value."""
    wanted = dict(each.split("=", 1) for each in selector.split(",") if each)
    labelled = [each.partition("=") for each in labels.split(",") if each]
    if path in (PODS, NODES, SLICES) and not (selector or labels):
        raise _Refused(400, "a plugin of one node has no business with those of all")
    if unknown := set(wanted) - SELECTABLE[path]:
        raise _Refused(400, f"field label not supported: {unknown}")

    def selected(item: Mapping[str, Any]) -> bool:
        def value(field: str) -> Any:
            found: Any = item
            for part in field.split("."):
                found = found.get(part, {})
            return found

        has = item["metadata"].get("labels", {})
        return all(value(field) == text for field, text in wanted.items()) and all(
            has.get(key) == text if equal else key in has for key, equal, text in labelled
        )

    return selected
