"""Files of a running guest, read through QEMU's guest agent.

The commands are those of QEMU's ``docs/interop/qemu-ga-ref``; only ``guest-info``, ``guest-file-open``,
``guest-file-read`` and ``guest-file-close`` are sent, so nothing in the guest is changed or started.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable

from launcherkit.errors import GUEST_AGENT, UNREADABLE_FILE, LauncherkitError
from launcherkit.host.tree import PAGE
from launcherkit.request.fields import strict_json
from launcherkit.run.connection import LibvirtFailure

_NEEDED = ("guest-file-open", "guest-file-read", "guest-file-close")
_ABSENT = ("No such file or directory", "No such device", "Not a directory")
"""The ends of the agent's messages where there is no such file: ``strerror`` in the C locale, as services have it."""
_MAX_REPLY = 1 << 20
"""Of a reply, in characters: the guest is somebody else's."""


class Agent:
    """A guest's agent that may read files.

    Args:
        send: sends a command and returns the reply, both JSON; raises `LibvirtFailure`.
        domain: the guest's name, for messages.

    Raises:
        GUEST_AGENT: it doesn't answer, answers nonsense, or isn't allowed to read files.
    """

    def __init__(self, send: Callable[[str], str], domain: str) -> None:
        self._send, self._domain = send, domain
        about = self._ask("guest-info")
        commands = about.get("supported_commands") if isinstance(about, dict) else None
        allowed = {each.get("name") for each in _objects(commands) if each.get("enabled") is True}
        refused = [command for command in _NEEDED if command not in allowed]
        if refused:
            raise self._error(
                f"may not {', '.join(refused)}",
                "Take them out of block-rpcs (blacklist in older agents) in the guest's qemu-ga configuration, or add "
                "them to allow-rpcs, and start the agent again.",
            )

    def open(self, path: str) -> object | None:
        """A handle of a file, given from the root on without a leading slash; None if there is no such file."""
        try:
            return self._ask("guest-file-open", path=f"/{path}", mode="r")
        except LibvirtFailure as refusal:
            if refusal.message.endswith(_ABSENT):
                return None
            message = f"{self._domain}, /{path}: {refusal.message}"
            raise UNREADABLE_FILE(message, "See the log of the guest's agent.", file=f"/{path}") from refusal

    def close(self, handle: object) -> None:
        """Close a file."""
        self._ask("guest-file-close", handle=handle)

    def read(self, handle: object, size: int) -> bytes:
        """The first bytes of a file that has just been opened, at most so many."""
        content = b""
        while len(content) < size:
            reply = self._ask("guest-file-read", handle=handle, count=size - len(content))
            text = reply.get("buf-b64") if isinstance(reply, dict) else None
            try:
                part = base64.b64decode(text if isinstance(text, str) else "!", validate=True)
            except binascii.Error as problem:
                raise self._nonsense("guest-file-read") from problem
            if not part:
                break
            content += part
        return content[:size]

    def _ask(self, command: str, **arguments: object) -> object:
        """The ``return`` of a command.

        Raises:
            LibvirtFailure: the agent refuses it.
        """
        request = {"execute": command} | ({"arguments": arguments} if arguments else {})
        try:
            reply = self._send(json.dumps(request))
        except LibvirtFailure as refusal:
            if command != "guest-file-open" or refusal.no_agent:
                raise self._error(
                    f"does not answer: {refusal.message}",
                    "Install qemu-guest-agent in the guest and start it; the domain needs its channel, "
                    "org.qemu.guest_agent.0, as KubeVirt's domains have it.",
                ) from refusal
            raise
        try:
            answer = strict_json(reply[:_MAX_REPLY])
        except ValueError as problem:
            raise self._nonsense(command) from problem
        if not isinstance(answer, dict) or "return" not in answer:
            raise self._nonsense(command)
        value: object = answer["return"]
        return value

    def _nonsense(self, command: str) -> LauncherkitError:
        return self._error(
            f"answers {command} with what is no answer", "Update qemu-guest-agent in the guest, or start it again."
        )

    def _error(self, fault: str, remedy: str) -> LauncherkitError:
        return GUEST_AGENT(f"the guest agent of {self._domain} {fault}", remedy, domain=self._domain)


class AgentTree:
    """The files of a guest below a folder: a `launcherkit.host.tree.Tree` without links and lists of folders, which the
    agent can't read.
    """

    def __init__(self, agent: Agent, folder: str = "") -> None:
        self._agent, self._folder = agent, folder

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        handle = self._agent.open(self._folder + path)
        if handle is None:
            return None
        try:
            return self._agent.read(handle, offset + limit)[offset:]
        finally:
            self._agent.close(handle)

    def link(self, path: str) -> str | None:  # noqa: ARG002
        return None

    def names(self, path: str) -> list[str]:  # noqa: ARG002
        return []

    def exists(self, path: str) -> bool:
        handle = self._agent.open(self._folder + path)
        if handle is not None:
            self._agent.close(handle)
        return handle is not None

    def below(self, path: str) -> AgentTree:
        return AgentTree(self._agent, f"{self._folder}{path}/")

    def close(self) -> None:
        """No file is left open."""

    def __enter__(self) -> AgentTree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _objects(value: object) -> list[dict[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
