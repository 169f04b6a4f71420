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
from time import process_time
from typing import NamedTuple, cast

from launcherkit.errors import LauncherkitError, counted
from launcherkit.host.pci_ids import PATHS
from launcherkit.show.host import topology_of
from launcherkit.show.layout import visible
from launcherkit.show.outline import outline
from launcherkit.show.page import PAPER, TREE_STYLE, sheet, tree
from launcherkit.show.topology import HeldDevice, HostTopology, vm_of
from launcherkit_plugin.host.child import answer_with
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.model.device import Reason
from launcherkit_plugin.page.view import NodeChange, NodeView, PageHolder, UnhealthyDevice, load_view
from launcherkit_plugin.telemetry.reporter import USUAL

STYLE = (
    TREE_STYLE
    + """
*{box-sizing:border-box}
body{margin:0 auto;max-width:82rem;padding:0 1.25rem 3rem;background:var(--back);color:var(--text);
font:15px/1.55 system-ui,sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem 1.2rem;padding:1.2rem 0 .8rem;margin-bottom:1rem;
border-bottom:1px solid var(--line);position:sticky;top:0;background:var(--back)}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.6rem 0 .6rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
#live{margin:0;color:var(--dim)}#live.good{color:var(--good)}#live.odd{color:var(--odd)}#live.bad{color:var(--bad)}
#live::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;background:currentColor;
margin-right:.5em}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.7rem;padding:0;margin:0;
list-style:none}
.cards li,article{border:1px solid var(--line);border-left:4px solid var(--good);border-radius:6px;
padding:.6rem .9rem;break-inside:avoid}
.cards p,article p{margin:.2rem 0 0}
.cards .trouble,article.trouble{border-left-color:var(--bad)}article{margin:.5rem 0}
.label,code,time{font-family:ui-monospace,monospace;font-size:.93em}.facts{color:var(--dim)}.none{color:var(--dim);margin:0}
.todo::before{content:"To do: ";font-weight:600}
#host>details{margin-left:0}#host .node>summary{font-size:1rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .8rem .35rem 0;vertical-align:top;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}thead th{color:var(--dim);font-weight:600}
tbody th{font-weight:400;white-space:nowrap}
#changes ol{padding:0;margin:0;list-style:none}#changes li{padding:.3rem 0;overflow-wrap:anywhere}
#changes time{color:var(--dim);margin-right:.6em}#changes .badge{margin-right:.6em}
@media (max-width:40rem){body{padding:0 .8rem 2rem}thead{display:none}tr{display:block;padding:.4rem 0;
border-bottom:1px solid var(--line)}td,tbody th{display:block;border:0;padding:.05rem 0}
td:empty{display:none}td::before{color:var(--dim)}td:nth-child(2)::before{content:"VM: "}
td:nth-child(3)::before{content:"Pod or claim: "}td:nth-child(4)::before{content:"Container: "}
td:nth-child(5)::before{content:"Resource: "}}
@media print{header{position:static}#live::before{display:none}}
"""
)

SCRIPT = """
"use strict";
(() => {
const live = document.getElementById("live");
const main = () => document.querySelector("main");
function key(e) {
  const names = [];
  for (let at = e; at; at = at.parentElement.closest("details, section"))
    names.push(at.id || (at.querySelector(".label") || at).textContent);
  return names.join("/");
}
const all = (e, what) => [...e.querySelectorAll(what)];
let wanted = "", busy = false;
function say(tone, text) {
  live.className = tone;
  if (live.textContent !== text) live.textContent = text;
}
function put(page) {
  const old = main(), fresh = document.adoptNode(page.querySelector("main"));
  const open = new Map(all(old, "details").map(e => [key(e), e.open]));
  for (const e of all(fresh, "details")) if (open.has(key(e))) e.open = open.get(key(e));
  const at = old.contains(document.activeElement) ? document.activeElement : null;
  const reachable = "summary,[tabindex]";
  const name = at && key(at), tag = at && at.tagName, place = at && at.closest("section").id;
  old.replaceWith(fresh);
  document.title = page.title;
  if (at) {
    const there = document.getElementById(place);
    const same = there && all(there, reachable).find(e => e.tagName === tag && key(e) === name);
    (same || there || fresh).focus({preventScroll: true});
  }
}
async function renew() {
  if (busy) return;
  busy = true;
  try {
    while (main().dataset.version !== wanted) {
      const answer = await fetch(location.pathname, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status + " " + answer.statusText);
      put(new DOMParser().parseFromString(await answer.text(), "text/html"));
      // The server keeps a drawing for a second.
      if (main().dataset.version !== wanted) await new Promise(later => setTimeout(later, 250));
    }
    say("good", "live: " + main().dataset.summary);
  } catch (problem) {
    say("bad", "not live: " + problem.message);
    setTimeout(renew, 2000);
  } finally {
    busy = false;
  }
}
function listen() {
  const source = new EventSource("events");
  source.onmessage = event => { wanted = event.data; renew(); };
  source.onerror = () => {
    say("odd", "the connection is lost; trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}
listen();
})();
"""


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


