"""Objects are followed through changes, bookmarks, ended watches and forgotten versions."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration

from launcherkit_plugin.cluster.api import (
    OBJECT_BYTES,
    Api,
    ApiProblem,
    Json,
    configured,
    follow,
    only,
    read_list,
    whole,
)
from launcherkit_plugin.cluster.lists import ITEM_BYTES, split_list
from launcherkit_plugin.cluster.serve import kubevirt_configuration, living_pods, node_labels
from launcherkit_plugin.model.errors import NO_CLUSTER
from tests.support.errors import raises_code


def item(name: str, version: int = 1, **more: Any) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, **more}


class Script(Api):
    """Answers of a server in their order; a list of events is a watch, an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []

    def get(self, path: str, **query: str) -> Json:
        self.asked.append(query)
        answer: Json = self.answers.pop(0)
        return answer

    def list(self, path: str, keep: Callable[[Json], Json], **query: str) -> Json:
        return read_list([json.dumps(self.get(path, **query)).encode()], keep, path, nullcontext())

    def watch(self, path: str, **query: str) -> Iterator[Json]:
        self.asked.append(query)
        for event in self.answers.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def listed(*items: Json, version: int = 10) -> Json:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, changed: Json) -> Json:
    return {"type": kind, "object": changed}


def names(script: Script, count: int) -> list[list[str]]:
    """The names of the objects, the first so many times."""
    found = follow(script, "/p", "a=b", whole, lambda seconds: None)
    return [sorted(each["metadata"]["name"] for each in next(found).values()) for _ in range(count)]


def test_the_list_comes_first_and_then_every_change() -> None:
    script = Script(listed(item("a")), [event("ADDED", item("b", 11)), event("DELETED", item("a", 12))])
    assert names(script, 3) == [["a"], ["a", "b"], ["b"]]


def test_a_watch_that_ends_is_taken_up_where_it_ended() -> None:
    script = Script(listed(), [event("BOOKMARK", item("", 40))], [event("ADDED", item("a", 41))])
    assert names(script, 2) == [[], ["a"]]
    assert [asked.get("resourceVersion") for asked in script.asked] == [None, "10", "40"]
    assert {asked["fieldSelector"] for asked in script.asked} == {"a=b"}


def test_after_a_watch_of_a_second_the_next_one_begins_at_once_and_a_shorter_one_leaves_a_pause() -> None:
    """While nobody watches, slices that the kubelet deletes are missing unnoticed."""
    at = 0.0

    class Timed(Script):
        def watch(self, path: str, **query: str) -> Iterator[Json]:
            nonlocal at
            at += self.answers.pop(0)
            yield event("ADDED", item("a", 41))

    waited: list[float] = []
    found = follow(Timed(listed(), 0.25, 1.0, 240.0, 0.0), "/p", "", whole, waited.append, lambda: at)
    for _ in range(5):
        next(found)
    assert waited == [0.75]


def test_a_version_that_the_server_has_forgotten_makes_it_list_again() -> None:
    script = Script(listed(item("a")), [ApiProblem(410, "too old")], listed(item("c")), [])
    assert names(script, 2) == [["a"], ["c"]]


def test_another_problem_is_for_the_caller() -> None:
    found = follow(Script(listed(), [ApiProblem(500, "etcd")]), "/p", "", whole, lambda seconds: None)
    next(found)
    with pytest.raises(ApiProblem, match="etcd"):
        next(found)


@pytest.mark.parametrize("answer", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": "1"}, "items": [{}]}])
def test_what_is_no_list_is_a_problem_that_names_the_path(answer: Json) -> None:
    with pytest.raises(ApiProblem, match="/p"):
        next(follow(Script(answer), "/p", "", whole, lambda seconds: None))


@pytest.mark.parametrize("odd", [{}, {"type": "ADDED"}, {"type": "ADDED", "object": {"metadata": {}}}])
def test_what_is_no_event_is_a_problem_that_names_the_path(odd: Json) -> None:
    found = follow(Script(listed(), [odd]), "/p", "", whole, lambda seconds: None)
    next(found)
    with pytest.raises(ApiProblem, match="/p"):
        next(found)


# What is made of the objects


def test_of_kubevirt_the_host_devices_are_taken_and_nothing_else() -> None:
    permitted = {"pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}]}
    configuration = {"permittedHostDevices": permitted, "developerConfiguration": {"featureGates": ["Sidecar"]}}
    assert kubevirt_configuration([item("kubevirt", spec={"configuration": configuration})]) == {
        "permittedHostDevices": permitted
    }


def test_of_kubevirts_gates_the_one_about_mediated_devices_is_taken() -> None:
    gates = {"developerConfiguration": {"featureGates": ["Sidecar", "DisableMDEVConfiguration"]}}
    assert kubevirt_configuration([item("kubevirt", spec={"configuration": gates})]) == {
        "developerConfiguration": {"featureGates": ["DisableMDEVConfiguration"]}
    }


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {"configuration": None}}])
def test_a_kubevirt_that_configures_nothing_is_there_all_the_same(spec: Json) -> None:
    assert kubevirt_configuration([item("kubevirt", **spec)]) == {}
    assert kubevirt_configuration([]) is None


