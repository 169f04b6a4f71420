"""The short-lived process that draws the page: resources, Unhealthy devices with advice, holders, the tree of
``launcherkit topology`` from its own look at the host, and the last changes.

The size of the page is limited, whatever the node has.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from time import process_time
from typing import NamedTuple, cast

from launcherkit.errors import LauncherkitError, counted
from launcherkit.host.kernel import read_kernel
from launcherkit.host.pci_ids import TABLES
from launcherkit.host.tree import DiskTree
from launcherkit.known_problems.checks import Circumstances, Recognised, devices_for_vms, recognise
from launcherkit.show.contents import contents_of
from launcherkit.show.host import topology_of
from launcherkit.show.layout import visible
from launcherkit.show.page import figure, html_of, script, sheet, style
from launcherkit.show.picture import resource
from launcherkit.show.state import Report
from launcherkit.show.topology import HeldDevice, HostTopology, vm_of
from launcherkit_plugin.host.child import answer_with
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.model.device import Reason
from launcherkit_plugin.page.view import NodeChange, NodeView, PageHolder, UnhealthyDevice, load_view
from launcherkit_plugin.telemetry.reporter import USUAL


class Advice(NamedTuple):
    """Advice for the node's operators."""

    text: str
    code: str = ""
    """The code of the error whose page says more."""


ADVICE: Mapping[Reason, Advice] = {
    "gone": Advice("See `dmesg` and the slot; `echo 1 > /sys/bus/pci/rescan` looks for it again.", "LK203"),
    "driver": Advice("Bind it to vfio-pci: `bind: true` in the rule, or `launcherkit-plugin bind`.", "LK204"),
    "no-group": Advice("Turn the IOMMU on, in the firmware and on the kernel's command line.", "LK210"),
    "not-viable": Advice("Bind all of its IOMMU group to vfio-pci, or choose a slot with a group of its own.", "LK204"),
    "node": Advice("Load vfio-pci: `modprobe vfio-pci`. In a pod, mount /dev/vfio.", "LK205"),
    "config-space": Advice("Reset the card or turn the machine's power off and on; see `dmesg` for why.", "LK208"),
    "asleep": Advice("Set `d3cold_allowed` to 0 and `power/control` to on, for all of its group.", "LK207"),
    "group-in-use": Advice("Nothing: it is available again when that pod has ended.", "LK714"),
    "other-use": Advice("Nothing: it is available again when its other use has ended.", "LK843"),
    "other-type": Advice("Nothing: it is available again when the vGPUs of the other type are gone."),
    "no-room": Advice("Nothing: it is available again when vGPUs of that card are gone."),
    "kept": Advice("Nothing: the VM that had it may have it again. Remove its record to free it before.", "LK761"),
    "usage": Advice("Nothing, for some seconds. If it stays, see whether the kubelet's PodResources can be read."),
    "failed": Advice("See the plugin's log: it has each attempt, with its error and the remedy."),
    "cleaning": Advice("Nothing, if it is clean soon; if that fails, mend what the text says.", "LK755"),
    "quarantined": Advice("See `dmesg`; take it off the bus and scan again, or reboot.", "LK756"),
    "xid": Advice("See `dmesg`; reset the card or reboot, then let the plugin's pod start anew.", "LK794"),
    "fabric": Advice("See /var/log/fabricmanager.log, and what the text says of Fabric Manager.", "LK784"),
}
"""The advice for each reason."""


