"""Requests to the API server, with plain JSON. The package `kubernetes` does credentials, TLS and proxies.

Its models are not used: they check the answers of servers of other versions against their own schema, and create many
objects for fields that are never read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import OpenApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from launcherkit.errors import shown
from launcherkit.request.fields import Fields, FirstProblem, Problems, strict_json, text
from launcherkit_plugin.cluster.lists import split_list
from launcherkit_plugin.model.errors import NO_CLUSTER

MAX_OBJECTS = 10_000
"""The most objects of a kind; a node runs a few hundred pods."""
_GONE = 410
_PAUSE = 1.0
"""Seconds from the beginning of a watch to that of the next one, at least."""


Json: TypeAlias = dict[str, Any]
Objects: TypeAlias = dict[str, Json]
"""The objects of a kind at one moment, by UID."""

_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
OBJECT_BYTES = 4 * 1024 * 1024
"""The most bytes of an object, a watch event, or an error; etcd accepts 1.5 MB."""
LIST_BYTES = 64 * 1024 * 1024
"""The most bytes of a list, of which one object at a time is in memory."""
MAX_VALUES = 100_000
"""The most values of an object, each of which takes up to 200 bytes; no object of Kubernetes has a tenth."""
WATCH_SECONDS = 240
"""The server ends a watch after this time. A dead connection is noticed a little later."""


class ApiProblem(Exception):
    """The server refused, or did not answer. ``status`` is the HTTP status, or 0 without an answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def configured(env: Mapping[str, str]) -> Configuration:
    """The credentials: those of ``KUBECONFIG`` if it is set, else the pod's.

    Raises:
        NoCluster: there are none, or they can't be used.
    """
    configuration = Configuration()
    try:
        if env.get("KUBECONFIG"):
            load_kube_config(env["KUBECONFIG"], client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError) as problem:
        file = f"{env['KUBECONFIG']}: " if env.get("KUBECONFIG") else ""
        raise NO_CLUSTER(
            f"no credentials for the cluster: {file}{' '.join(str(problem).split())}",
            "Give the pod a service account, or set KUBECONFIG to a kubeconfig that can be read, for example "
            "`export KUBECONFIG=~/.kube/config`.",
            variable="KUBECONFIG",
        ) from problem
    return configuration


class Api:
    """An API server. Paths are absolute. All segments are valid names of Kubernetes, so nothing needs quoting."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)
        self._one_parses = threading.Lock()

    def list(self, path: str, keep: Callable[[Json], Json], **query: str) -> Json:
        """A list. Its objects are parsed one at a time, and one thread of the process does so at once.

        Args:
            path: of the list.
            keep: returns what is kept of an object.
            query: selectors.

        Raises:
            ApiProblem: it may not be read, is no list or has too many objects, or the server doesn't answer.
        """
        response = self._request("GET", path, query, None, "", _ANSWER_SECONDS)
        try:
            return read_list(response.stream(amt=_CHUNK_BYTES, decode_content=True), keep, path, self._one_parses)
        except (HTTPError, OSError) as problem:
            raise ApiProblem(0, f"GET {path}: {_why(problem)}") from problem
        finally:
            response.close()

    def get(self, path: str, **query: str) -> Json:
        """An object.

        Raises:
            ApiProblem: it doesn't exist, may not be read, or the server doesn't answer.
        """
        return self._answered("GET", path, query)

    def post(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object; in a dry run, only answer what would be stored.

        Raises:
            ApiProblem: it is refused.
        """
        return self._answered("POST", path, {"dryRun": "All"} if dry_run else {}, body)

    def patch(self, path: str, body: Json) -> Json:
        """Change some fields of an object, by a JSON merge patch.

        Raises:
            ApiProblem: it is refused.
        """
        return self._answered("PATCH", path, {}, body, "application/merge-patch+json")

    def put(self, path: str, body: Json) -> Json:
        """Replace an object; with a ``resourceVersion``, only if it is still of that version.

        Raises:
            ApiProblem: it is refused; with 409 the object has changed.
        """
        return self._answered("PUT", path, {}, body)

    def apply(self, path: str, body: Json, manager: str) -> Json:
        """Server-side apply: sets the fields of ``manager``; those of other managers stay.

        Raises:
            ApiProblem: it is refused.
        """
        query = {"fieldManager": manager, "force": "true"}
        return self._answered("PATCH", path, query, body, "application/apply-patch+yaml")

    def delete(self, path: str, uid: str) -> None:
        """Delete the object with that UID.

        Raises:
            ApiProblem: it is gone, or another object has its name.
        """
        self._answered("DELETE", path, {}, {"preconditions": {"uid": uid}})

    def watch(self, path: str, **query: str) -> Iterator[Json]:
        """The events of a watch, until the server ends it.

        Raises:
            ApiProblem: also for errors that the server sends in the stream, such as 410: the version is too old.
        """
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        response = self._request("GET", path, asked, None, "", WATCH_SECONDS + 30.0)
        try:
            for line in _lines(response.stream(amt=_CHUNK_BYTES, decode_content=True), path):
                with self._one_parses:
                    event = _parsed(line)
                if event.get("type") == "ERROR":
                    raise _problem_in(event)
                yield event
        except (HTTPError, OSError) as problem:
            raise ApiProblem(0, f"{path}: {_why(problem)}") from problem
        finally:
            response.close()

    def _answered(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, kind: str = ""
    ) -> Json:
        response = self._request(method, path, query, body, kind, _ANSWER_SECONDS)
        try:
            text = response.read(OBJECT_BYTES + 1, decode_content=True)
            if len(text) > OBJECT_BYTES:
                raise ApiProblem(0, f"{method} {path}: an answer of more than {OBJECT_BYTES} bytes")
            with self._one_parses:
                return _parsed(text)
        except (HTTPError, OSError) as problem:
            raise ApiProblem(0, f"{method} {path}: {_why(problem)}") from problem
        finally:
            response.close()

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, kind: str, seconds: float
    ) -> Any:
        """The urllib3 response, with status 2xx; its body hasn't been read yet."""
        headers = {"Accept": "application/json"} | ({"Content-Type": kind or "application/json"} if body else {})
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=(_CONNECT_SECONDS, seconds)).response
            if not 200 <= response.status < 300:
                answer = response.read(OBJECT_BYTES, decode_content=True).decode("utf-8", "replace")
                response.close()
                raise ApiProblem(response.status, f"{method} {path}: {_status_message(answer) or response.reason}")
        except (OpenApiException, HTTPError, ConfigException, OSError) as problem:
            raise ApiProblem(0, f"{method} {self._client.configuration.host}{path}: {_why(problem)}") from problem
        return response