def test_of_two_kubevirts_the_first_by_name_counts() -> None:
    one, two = (item(name, spec={"configuration": {"permittedHostDevices": {"of": name}}}) for name in "ab")
    assert kubevirt_configuration([two, one]) == {"permittedHostDevices": {"of": "a"}}


def test_labels_are_those_of_the_node() -> None:
    node = item("n")
    assert node_labels([node]) == {}
    node["metadata"]["labels"] = {"a": "b"}
    assert node_labels([node]) == {"a": "b"}


def test_a_pod_that_has_ended_holds_nothing() -> None:
    phases = {"a": "Running", "b": "Succeeded", "c": "Failed", "d": "Pending"}
    objects = {name: item(name, status={"phase": phase}) for name, phase in phases.items()}
    assert sorted(living_pods({**objects, "e": item("e")})) == ["a", "d", "e"]


# What a server may send instead


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "items", "spec", "status", "labels", "configuration", "uid", "object", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ODD, ODD)
def test_whatever_a_server_sends_is_objects_or_one_problem(answer: Any, change: Any) -> None:
    body = answer if isinstance(answer, dict) else {"items": answer, "metadata": {"resourceVersion": "1"}}
    found = follow(
        Script(body, [change if isinstance(change, dict) else {"object": change}]), "/p", "", whole, lambda _: None
    )
    with suppress(ApiProblem, IndexError):  # the script is at its end
        for objects in found:
            kubevirt_configuration(objects.values())
            node_labels(objects.values())
            living_pods(objects)


@given(ODD)
def test_whatever_an_object_holds_is_a_setting_or_one_problem(spec: Any) -> None:
    with suppress(ApiProblem):
        kubevirt_configuration([item("kubevirt", spec=spec)])
    with suppress(ApiProblem):
        node_labels([{"metadata": spec}])
    with suppress(ApiProblem):
        living_pods({"u": item("p", status=spec)})


def test_more_objects_than_a_node_can_have_are_a_problem() -> None:
    with pytest.raises(ApiProblem, match="at most 10000"):
        next(follow(Script(listed(*(item(str(number)) for number in range(10_001)))), "/p", "", whole, lambda _: None))


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[Api]:
    """The client of a server that answers by a handler."""
    configuration = Configuration()
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        configuration.host = f"http://127.0.0.1:{server.server_port}"
        try:
            yield Api(configuration)
        finally:
            server.shutdown()


def watched(*pieces: bytes) -> list[Json]:
    """The events of a watch that a server sends in these pieces, each by itself."""

    class Pieces(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(ConnectionError):  # who has seen enough closes
                for piece in (*pieces, b""):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Pieces) as api:
        return list(api.watch("/p"))


def test_the_events_of_a_watch_are_found_in_whatever_pieces_they_come() -> None:
    assert watched(b'{"a"', b':1}\n\n{"b":2}\n', b'{"c":', b"3}", b'\n{"the end is missing":') == [
        {"a": 1},
        {"b": 2},
        {"c": 3},
    ]


def test_an_event_may_have_so_many_bytes_and_not_one_more() -> None:
    text = b'{"a":1}'.ljust(OBJECT_BYTES)
    assert watched(text, b"\n") == [{"a": 1}]
    with pytest.raises(ApiProblem, match=f"^/p: a change of more than {OBJECT_BYTES} bytes$"):
        watched(text, b" ", b"\n")


