"""Files of a guest through QEMU's agent: against a double, and against the agent of this system (tier libvirt)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest

from launcherkit.errors import GUEST_AGENT, UNREADABLE_FILE
from launcherkit.run.agent import Agent, AgentTree
from launcherkit.run.connection import LibvirtFailure
from tests.support.errors import raises_code
from tests.support.provoked import provoked

COMMANDS = ("guest-info", "guest-file-open", "guest-file-read", "guest-file-close")
UNABLE = "internal error: unable to execute QEMU agent command '{}': {}"


class Double:
    """qemu-ga 7.2 as libvirt passes its replies on."""

    def __init__(self, files: dict[str, bytes], *, disabled: tuple[str, ...] = (), chunk: int = 1 << 20) -> None:
        self.files, self.disabled, self.chunk = files, disabled, chunk
        self.opened: dict[int, list[bytes]] = {}

    def __call__(self, text: str) -> str:
        request = json.loads(text)
        command, arguments = request["execute"], request.get("arguments", {})
        if command not in COMMANDS or command in self.disabled:
            raise LibvirtFailure(
                UNABLE.format(command, f"The command {command} has been disabled for this instance"), 1
            )
        return json.dumps({"return": getattr(self, command.replace("-", "_"))(**arguments)})

    def guest_info(self) -> object:
        listed = [{"name": each, "enabled": each not in self.disabled, "success-response": True} for each in COMMANDS]
        return {"version": "7.2.22", "supported_commands": listed}

    def guest_file_open(self, path: str, mode: str) -> int:
        assert mode == "r"
        if path not in self.files:
            why = f"failed to open file '{path}' (mode: 'r'): No such file or directory"
            raise LibvirtFailure(UNABLE.format("guest-file-open", why), 1)
        if self.files[path] == b"secret":
            why = f"failed to open file '{path}' (mode: 'r'): Permission denied"
            raise LibvirtFailure(UNABLE.format("guest-file-open", why), 1)
        handle = 1000 + len(self.opened)
        self.opened[handle] = [self.files[path]]
        return handle

    def guest_file_read(self, handle: int, count: int) -> object:
        content = self.opened[handle][0]
        part = content[: min(count, self.chunk)]
        self.opened[handle][0] = content[len(part) :]
        return {"count": len(part), "buf-b64": base64.b64encode(part).decode(), "eof": not content[len(part) :]}

    def guest_file_close(self, handle: int) -> object:
        del self.opened[handle][0]
        return {}


def tree_of(send: Callable[[str], str]) -> AgentTree:
    return AgentTree(Agent(send, "vm"))


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_a_file_is_read_to_its_end_or_as_far_as_asked_however_little_comes_at_a_time(chunk: int) -> None:
    tree = tree_of(Double({"/sys/a/config": bytes(range(64))}, chunk=chunk))
    assert tree.read("sys/a/config") == bytes(range(64))
    assert tree.read("sys/a/config", 4, 12) == bytes([12, 13, 14, 15])
    with tree.below("sys/a") as folder:
        assert folder.read("config", 2) == b"\0\1"


def test_a_missing_file_is_none_and_each_file_is_closed() -> None:
    double = Double({"/sys/a": b"1", "/sys/b": b"2"})
    tree = tree_of(double)
    assert [tree.read("sys/a"), tree.read("sys/c"), tree.exists("sys/b"), tree.exists("sys/d")] == [
        b"1",
        None,
        True,
        False,
    ]
    assert list(double.opened.values()) == [[], []]


def test_a_file_that_may_not_be_read_is_an_error_and_not_absent() -> None:
    with raises_code(UNREADABLE_FILE, "vm, /sys/a: .*Permission denied"):
        tree_of(Double({"/sys/a": b"secret"})).read("sys/a")


def test_an_agent_that_may_not_read_files_is_named_with_what_to_change() -> None:
    with raises_code(GUEST_AGENT) as raised:
        tree_of(Double({}, disabled=("guest-file-open", "guest-file-read")))
    assert f"{raised.value.code}: {raised.value.message}" == provoked("libvirt", "LK628")[1]
    assert "block-rpcs" in raised.value.remedy


@pytest.mark.parametrize("command", COMMANDS)
def test_an_agent_that_goes_away_at_any_command_is_an_error(command: str) -> None:
    double = Double({"/sys/a": b"1"})

    def send(text: str) -> str:
        if json.loads(text)["execute"] == command:
            raise LibvirtFailure("Guest agent is not responding: QEMU guest agent is not connected", 86)
        return double(text)

    with raises_code(GUEST_AGENT) as raised:
        tree_of(send).read("sys/a")
    assert f"{raised.value.code}: {raised.value.message}" == provoked("libvirt", "LK628")[0]


@pytest.mark.parametrize(
    "reply",
    ["", "nonsense", "[]", "{}", '{"return": 1, "return": 2}', '{"return": ' + "[" * 100000, '{"return": {}}x'],
)
def test_a_guest_that_answers_nonsense_is_an_error(reply: str) -> None:
    with raises_code(GUEST_AGENT):
        tree_of(lambda _: reply)


@pytest.mark.parametrize("content", [None, 5, "%%%", {"a": 1}])
def test_content_that_is_no_base64_is_an_error(content: object) -> None:
    double = Double({"/sys/a": b"1"})

    def send(text: str) -> str:
        if json.loads(text)["execute"] == "guest-file-read":
            return json.dumps({"return": {"count": 1, "buf-b64": content}})
        return double(text)

    with raises_code(GUEST_AGENT):
        tree_of(send).read("sys/a")


def test_no_more_is_taken_than_was_asked_for() -> None:
    double = Double({"/sys/a": b"1"})

    def send(text: str) -> str:
        if json.loads(text)["execute"] == "guest-file-read":
            return json.dumps({"return": {"count": 9, "buf-b64": base64.b64encode(b"123456789").decode()}})
        return double(text)

    assert tree_of(send).read("sys/a", 4) == b"1234"
