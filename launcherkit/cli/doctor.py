"""``launcherkit doctor``: what would keep a VM from its devices, before it is started."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from launcherkit.choose.migration import Migration
from launcherkit.choose.nodes import cdev_node, group_node
from launcherkit.colour import colours_for
from launcherkit.compatibility import version_of_image
from launcherkit.doctor.facts import Facts, Subject
from launcherkit.doctor.finding import Finding, is_bad, subject_of_addresses, subject_of_host, subject_of_plan
from launcherkit.doctor.gather import gather
from launcherkit.doctor.report import examine, list_checks, report_document, report_text
from launcherkit.domain.guest import read_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.window import read_address_space
from launcherkit.domain.xml import read_document
from launcherkit.errors import EX_USAGE, LauncherkitError, NoSysfs, counted
from launcherkit.host.source import host_of, open_host
from launcherkit.host.vfio import NotAsked, ask_migration
from launcherkit.inputs import STUB_DOMAIN, Inputs, add_input_arguments, read_inputs
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, group_of
from launcherkit.pipeline import KnownHost, Translation
from launcherkit.process.arguments import Options
from launcherkit.process.edge import print_message, stdout_is_terminal, write_stdout
from launcherkit.process.terminal import terminal_columns
from launcherkit.request.environment import Environment

DESCRIPTION = """\
Check what would keep devices from a VM: IOMMU, VFIO modules, IOMMU groups, device nodes and their permissions,
the limit of locked memory, reset, power state, large BARs, versions. With --domain or --vmi, or in a container that
got devices, it checks what that VM needs; without, what this host sets aside for VMs. It only reads, and needs no
privileges; checks that it can't make are skipped, with the reason. Only --ask-devices opens devices."""

EPILOG = """\
examples:
  launcherkit doctor                                              this host, or this container with its devices
  launcherkit doctor --domain vm.xml --vmi vmi.json               what this VM needs
  launcherkit doctor --host host.json                             a snapshot; skips what only the machine itself knows
  launcherkit doctor --json --strict
exit codes: 0 nothing failed, 1 something failed (with --strict: or there is a warning); others as usual"""

_WARNED_OF = {
    "not-asked": "Check that this is the VMI of this pod; if it is, it must ask for them in spec.domain.devices.",
    "instancetype": "Give the VMI, which has them, instead of its VirtualMachine.",
}
"""Topics of notes that mean a guest without its devices, and what to do."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_input_arguments(parser, env, domain_required=False)
    group = parser.add_argument_group("output")
    options = Options(group, env)
    options.switch("--json", "print the findings as JSON")
    options.switch("--strict", "exit with 1 on warnings too")
    group.add_argument(
        "--ask-devices",
        action="store_true",
        help="open each device that nobody uses and ask whether it can migrate; that resets it, so don't while a VM "
        "with it is about to start",
    )
    group.add_argument("--list", action="store_true", help="print the names of the checks and exit")


@dataclass(frozen=True, slots=True)
class _About:
    """The subject of the checks, and what is known of it."""

    name: str
    here: bool
    """It is about this machine, whose devices can be opened."""
    facts: Facts
    findings: tuple[Finding, ...]


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Check, print, and return whether anything failed as the exit code.

    Raises:
        LauncherkitError: an input can't be read; what is wrong with the host or the allocation is a finding.
    """
    if args.list:
        write_stdout(list_checks().encode())
        return 0
    about = _look(args, env)
    if args.ask_devices:
        if not about.here:
            print_message("error", "launcherkit doctor: only this machine's devices can be asked", env)
            print_message("help", "Leave out --ask-devices, or --host.", env)
            return EX_USAGE
        about = replace(about, facts=replace(about.facts, asked=_ask(about.facts)))
    findings = _without_repeats(about.findings, examine(about.facts))
    return print_findings(about.name, findings, args, env)


def print_findings(
    looked_at: str, findings: Sequence[Finding], args: argparse.Namespace, env: Mapping[str, str]
) -> int:
    """Print findings as ``--json`` says, and return whether something is bad, by ``--strict``, as the exit code."""
    bad = is_bad(findings, strict=args.strict)
    if args.json:
        text = json.dumps(report_document(looked_at, findings, bad=bad), indent=2) + "\n"
    else:
        text = report_text(looked_at, findings, colours_for(stdout_is_terminal(), env), terminal_columns(env))
    write_stdout(text.encode("utf-8", "backslashreplace"))
    return 1 if bad else 0


def _ask(facts: Facts) -> dict[HostAddress, Migration]:
    """Ask each device whether it can migrate."""
    answers: dict[HostAddress, Migration] = {}
    for source in facts.subject.attached:
        if isinstance(source, PciAddress | MdevAddress):
            cdev = cdev_node(facts.host.details.get(source)) if isinstance(source, PciAddress) else None
            group = group_node(group_of(source, facts.host))
            try:
                modes = ask_migration(str(source), group=group, cdev=cdev)
            except NotAsked as reason:
                answers[source] = Migration(None, str(reason))
                continue
            said = ("the device itself says so", *(f"with {mode}" for mode in modes or ()))
            answers[source] = Migration(modes is not None, ", ".join(said))
    return answers


