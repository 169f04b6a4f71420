"""The protocol between the daemon and the cluster container: lines of JSON, each an object with one key.

The daemon listens, and the container connects. Both begin with ``{"hello": {"version": 1}}``. "Down" is from the daemon
to the container. In general:

* down: ``{"want": ["kubevirt"]}``: the daemon needs these values; ``{"event": {"type": ..., "reason": ...,
  "message": ...}}``;
* up: ``{"kubevirt": {...} | null}`` and ``{"labels": {...}}``: the present values; ``{"pod": "namespace/name"}``: it
  has ended;
* down: ``{"want": ["pods"]}``; up: ``{"pods": {"namespace/name": pod, ...}}`` and ``{"asking": ...}``: the pods of the
  node, and those with the label `same_device.LABEL` that are on it or on none; each an `same_device.AskingPod`;
* down: ``{"node-record": {"record": "..."}}``: the node's record to publish, or ``{"problem": "..."}`` in its place;

for Dynamic Resource Allocation:

* down: ``{"slices": {"driver": ..., "slices": [spec, ...]}}``: all ResourceSlices of a driver on this node;
  ``{"get-claim": {"id": 1, "namespace": ..., "name": ..., "uid": ...}}``; ``{"claim-status": {"namespace": ...,
  "name": ..., "uid": ..., "devices": [...]}}``;
* down: ``{"want": ["claims"]}``; up: ``{"awaiting": [...]}``: the claims whose pods wait for devices of the node, each
  an `device.AwaitingClaim`;
* up: ``{"claim": {"id": 1, "object": {...}}}``, or ``{"claim": {"id": 1, "error": "..."}}``;

for the page of the node:

* down: ``{"review-token": {"id": 1, "token": ...}}``;
* up: ``{"token": {"id": 1, "allowed": true, "why": ""}}``, or ``{"token": {"id": 1, "error": "..."}}``.

Unknown keys are ignored, so keys can be added without a new version.
"""

import json
from typing import Any, NamedTuple

from launcherkit.errors import shown
from launcherkit.request.fields import Fields, FirstProblem, flag, integer, strict_json, string
from launcherkit_plugin.codec import decode
from launcherkit_plugin.model.device import AwaitingClaim
from launcherkit_plugin.model.same_device import AskingPod

VERSION = 1
LINE_BYTES = 4 * 1024 * 1024
"""The longest line to the daemon, such as KubeVirt's whole configuration; etcd accepts objects of 1.5 MB."""

POOL_BYTES = 16 * 1024 * 1024
"""The longest line to the container, such as the slices of a node: those of 4096 functions take 4 MB."""

HELLO = {"version": VERSION}


class Message(NamedTuple):
    """One line."""

    name: str
    value: Any


def line_of(name: str, value: object) -> bytes:
    """The line of a message."""
    return json.dumps({name: value}).encode() + b"\n"


def parse(line: bytes, limit: int = LINE_BYTES) -> Message:
    """The message in a line of at most ``limit`` bytes.

    Raises:
        ValueError: it is invalid, too long, or cut off.
    """
    if len(line) > limit or not line.endswith(b"\n"):
        raise ValueError(f"a line of {len(line)} bytes that is cut off, or longer than {limit}")
    try:
        message = strict_json(line)
    except ValueError as problem:
        raise ValueError(f"a line that is not JSON: {problem}") from problem
    if not isinstance(message, dict) or len(message) != 1:
        raise ValueError(f"{shown(message)} is not an object with one key")
    ((name, value),) = message.items()
    return Message(name, value)


def _fields(message: Message) -> Fields:
    """What is wrong in it is raised as ValueError, with the path of a key."""
    return Fields({message.name: message.value}, "", FirstProblem())


def check_hello(message: Message) -> None:
    """Check that both sides have the same version.

    Raises:
        ValueError: they don't, or it is not a greeting.
    """
    version = _fields(message).inner("hello", required=True).pop("version")
    if version != VERSION:
        raise ValueError(f"hello.version: {shown(version)}: this is not a greeting of version {VERSION}")


def settings(message: Message) -> dict[str, Any] | None:
    """KubeVirt's settings in a message ``kubevirt``; None without KubeVirt.

    Raises:
        ValueError: the message is invalid.
    """
    configuration = _fields(message).child("kubevirt")
    return None if configuration is None else configuration.rest()


def labels(message: Message) -> dict[str, str]:
    """The node's labels in a message ``labels``.

    Raises:
        ValueError: the message is invalid.
    """
    fields = _fields(message).inner("labels", required=True)
    return {key: fields.needed(key, string, "a string") for key in fields.rest()}


def asking_pods(message: Message) -> dict[str, AskingPod]:
    """The pods in a message ``pods`` or ``asking``, by ``namespace/name``.

    Raises:
        ValueError: the message is invalid.
    """
    pods = _fields(message).mapping(message.name, required=True)
    return {name: decode(AskingPod, pod) for name, pod in pods.items()}


def awaiting_claims(message: Message) -> tuple[AwaitingClaim, ...]:
    """The claims in a message ``awaiting``.

    Raises:
        ValueError: the message is invalid.
    """
    return tuple(decode(AwaitingClaim, claim) for claim in _fields(message).listed(message.name))


class Answer(NamedTuple):
    """The answer to a question: a claim's object or the review of a token, or an error."""

    number: int
    result: dict[str, Any] | None
    error: str


def answer(message: Message) -> Answer:
    """The answer in a message ``claim`` or ``token``.

    Raises:
        ValueError: the message is invalid.
    """
    reply = _fields(message).inner(message.name, required=True)
    number = reply.needed("id", integer, "the number of a question")
    if "error" in reply:
        return Answer(number, None, reply.needed("error", string, "a text"))
    if message.name == "claim":
        return Answer(number, reply.inner("object", required=True).rest(), "")
    allowed, reason = reply.needed("allowed", flag, "true or false"), reply.needed("why", string, "a text")
    return Answer(number, {"allowed": allowed, "why": reason}, "")
