"""What there is, and then what changes, for as long as the server answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from launcherkit_plugin.cluster.api import ApiProblem, Json, part, texts

MOST_OBJECTS = 10_000
"""Of a kind: a node runs a few hundred pods."""
_GONE = 410
_PAUSE = 1.0

Objects: TypeAlias = dict[str, Json]
"""The objects of a kind at a moment, by UID."""


class WatchServer(Protocol):
    """As much of `Api` as is needed."""

    def get(self, path: str, **query: str) -> Json: ...

    def watch(self, path: str, **query: str) -> Iterator[Json]: ...


def follow(server: WatchServer, path: str, fields: str, wait: Callable[[float], None]) -> Iterator[Objects]:
    """The objects at a path, and again after every change; listed anew where the server has forgotten what changed.

    Args:
        server: where.
        path: of a list: ``/api/v1/pods``.
        fields: a field selector; empty for all.
        wait: called with seconds between two watches: a server or a proxy may end one at once, again and again.

    Raises:
        ApiProblem: the caller decides when to come again.
    """
    selector = {"fieldSelector": fields} if fields else {}
    while True:
        listed = server.get(path, **selector)
        try:
            objects = {_uid(item): part(item) for item in _items(listed)}
            (version,) = texts(part(listed, "metadata"), "resourceVersion")
        except ApiProblem as problem:
            raise ApiProblem(0, f"{path}: the answer is no list: {problem}") from problem
        yield dict(objects)
        try:
            while True:
                for event in server.watch(path, resourceVersion=version, **selector):
                    version = _applied(event, objects, path)
                    if event.get("type") != "BOOKMARK":
                        yield dict(objects)
                wait(_PAUSE)
        except ApiProblem as problem:
            if problem.status != _GONE:
                raise
            wait(_PAUSE)


def _applied(event: Json, objects: Objects, path: str) -> str:
    """Bring the objects up to date; gives the version that they have then."""
    changed, kind = event.get("object"), event.get("type")
    try:
        (version,) = texts(part(changed, "metadata"), "resourceVersion")
        if kind == "DELETED":
            objects.pop(_uid(changed), None)
        elif kind != "BOOKMARK":
            objects[_uid(changed)] = part(changed)
            if len(objects) > MOST_OBJECTS:
                raise ApiProblem(0, f"more than {MOST_OBJECTS} objects")
    except ApiProblem as problem:
        raise ApiProblem(0, f"{path}: the watch gives no events: {problem}") from problem
    return version


def _items(listed: Json) -> list[object]:
    items = listed.get("items") or []
    if not isinstance(items, list) or len(items) > MOST_OBJECTS:
        raise ApiProblem(0, f"its items are no list of at most {MOST_OBJECTS}")
    return items


def _uid(item: object) -> str:
    uid, _ = texts(part(item, "metadata"), "uid", "name")
    return uid
