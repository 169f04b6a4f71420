"""One call of a hook over gRPC: the translation, its messages, and the error that the caller gets.

The sidecar and the domain hook share it. Its only I/O is reading the host and writing to stderr.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from grpclib import GRPCError, Status

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import host_of
from launcherkit.pipeline import translate
from launcherkit.process.edge import print_errors, print_message
from launcherkit.request.policy import Layer, resolve_policy
from launcherkit.request.vmi import read_vmi
from launcherkit.rpc.calls import refusal


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Settings from the command line and the environment, for every call."""

    env: Mapping[str, str]
    flags: Layer
    host: str | None = None
    policy_file: str | None = None


def complete_domain(domain_xml: bytes, vmi_json: bytes, settings: HookSettings) -> bytes:
    """The domain with its devices; notes and errors go to stderr, each after the VMI's name.

    Args:
        domain_xml: the domain as the launcher is going to define it.
        vmi_json: the whole VirtualMachineInstance; empty if the caller has none.
        settings: where the host and the policy file are; both are read for each call, because they may change.

    Raises:
        GRPCError: the lines that the command line would print, joined into one.
    """
    env = settings.env
    try:
        vmi = read_vmi(vmi_json, interfaces=False) if vmi_json else None
        policy = resolve_policy(settings.flags, env, vmi, settings.policy_file)
        # A sidecar's environment has none of the variables of E1 (Q2); if an integrator passes them on, they are used.
        host = host_of(settings.host, env, policy)
        translation = translate(domain_xml, env=env, host=host, vmi=vmi, policy=policy, hook=True)
    except LauncherkitError as error:
        print_errors([*error.leaves()], env, about=name_of_vmi(vmi_json))
        raise refusal(error) from error
    except Exception as bug:
        print_message("error", f"{name_of_vmi(vmi_json)}: internal error: {type(bug).__name__}: {bug}", env)
        if env.get("LAUNCHERKIT_DEBUG"):
            for line in traceback.format_exc().splitlines():
                print_message("debug", line, env)
        raise GRPCError(
            Status.INTERNAL, f"internal error in launcherkit: {type(bug).__name__}; its log has more"
        ) from bug
    for note in translation.notes:
        print_message("note", f"{name_of_vmi(vmi_json)}: {note.text}", env, topic=note.topic)
    return translation.domain_xml


def name_of_vmi(vmi_json: bytes) -> str:
    """``namespace/name`` for the log; called only if there is something to log."""
    try:
        metadata = json.loads(vmi_json)["metadata"]
        return f"{metadata.get('namespace', 'default')}/{metadata['name']}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "a VMI with no name"