MAX_UNHEALTHY, MAX_BUSY, MAX_HELD = 100, 200, 300
"""The most rows of each kind."""
PAGE_BYTES = 290_000
"""The most bytes of the page. If there is no room for the tree, the page names the command that draws it."""
POLICY = (
    "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def draw_page(view: NodeView, topology: HostTopology | None, problems: Sequence[Recognised] = ()) -> tuple[str, str]:
    """Content-Security-Policy and HTML of the page.

    Args:
        view: what the daemon knows.
        topology: of the host; None if it can't be read.
        problems: known ones of this kernel and these devices.
    """
    title = f"{visible(view.node)}: devices for guests"
    css, code = style() + resource("page.css", __file__), script() + resource("page.js", __file__)
    summary = _summary(view)
    first = "\n".join(
        (
            f"<header><h1>{html_of(view.node)}</h1>",
            f'<p id="live" role="status">as of {_time(view.made)}</p></header>',
            f'<main data-version="{escape(view.version)}" data-summary="{escape(summary)}">',
            *_section("resources", "Resources", _resources(view)),
            *_section("unhealthy", "Unhealthy", _unhealthy(view.unhealthy)),
            *(_section("known-problems", "Known problems", _known(problems)) if problems else ()),
        )
    )
    last = "\n".join(
        (
            *_section("held", "Who holds what", _held(view)),
            *_section("changes", "Last changes", _changes(view.changes)),
            "</main>",
            f"<script>{code}</script>",
        )
    )
    room = PAGE_BYTES - len((first + last + css).encode("utf-8", "backslashreplace"))
    body = "\n".join((first, *_section("host", "The host", _host(view, topology, room)), last))
    text = sheet(title, css, body).replace("</head>", '<link rel="icon" href="data:,"/></head>', 1)
    return POLICY.format(_hash(css), _hash(code)), text


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _summary(view: NodeView) -> str:
    bad = sum(each.reason not in USUAL for each in view.unhealthy)
    return f"{counted(sum(view.counts.values()), 'device')}, {bad} Unhealthy, {len(view.held)} held"


def _section(name: str, title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    yield from lines
    yield "</section>"


def _time(when: float) -> str:
    moment = datetime.fromtimestamp(when, UTC)
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'


def _resources(view: NodeView) -> Iterator[str]:
    if not view.counts:
        yield '<p class="none">Nothing is advertised.</p>'
        return
    bad = Counter(each.resource for each in view.unhealthy if each.reason not in USUAL)
    held = Counter(each.resource for each in view.held)
    yield '<ul class="cards">'
    for name, number in sorted(view.counts.items()):
        texts = [f"<b>{number}</b> {'device' if number == 1 else 'devices'}", f"<b>{held[name]}</b> held"]
        texts.append(f'<b class="bad">{bad[name]} Unhealthy</b>' if bad[name] else '<span class="good">all well</span>')
        kind = "trouble" if bad[name] else "well"
        yield f'<li class="{kind}"><h3>{html_of(name)}</h3><p>{" · ".join(texts)}</p></li>'
    yield "</ul>"


def _unhealthy(them: Sequence[UnhealthyDevice]) -> Iterator[str]:
    bad = [device for device in them if device.reason not in USUAL]
    busy = [device for device in them if device.reason in USUAL]
    if not bad:
        yield '<p class="none">Nothing is Unhealthy.</p>'
    for reason, alike in groupby(sorted(bad, key=_reason)[:MAX_UNHEALTHY], _reason):
        yield from _trouble(ADVICE[cast(Reason, reason)], reason, list(alike))
    yield from _more(len(bad) - MAX_UNHEALTHY)
    if busy:
        label = f"{counted(len(busy), 'device')} can't be allocated now, because others are in use"
        yield f'<details><summary><span class="label">{label}</span></summary><ul>'
        yield from (f"<li>{html_of(device.text)}</li>" for device in busy[:MAX_BUSY])
        yield "</ul>"
        yield from _more(len(busy) - MAX_BUSY)
        yield "</details>"


def _known(problems: Sequence[Recognised]) -> Iterator[str]:
    for match in problems:
        yield f'<article class="trouble" tabindex="0"><h3>{html_of(match.problem.id)}</h3>'
        yield f'<p>{_code(match.text)}</p><p class="todo">{_code(match.problem.remedy)}</p></article>'


def _reason(device: UnhealthyDevice) -> str:
    return device.reason


def _trouble(advice: Advice, reason: str, devices: Sequence[UnhealthyDevice]) -> Iterator[str]:
    """What is wrong with several devices, with the advice once."""
    code = f'<span class="badge bad">{advice.code}</span> ' if advice.code else ""
    more = f" <code>launcherkit explain {advice.code}</code> says more." if advice.code else ""
    number = f", {len(devices)} devices" if devices[1:] else ""
    yield f'<article class="trouble" tabindex="0"><h3>{code}<span class="bad">{html_of(reason)}</span>{number}</h3>'
    yield f'<p class="todo">{_code(advice.text)}{more}</p><ul>'
    for device in devices:
        facts = f'<span class="facts">{html_of(device.resource)} since {_time(device.since)}</span>'
        yield f'<li><span class="label">{html_of(device.device)}</span> {facts}: {html_of(device.text)}</li>'
    yield "</ul></article>"


def _code(text: str) -> str:
    """HTML of a text, with ``code`` elements for parts between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(parts))


def _more(number: int) -> Iterator[str]:
    if number > 0:
        yield f"<p>And {number} more.</p>"


def _held(view: NodeView) -> Iterator[str]:
    if view.source == "none":
        yield "<p>It isn't known: the kubelet's PodResources can't be read, nor its checkpoint.</p>"
    if not view.held:
        yield '<p class="none">Nobody holds anything.</p>' if view.source != "none" else ""
        return
    yield (
        '<table><thead><tr><th scope="col">Device</th><th scope="col">VM</th><th scope="col">Pod or claim</th>'
        '<th scope="col">Container</th><th scope="col">Resource</th></tr></thead><tbody>'
    )
    for device in view.held[:MAX_HELD]:
        cells = (vm_of(device.pod) or "", _who(device), device.container, device.resource)  # their names are in STYLE
        rest = "".join(f"<td>{html_of(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row" class="label">{html_of(device.device)}</th>{rest}</tr>'
    yield "</tbody></table>"
    yield from _more(len(view.held) - MAX_HELD)


def _who(held: PageHolder) -> str:
    return f"ResourceClaim {held.claim}" if held.claim else held.pod or "a pod that is being started"


def _host(view: NodeView, topology: HostTopology | None, room: int) -> Iterator[str]:
    if topology is None:
        yield "<p>It can't be read: the files of a device in sysfs hang, or are not there.</p>"
        return
    contents = contents_of(_with_holders(topology, view), _reports(view.unhealthy))
    text = figure(contents, f"devices of {visible(view.node)}")
    if len(text.encode("utf-8", "backslashreplace")) > room:
        yield "<p>It has too much to be drawn here; <code>launcherkit topology</code> draws it on the node.</p>"
        return
    yield text


def _reports(them: Iterable[UnhealthyDevice]) -> Mapping[str, Report]:
    return {each.device: Report("kept" if each.reason in USUAL else "unhealthy", each.text) for each in them}


def _with_holders(topology: HostTopology, view: NodeView) -> HostTopology:
    """The topology with the holders of devices; device IDs are addresses or UUIDs, as the topology needs them."""
    if view.source == "none":
        return topology
    them = (
        HeldDevice(device.device, device.resource, _pod(device), device.container, device.claim, vm_of(device.pod))
        for device in view.held
    )
    return replace(topology, held=tuple(them))


def _pod(held: PageHolder) -> str:
    return "" if held.claim else held.pod or "that is being started"


def _changes(changes: Sequence[NodeChange]) -> Iterator[str]:
    if not changes:
        yield '<p class="none">None since the daemon started.</p>'
        return
    tones: Mapping[str, str] = {"Warning": "bad", "Normal": "good"}
    yield "<ol>"
    for change in changes:
        badge = f'<span class="badge {tones[change.type]}">{html_of(change.reason)}</span>'
        yield f"<li>{_time(change.when)} {badge} {html_of(change.text)}</li>"
    yield "</ol>"


def drawn(question: bytes) -> bytes:
    """The answer to a view: a line with the seconds of CPU time, one with the Content-Security-Policy, and the page."""
    view = load_view(question)
    policy, text = draw_page(view, *(_look(view.host) if view.host else (None,)))
    return f"{process_time()}\n{policy}\n{text}".encode("utf-8", "backslashreplace")


def _look(root: str) -> tuple[HostTopology | None, Sequence[Recognised]]:
    """The host as it is now, and what is known to break it."""
    try:
        host = node_host(root)
        facts = host.scan()._replace(recorded=host.recorded)
    except LauncherkitError:  # the page still shows what the daemon knows
        return None, ()
    kernel = None
    if not host.recorded:
        with DiskTree(root, strict=False) as tree:
            kernel = read_kernel(tree)
    here = Circumstances({} if kernel is None else {"Linux": kernel}, facts, devices_for_vms(facts))
    problems = [match for match in recognise(here) if match.certain]
    return topology_of(facts, TABLES, every=False), problems


if __name__ == "__main__":
    answer_with(drawn)