def _why(problem: BaseException) -> str:
    """The text of the innermost error: urllib3 wraps that of the system in texts that show its own objects."""
    while isinstance(inner := problem.__cause__ or (problem.args[-1] if problem.args else None), BaseException):
        problem = inner
    return (getattr(problem, "strerror", None) or str(problem)).rpartition("): ")[2]


def read_list(
    chunks: Iterable[bytes], keep: Callable[[Json], Json], path: str, turns: AbstractContextManager[object]
) -> Json:
    """A list in the pieces in which it arrives, with what is kept of its objects as its ``items``.

    Args:
        chunks: the pieces.
        keep: returns what is kept of an object.
        path: of the list, for the problem.
        turns: entered for each object, so that several lists aren't parsed at once.

    Raises:
        ApiProblem: it is no list, or is too long.
    """
    items: list[Json] = []

    def add(text: bytes) -> None:
        if len(items) == MAX_OBJECTS:
            raise ValueError(f"its items are not a list of at most {MAX_OBJECTS}")
        with turns:
            items.append(keep(_parsed(text)))

    try:
        listed = _parsed(split_list(_bounded(chunks), add))
        if listed.get("items") not in (None, []):
            raise ValueError(f"its items are {shown(listed['items'])}")
    except (ValueError, ApiProblem) as problem:
        raise ApiProblem(0, f"{path}: the answer is not a list: {problem}") from problem
    return {**listed, "items": items}


def _bounded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    left = LIST_BYTES
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise ValueError(f"more than {LIST_BYTES} bytes")
        yield chunk