def draw_page(view: NodeView, topology: HostTopology | None) -> tuple[str, str]:
    """Content-Security-Policy and HTML of the page.

    Args:
        view: what the daemon knows.
        topology: of the host; None if it can't be read.
    """
    title = f"{visible(view.node)}: devices for guests"
    style = PAPER + STYLE
    summary = _summary(view)
    first = "\n".join(
        (
            f"<header><h1>{_text(view.node)}</h1>",
            f'<p id="live" role="status">as of {_time(view.made)}</p></header>',
            f'<main data-version="{escape(view.version)}" data-summary="{escape(summary)}">',
            *_section("resources", "Resources", _resources(view)),
            *_section("unhealthy", "Unhealthy", _unhealthy(view.unhealthy)),
            *_section("held", "Who holds what", _held(view)),
        )
    )
    last = "\n".join(
        (*_section("changes", "Last changes", _changes(view.changes)), "</main>", f"<script>{SCRIPT}</script>")
    )
    room = PAGE_BYTES - len((first + last + style).encode("utf-8", "backslashreplace"))
    body = "\n".join((first, *_section("host", "The host", _host(view, topology, room)), last))
    text = sheet(title, style, body).replace("</head>", '<link rel="icon" href="data:,"/></head>', 1)
    return POLICY.format(_hash(style), _hash(SCRIPT)), text


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


def _text(text: str) -> str:
    return escape(visible(text))


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
        yield f'<li class="{"trouble" if bad[name] else "well"}"><h3>{_text(name)}</h3><p>{" · ".join(texts)}</p></li>'
    yield "</ul>"


def _unhealthy(them: Sequence[UnhealthyDevice]) -> Iterator[str]:
    bad = [device for device in them if device.reason not in USUAL]
    busy = [device for device in them if device.reason in USUAL]
    if not bad:
        yield '<p class="none">Nothing is Unhealthy.</p>'
    for device in bad[:MAX_UNHEALTHY]:
        advice = ADVICE[cast(Reason, device.reason)]
        code = f' <span class="badge bad">{advice.code}</span>' if advice.code else ""
        more = f" <code>launcherkit explain {advice.code}</code> says more." if advice.code else ""
        yield (
            f'<article class="trouble" tabindex="0"><h3 class="label">{_text(device.device)}</h3>'
            f'<p class="facts">{_text(device.resource)}{code} <span class="bad">{_text(device.reason)}</span> '
            f"since {_time(device.since)}</p><p>{_text(device.text)}</p>"
            f'<p class="todo">{_code(advice.text)}{more}</p></article>'
        )
    yield from _more(len(bad) - MAX_UNHEALTHY)
    if busy:
        label = f"{counted(len(busy), 'device')} can't be allocated now, because others are in use"
        yield f'<details><summary><span class="label">{label}</span></summary><ul>'
        yield from (f"<li>{_text(device.text)}</li>" for device in busy[:MAX_BUSY])
        yield "</ul>"
        yield from _more(len(busy) - MAX_BUSY)
        yield "</details>"


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
        rest = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row" class="label">{_text(device.device)}</th>{rest}</tr>'
    yield "</tbody></table>"
    yield from _more(len(view.held) - MAX_HELD)


def _who(held: PageHolder) -> str:
    return f"ResourceClaim {held.claim}" if held.claim else held.pod or "a pod that is being started"


def _host(view: NodeView, topology: HostTopology | None, room: int) -> Iterator[str]:
    if topology is None:
        yield "<p>It can't be read: the files of a device in sysfs hang, or are not there.</p>"
        return
    text = tree(outline(_with_holders(topology, view.held)))
    if len(text.encode("utf-8", "backslashreplace")) > room:
        yield "<p>It has too much to be drawn here; <code>launcherkit topology</code> draws it on the node.</p>"
        return
    yield text


def _with_holders(topology: HostTopology, held: Iterable[PageHolder]) -> HostTopology:
    """The topology with the holders of devices; device IDs are addresses or UUIDs, as the topology needs them."""
    them = (
        HeldDevice(device.device, device.resource, _pod(device), device.container, device.claim, vm_of(device.pod))
        for device in held
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
        badge = f'<span class="badge {tones[change.type]}">{_text(change.reason)}</span>'
        yield f"<li>{_time(change.when)} {badge} {_text(change.text)}</li>"
    yield "</ol>"


def drawn(question: bytes) -> bytes:
    """The answer to a view: a line with the seconds of CPU time, one with the Content-Security-Policy, and the page."""
    view = load_view(question)
    policy, text = draw_page(view, _topology(view.host) if view.host else None)
    return f"{process_time()}\n{policy}\n{text}".encode("utf-8", "backslashreplace")


def _topology(root: str) -> HostTopology | None:
    try:
        host = node_host(root)
        return topology_of(host.scan()._replace(recorded=host.recorded), PATHS, every=False)
    except LauncherkitError:  # the page still shows what the daemon knows
        return None


if __name__ == "__main__":
    answer_with(drawn)
