"""``launcherkit verify``: whether a running guest has got what its domain promises."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from launcherkit.atomic import write_atomically
from launcherkit.cli.doctor import print_findings
from launcherkit.doctor.finding import Finding, is_bad
from launcherkit.doctor.guest_report import condition_patch, series
from launcherkit.doctor.guest_view import check_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.xml import read_document
from launcherkit.errors import NO_RUNNING_DOMAIN
from launcherkit.host.source import open_host
from launcherkit.inputs import vmi_document
from launcherkit.process.arguments import Options
from launcherkit.process.edge import write_stdout
from launcherkit.request.vmi import parse_vmi
from launcherkit.run.agent import Agent, AgentTree
from launcherkit.run.connection import SYSTEM, LibvirtFailure, connect
from launcherkit.run.libvirt_errors import went_away

DESCRIPTION = """\
Ask a running guest what it got, by QEMU's guest agent, and hold that against its domain and this host: each device in
its place and of the same model, its NUMA node, the size of its BARs, the width of its link, and its driver. Only files
of the guest's /sys are read, so a Linux guest is needed whose agent may read files."""

EPILOG = """\
examples:
  launcherkit verify gpu-vm
  launcherkit verify default_gpu-vm --connect qemu:///session --json
  launcherkit verify gpu-vm --prometheus /var/lib/prometheus/node-exporter/gpu-vm.prom
  kubectl exec POD -c compute -- launcherkit verify default_gpu-vm
exit codes: 0 nothing failed, 1 something failed (with --strict: or there is a warning), 69 the agent doesn't answer;
others as usual"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("domain", metavar="DOMAIN", help="the name of the domain")
    options = Options(parser, env)
    options.add("--connect", "URI", "libvirt's connection URI", SYSTEM)
    options.add("--host", "HOST", "a directory with the host's sys/ below it, a snapshot, or none", "/")
    options.add("--prometheus", "FILE", "write the findings there too, for the textfile collector of node-exporter")
    form = parser.add_mutually_exclusive_group()
    Options(form, env).switch("--json", "print the findings as JSON")
    Options(form, env).add(
        "--condition",
        "VMI",
        "print a JSON patch that adds the result to the conditions of this VMI: a file by `kubectl get vmi NAME -o "
        "json`; - reads standard input",
    )
    options.switch("--strict", "exit with 1 on warnings too")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Ask, print, and return whether anything failed as the exit code."""
    vmi = vmi_document(args.condition) if args.condition else None
    if isinstance(vmi, bytes):
        vmi = parse_vmi(vmi, args.condition)
    findings = _findings(args)
    if args.prometheus:
        write_atomically(args.prometheus, series(args.domain, findings).encode())
    if vmi is None:
        return print_findings(args.domain, findings, args, env)
    patch = condition_patch(vmi, findings, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    write_stdout((json.dumps(patch, indent=2) + "\n").encode())
    return 1 if is_bad(findings, strict=args.strict) else 0


def _findings(args: argparse.Namespace) -> Sequence[Finding]:
    host = open_host(args.host).scan()
    connection = connect(args.connect)
    try:
        guest = connection.find(args.domain)
        if guest is None or not guest.is_active():
            raise NO_RUNNING_DOMAIN(
                f"no domain {args.domain} is running",
                "`virsh list` shows those that are; KubeVirt names one NAMESPACE_VM.",
                domain=args.domain,
            )
        domain = read_facts(read_document(guest.running_xml()).root, args.domain)
        return check_guest(domain, host, AgentTree(Agent(guest.ask_agent, args.domain)))
    except LibvirtFailure as failure:
        raise went_away(failure) from failure
    finally:
        connection.close()