def _without_repeats(of_translation: Sequence[Finding], checked: Sequence[Finding]) -> list[Finding]:
    """Both together; an error of the translation is left out if a check reports it in the same words."""
    reported = {each.seen for each in checked if each.status == "fail"}
    kept = [each for each in of_translation if each.seen not in reported]
    if len(kept) < len(of_translation) and not kept:
        kept = [Finding("translation", "", "skipped", "the translation stops at a failure reported below")]
    return [*kept, *checked]


def _look(args: argparse.Namespace, env: Mapping[str, str]) -> _About:
    has_domain = args.domain is not None
    inputs = read_inputs(args, env, None if has_domain else (STUB_DOMAIN, "no domain"))
    document = read_document(inputs.domain_xml, inputs.domain_name)
    root = host_of(args.host, env, inputs.policy).text
    host, findings = _facts(root)
    gathered = gather(root, host, env) if os.path.isdir(root) else None
    environment = Environment(inputs.env, inputs.policy.extra_prefixes)
    place = "this machine" if root == "/" else root
    if gathered is not None and gathered.machine.container:
        place += ", in a container"
    if not has_domain and inputs.vmi is None and not environment.variables:
        return _About(place, root == "/", Facts(host, subject_of_host(host), gathered), findings)

    name, subject, of_vm, translation = _of_vm(inputs, host, environment)
    guest = topology = space = None
    if has_domain:
        translated = document if translation is None else read_document(translation.domain_xml, inputs.domain_name)
        domain = read_facts(translated.root, inputs.domain_name)
        modeless = read_guest(document.root).modeless_hostdevs  # a translation adds the mode
        guest, topology = replace(read_guest(translated.root), modeless_hostdevs=modeless), domain.pci_root
        space = read_address_space(translated.root, None if gathered is None else gathered.libvirt)
    kubevirt = None if inputs.vmi is None else version_of_image(inputs.vmi.launcher_image)
    claims = 0 if inputs.vmi is None else sum(request.dra_claim is not None for request in inputs.vmi.requests)
    facts = Facts(host, subject, gathered, guest, topology, kubevirt, space, claims=claims)
    return _About(f"{place}; {name}", root == "/", facts, (*findings, *of_vm))


def _facts(root: str) -> tuple[HostFacts, tuple[Finding, ...]]:
    """All facts of the host; a host without sysfs is a finding, not the end."""
    try:
        host = open_host(root)
        return host.scan()._replace(recorded=host.recorded), ()
    except NoSysfs as problem:
        return NO_FACTS, (Finding("host-facts", "", "fail", problem.message, problem.remedy),)


def _of_vm(
    inputs: Inputs, facts: HostFacts, environment: Environment
) -> tuple[str, Subject, list[Finding], Translation | None]:
    """Translate, without the check of the nodes, which has its own findings; or report why it fails."""
    policy = inputs.policy._replace(node_check="never")
    domain = read_facts(read_document(inputs.domain_xml, inputs.domain_name).root, inputs.domain_name)
    has_variables = bool(environment.variables or environment.of_networks().variables) or inputs.dra.present()
    nodes_matter = inputs.policy.node_check != "never"
    try:
        translation = replace(inputs, host=KnownHost(facts), policy=policy).translate()
    except LauncherkitError as error:
        findings = [Finding("translation", leaf.code, "fail", leaf.message, leaf.remedy) for leaf in error.leaves()]
        entries = [entry for name in environment.variables for entry in environment.read(name)[0].entries]
        addresses: list[HostAddress] = [*entries, *_claimed(inputs)]
        addresses += [each.source for each in domain.hostdevs if each.source]
        subject = subject_of_addresses(
            addresses, facts, iommufd=domain.asks_for_iommufd, has_variables=has_variables, nodes_matter=nodes_matter
        )
        return f"{inputs.domain_name}, which can't be translated", subject, findings, None
    plan = translation.plan
    subject = subject_of_plan(
        plan, domain_iommufd=bool(domain.iommufd), has_variables=has_variables, nodes_matter=nodes_matter
    )
    text = f"{counted(len(plan.devices), 'device')}, {counted(len(subject.attached), 'hostdev')}"
    doubtful = [note for note in translation.notes if note.topic in _WARNED_OF]
    findings = [Finding("translation", "", "warn", note.text, _WARNED_OF[note.topic]) for note in doubtful]
    findings = findings or [Finding("translation", "", "ok", text)]
    return f"{inputs.domain_name}: {text}", subject, findings, translation


def _claimed(inputs: Inputs) -> Iterator[HostAddress]:
    """The devices of DRA claims, as far as they can be read (E5)."""
    for request in inputs.vmi.requests if inputs.vmi is not None else ():
        if request.dra_claim is not None:
            with suppress(LauncherkitError):
                yield from inputs.dra.read(request).entries
