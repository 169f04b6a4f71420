"""What a hook over gRPC does with one call: the translation, its messages, and what a failure says to the caller.

The one core of the sidecar and the domain hook. No I/O but reading the host and telling on stderr.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from grpclib import GRPCError, Status

from launcherkit.errors import LauncherkitError
from launcherkit.pipeline import translate
from launcherkit.process.edge import LOG_FORMAT, tell
from launcherkit.rpc.refusal import refusal
from launcherkit.sources.layer import Layer
from launcherkit.sources.settings import host_of, resolve_policy
from launcherkit.sources.vmi import read_vmi


@dataclass(frozen=True, slots=True)
class HookSettings:
    """What the command line and the environment decide for every call."""

    env: Mapping[str, str]
    flags: Layer
    host: str | None = None
    policy_file: str | None = None


def complete_domain(domain_xml: bytes, vmi_json: bytes, settings: HookSettings) -> bytes:
    """The domain with its devices; notes and errors are told on stderr, with the VMI's name before them.

    Args:
        domain_xml: the domain as the launcher is going to define it.
        vmi_json: the whole VirtualMachineInstance; empty where the caller has none.
        settings: the host is opened, and a policy file is read, for each call: both may change between calls.

    Raises:
        GRPCError: what is wrong, as the lines that the command line would print, on one line.
    """
    env = settings.env
    try:
        vmi = read_vmi(vmi_json) if vmi_json else None
        policy = resolve_policy(settings.flags, env, vmi, settings.policy_file)
        # A sidecar's environment has none of the variables of E1 (Q2); where an integrator passes them on, they count.
        host = host_of(settings.host, env, policy)
        translation = translate(domain_xml, env=env, host=host, vmi=vmi, policy=policy)
    except LauncherkitError as error:
        name = name_of_vmi(vmi_json)
        for leaf in error.leaves():
            _tell_error(leaf, name, env)
        raise refusal(error) from error
    except Exception as bug:
        tell("error", f"{name_of_vmi(vmi_json)}: internal error: {type(bug).__name__}: {bug}", env)
        if env.get("LAUNCHERKIT_DEBUG"):
            for line in traceback.format_exc().splitlines():
                tell("debug", line, env)
        raise GRPCError(
            Status.INTERNAL, f"internal error in launcherkit: {type(bug).__name__}; its log has more"
        ) from bug
    for note in translation.notes:
        tell("note", f"{name_of_vmi(vmi_json)}: {note.text}", env, topic=note.topic)
    return translation.domain_xml


def _tell_error(error: LauncherkitError, name: str, env: Mapping[str, str]) -> None:
    text = f"{name}: {error.message}"
    if env.get(LOG_FORMAT) == "json":
        tell("error", text, env, code=error.code, help=error.remedy, **error.facts)
    else:
        tell(f"error[{error.code}]", text, env)
        tell("help", error.remedy, env)


def name_of_vmi(vmi_json: bytes) -> str:
    """``namespace/name`` for the log; read only where there is something to tell."""
    try:
        metadata = json.loads(vmi_json)["metadata"]
        return f"{metadata.get('namespace', 'default')}/{metadata['name']}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "a VMI with no name"