def test_an_answer_may_have_so_many_bytes_and_not_one_more() -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            text = b"{}".ljust(int(self.path[1:]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(ConnectionError):  # who has seen enough closes
                self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Answer) as api:
        assert api.put(f"/{OBJECT_BYTES}", {"a": 1}) == {}
        with pytest.raises(ApiProblem, match=f"an answer of more than {OBJECT_BYTES} bytes"):
            api.put(f"/{OBJECT_BYTES + 1}", {"a": 1})


def test_what_keeps_a_server_from_answering_is_said_in_the_systems_words() -> None:
    configuration = Configuration()
    with create_server(("127.0.0.1", 0)) as server:
        configuration.host = f"http://127.0.0.1:{server.getsockname()[1]}"
        configuration.retries = 0
        Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        with pytest.raises(ApiProblem) as closed:
            Api(configuration).get("/p")
    with pytest.raises(ApiProblem) as refused:
        Api(configuration).get("/p")
    assert str(refused.value) == f"GET {configuration.host}/p: Connection refused"
    assert str(closed.value) in {
        f"GET {configuration.host}/p: {why}"
        for why in ("Remote end closed connection without response", "Connection reset by peer")
    }


# Lists, one object at a time


OBJECTS = st.dictionaries(st.text(max_size=4) | st.sampled_from(['"', "\\", "items", "[{"]), ODD, max_size=3)


@given(st.lists(OBJECTS, max_size=4), OBJECTS, st.integers(1, 40), st.booleans())
def test_a_list_in_pieces_is_the_list(items: list[Json], head: Json, size: int, last: bool) -> None:
    head = {key: value for key, value in head.items() if key != "items"}
    document = {**head, "items": items} if last else {"items": items, **head}
    text = json.dumps(document, ensure_ascii=False, indent=size % 3 or None).encode()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read_list(pieces, whole, "/p", nullcontext()) == document


@pytest.mark.parametrize(
    "text",
    [b'{"items":[1]}', b'{"items":["a"]}', b'{"items":[[]]}', b'{"items":[{}', b'{"items":{"a":1}}', b"[]", b"", b"{"],
)
def test_what_has_no_list_of_objects_is_a_problem_that_names_the_path(text: bytes) -> None:
    with pytest.raises(ApiProblem, match=r"^/p: the answer is not a list: "):
        read_list([text], whole, "/p", nullcontext())


def hostile(unit: bytes, size: int) -> Iterator[bytes]:
    """A list of one object of so many bytes, in pieces."""
    yield b'{"items":[{"metadata":{"uid":"a"},"x":['
    piece = size // 160
    for _ in range(160):
        yield unit * (piece // len(unit))


def peak_memory(split: Callable[[], object], error: type[Exception], message: str) -> int:
    """The most bytes that are allocated at a time until there is this error."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            split()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"a":1.5},', "\U0001f600".encode() * 2 + b'",\n"'])
def test_a_hostile_list_takes_little_memory(unit: bytes) -> None:
    limit = ITEM_BYTES // 48
    pieces = hostile(unit, 10_000_000 // 48)
    peak = peak_memory(lambda: split_list(pieces, list, limit), ValueError, f"an object of more than {limit} bytes")
    assert peak < 16_000_000 // 48


def test_a_hostile_list_of_the_whole_length_takes_little_memory() -> None:
    pieces = hostile("\U0001f600".encode() * 2 + b'",\n"', 10_000_000)
    message = f"an object of more than {ITEM_BYTES} bytes"
    assert peak_memory(lambda: read_list(pieces, whole, "/p", nullcontext()), ApiProblem, message) < 16_000_000


def test_an_object_of_too_many_values_is_not_parsed() -> None:
    many = b'{"items":[{"x":[' + b"{}," * 100_000 + b"{}]}]}"
    with pytest.raises(ApiProblem, match="more than 100000 values"):
        read_list([many], whole, "/p", nullcontext())


def test_nothing_is_kept_of_an_object_but_what_is_asked_for() -> None:
    pod = {"metadata": {"name": "a", "uid": "b", "labels": {}}, "spec": {}, "status": None}
    assert only("metadata.name", "status.phase")(pod) == {"metadata": {"name": "a"}}
    assert only()(pod) == {}


def test_a_brace_in_a_string_ends_no_object() -> None:
    taken: list[bytes] = []
    assert split_list([b'{"items":[{"a":"}', b']"}]}'], taken.append) == b'{"items":[]}'
    assert taken == [b'{"a":"}]"}']


@pytest.mark.parametrize("text", ["a: [", "[]", "abc", "clusters: 5", "{current-context: c, contexts: [{name: c}]}"])
def test_a_kubeconfig_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with raises_code(NO_CLUSTER, f"no credentials for the cluster: {file}: "):
        configured({"KUBECONFIG": str(file)})
