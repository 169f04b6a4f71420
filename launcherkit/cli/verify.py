"""``launcherkit verify``: whether a running guest has got what its domain promises."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.cli.doctor import print_findings
from launcherkit.doctor.guest_view import check_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.xml import read_document
from launcherkit.errors import NO_RUNNING_DOMAIN
from launcherkit.host.source import open_host
from launcherkit.process.arguments import Options
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
  kubectl exec POD -c compute -- launcherkit verify default_gpu-vm
exit codes: 0 nothing failed, 1 something failed (with --strict: or there is a warning), 69 the agent doesn't answer;
others as usual"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("domain", metavar="DOMAIN", help="the name of the domain")
    options = Options(parser, env)
    options.add("--connect", "URI", "libvirt's connection URI", SYSTEM)
    options.add("--host", "HOST", "a directory with the host's sys/ below it, a snapshot, or none", "/")
    options.switch("--json", "print the findings as JSON")
    options.switch("--strict", "exit with 1 on warnings too")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Ask, print, and return whether anything failed as the exit code."""
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
        findings = check_guest(domain, host, AgentTree(Agent(guest.ask_agent, args.domain)))
    except LibvirtFailure as failure:
        raise went_away(failure) from failure
    finally:
        connection.close()
    return print_findings(args.domain, findings, args, env)
