"""``launcherkit-plugin probe``: asks the daemon whether it is alive or ready; the kubelet runs it as an exec probe."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping

from launcherkit.process.edge import write_stdout
from launcherkit_plugin.cli.options import plugin_options, variable_of
from launcherkit_plugin.model.errors import NO_PROBE_SOCKET

_SECONDS = 5.0
_ANSWER_BYTES = 64 * 1024

DESCRIPTION = """\
Ask the daemon at its probe socket whether it is alive (healthz) or ready (readyz), and print the answer. For the
probes of its container: other pods can't flood a unix socket."""

EPILOG = """\
examples:
  launcherkit-plugin probe readyz --probe-socket /run/launcherkit-probe/probe.sock
exit codes: 0 yes, 1 no, 69 no answer"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what", choices=("healthz", "readyz"), metavar="healthz|readyz", help="whether it is alive, or ready"
    )
    plugin_options(parser, env).add("--probe-socket", "SOCKET", "the daemon's, as given to serve")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Ask the daemon, and print its answer.

    Raises:
        NO_PROBE_SOCKET: nobody answers.
    """
    if not args.probe_socket:
        args.usage_error(f"give --probe-socket SOCKET, or the variable {variable_of('--probe-socket')}")
    try:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.settimeout(_SECONDS)
            daemon.connect(args.probe_socket)
            daemon.sendall(f"GET /{args.what} HTTP/1.0\r\n\r\n".encode())
            answer = b""
            while len(answer) < _ANSWER_BYTES and (part := daemon.recv(4096)):
                answer += part
    except OSError as problem:
        raise NO_PROBE_SOCKET(
            f"--probe-socket {args.probe_socket}: {problem.strerror or problem}",
            "Start `launcherkit-plugin serve` with the same --probe-socket.",
            file=args.probe_socket,
            key="--probe-socket",
        ) from problem
    head, _, body = answer.partition(b"\r\n\r\n")
    write_stdout(body)
    return 0 if head.split(b" ")[1:2] == [b"200"] else 1
