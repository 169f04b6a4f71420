"""``launcherkit-plugin webhook``: adds containers to pods, in clusters without mutating admission policies."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from launcherkit_plugin.cli.options import number_from, plugin_options

_FOLDER = "/etc/launcherkit-webhook"

DESCRIPTION = """\
Answer the API server's admission reviews of pods: add the hook's container to KubeVirt's launcher pods that ask for
devices, and whatever else the injections add. It is for clusters before Kubernetes 1.34; on newer ones admission
policies do the same without a server. It has no credentials and calls no other service. It runs until SIGTERM."""

EPILOG = """\
examples:
  launcherkit-plugin webhook
  launcherkit-plugin webhook --injections injections --parameters parameters --certificate tls.crt --key tls.key

The ConfigMap of an injection is a folder of its name in --parameters; a change of it, or of the certificate, takes
effect at once. The API server sends its reviews to /NAME, with the injection's name."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    options = plugin_options(parser, env)
    options.add("--injections", "DIR", "a file for each injection, *.yaml", f"{_FOLDER}/injections")
    options.add("--parameters", "DIR", "a folder for each injection's parameters", f"{_FOLDER}/parameters")
    options.add("--certificate", "FILE", "the server's certificate, PEM", f"{_FOLDER}/tls/tls.crt")
    options.add("--key", "FILE", "its key, PEM", f"{_FOLDER}/tls/tls.key")
    options.add("--client-ca", "FILE", "answer only clients with a certificate by this authority, PEM", "")
    options.add("--https-port", "N", "where to listen, on every address", 8443, read=_port)


def _port(text: str) -> int:
    return number_from(text, 0, 65535)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve until SIGTERM.

    Raises:
        BAD_INJECTIONS, BAD_CERTIFICATE, NO_WEBHOOK_PORT, UnreadableFile: it can't start.
    """
    from launcherkit.process.stopping import serve_until_stopped
    from launcherkit_plugin.telemetry.reporter import Lines
    from launcherkit_plugin.webhook.injection import read_injections
    from launcherkit_plugin.webhook.server import Answers, serving
    from launcherkit_plugin.webhook.tls import Certificate

    log = Lines(env, time.time)
    answers = Answers(read_injections(Path(args.injections)), Path(args.parameters), log)
    client_ca = Path(args.client_ca) if args.client_ca else None
    certificate = Certificate(Path(args.certificate), Path(args.key), client_ca, log)
    asyncio.run(serve_until_stopped(serving(args.https_port, certificate, answers)))
    return 0