def _lines(chunks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The non-empty lines in a stream.

    Raises:
        ApiProblem: a line is too long.
    """
    pending = bytearray()
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            pending += part
            if pending:
                yield bytes(pending)
            pending.clear()
        pending += rest
        if len(pending) > OBJECT_BYTES:
            raise ApiProblem(0, f"{path}: a change of more than {OBJECT_BYTES} bytes")


def _problem_in(event: Json) -> ApiProblem:
    """The problem that a server reports in a watch."""
    status = read(event, "object")
    code = status.pop("code")
    return ApiProblem(code if isinstance(code, int) else 0, shown(status.pop("message")))


class _Said(Problems):
    """Raises what is wrong in an object of the server's."""

    def add(self, where: str, message: str) -> None:
        raise ApiProblem(0, f"the server says {where}: {message}" if where else f"the server says {message}")

    def wrong(self, where: str, value: object, expected: str) -> None:
        self.add(where, f"{shown(value)}, which is not {expected}")


def read(item: object, *keys: str) -> Fields:
    """An object of the server's, or one in it; one without keys if there is none.

    Raises:
        ApiProblem: something else is in its place. Its methods raise this too.
    """
    fields = Fields({} if item is None else item, "", _Said())
    for key in keys:
        fields = fields.inner(key)
    return fields


def part(item: object, *keys: str) -> Json:
    """The keys and values of what `read` returns."""
    return read(item, *keys).rest()


def _parsed(text: bytes) -> Json:
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ApiProblem(0, f"the answer has an object of more than {MAX_VALUES} values")
    try:
        value = strict_json(text)
    except ValueError as problem:
        raise ApiProblem(0, f"the answer is not JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise ApiProblem(0, "the answer is not an object")
    return value


def _status_message(answer: str) -> str:
    """The message of a Status object, with which the server refuses a request."""
    try:
        return Fields(strict_json(answer), "", FirstProblem()).needed("message", text, "a text")[:1000]
    except ValueError:
        return answer[:200]


def follow(
    server: Api,
    path: str,
    fields: str,
    keep: Callable[[Json], Json],
    wait: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    *,
    label: str = "",
) -> Iterator[Objects]:
    """The objects of a list, and again after every change. If the watch fails because its version is too old (410), the
    objects are listed again.

    Args:
        server: the API server.
        path: of the list: ``/api/v1/pods``.
        fields: a field selector; empty for all.
        keep: returns what is kept of an object; its UID is.
        wait: called with the seconds to pause after a watch of less than a second: a server or proxy may end each of
            them at once.
        clock: in seconds.
        label: a label that the objects must have; empty for any.

    Raises:
        ApiProblem: the caller decides when to try again.
    """
    selector = ({"fieldSelector": fields} if fields else {}) | ({"labelSelector": label} if label else {})
    while True:
        listed = server.list(path, lambda item: {"uid": _uid(item), "kept": keep(item)}, **selector)
        try:
            objects = {item["uid"]: item["kept"] for item in items_of(listed)}
            version = read(listed, "metadata").needed("resourceVersion", text, "text")
        except ApiProblem as problem:
            raise ApiProblem(0, f"{path}: the answer is not a list: {problem}") from problem
        yield dict(objects)
        try:
            while True:
                began = clock()
                for event in server.watch(path, resourceVersion=version, **selector):
                    version = _applied(event, objects, path, keep)
                    if event.get("type") != "BOOKMARK":
                        yield dict(objects)
                if (left := began + _PAUSE - clock()) > 0:
                    wait(left)
        except ApiProblem as problem:
            if problem.status != _GONE:
                raise
            wait(_PAUSE)


def _applied(event: Json, objects: Objects, path: str, keep: Callable[[Json], Json]) -> str:
    """Apply an event to the objects; returns their new resource version."""
    changed, kind = event.get("object"), event.get("type")
    try:
        version = read(changed, "metadata").needed("resourceVersion", text, "text")
        if kind == "DELETED":
            objects.pop(_uid(changed), None)
        elif kind != "BOOKMARK":
            objects[_uid(changed)] = keep(part(changed))
            if len(objects) > MAX_OBJECTS:
                raise ApiProblem(0, f"more than {MAX_OBJECTS} objects")
    except ApiProblem as problem:
        raise ApiProblem(0, f"{path}: the watch sends something else than events: {problem}") from problem
    return version


def whole(item: Json) -> Json:
    """All of an object."""
    return item


def only(*paths: str) -> Callable[[Json], Json]:
    """Keeps these of an object: ``metadata.name``; a path that leads to nothing is left out."""

    def keep(item: Json) -> Json:
        kept: Json = {}
        for path in paths:
            *outer, last = path.split(".")
            value = read(item, *outer).pop(last)
            if value is not None:
                place = kept
                for key in outer:
                    place = place.setdefault(key, {})
                place[last] = value
        return kept

    return keep


def items_of(listed: Json) -> list[Any]:
    """The objects in a list.

    Raises:
        ApiProblem: it isn't a list, or has too many.
    """
    items = listed.get("items") or []
    if not isinstance(items, list) or len(items) > MAX_OBJECTS:
        raise ApiProblem(0, f"its items are not a list of at most {MAX_OBJECTS}")
    return items


def _uid(item: object) -> str:
    metadata = read(item, "metadata")
    metadata.needed("name", text, "text")
    return metadata.needed("uid", text, "text")
