"""The page of a cluster: a tile for each node, with what is free there, and whether a VM would start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.errors import LauncherkitError, counted
from launcherkit.show.page import html_of, sheet, style
from launcherkit.show.picture import marks
from launcherkit.show.state import LOOKS, CardState
from launcherkit_plugin.model.device import Device, Resource, without_replica
from launcherkit_plugin.telemetry.reporter import USUAL

MAX_MARKS = 64
"""The most devices of a resource that have a mark each."""
_STEP = 14
_STYLE = """
.nodes{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),1fr));gap:.5rem;padding:0;
margin:.6rem 0;list-style:none}
.nodes li{border:1px solid var(--line);border-left-width:5px;border-radius:6px;padding:.4rem .7rem;break-inside:avoid;
overflow-wrap:anywhere}
.nodes .starts{border-left-color:var(--good)}.nodes .refuses{border-left-color:var(--bad)}
h2{font-size:1rem;margin:0}h3{font-size:.9rem;font-weight:400;margin:.3rem 0 0}p{margin:.2rem 0}
.good{color:var(--good)}.bad{color:var(--bad)}svg{display:block;max-width:100%;height:auto}svg path{fill:var(--own)}
.keys span{color:var(--own);margin-right:1em}.keys svg{display:inline;vertical-align:-1px}summary{cursor:pointer}
@media print{details::details-content{content-visibility:visible;display:block}}
"""


class ClusterNode(NamedTuple):
    """A node of the cluster."""

    name: str
    resources: Sequence[Resource] = ()
    held: frozenset[str] = frozenset()
    """The IDs of devices that pods have."""
    error: LauncherkitError | None = None
    """Why nothing is known of it."""


def draw_cluster(nodes: Sequence[ClusterNode], rehearsal: Mapping[str, Any] | None) -> str:
    """HTML of the page; it needs no script and nothing from elsewhere.

    Args:
        nodes: of the cluster.
        rehearsal: the document of ``launcherkit rehearse --json`` for a VM on these nodes, if there is one.
    """
    outcomes = {} if rehearsal is None else {outcome["name"]: outcome for outcome in rehearsal["nodes"]}
    totals = Counter(state for node in nodes for states in _states(node).values() for state in states)
    order = sorted(nodes, key=lambda node: not (node.name in outcomes and outcomes[node.name]["starts"]))
    tiles = "".join(line for node in order for line in _tile(node, outcomes.get(node.name)))
    keys = "".join(
        f'<span class="{state}">{_marks([state])} {totals[state]} {LOOKS[state].word}</span> '
        for state in LOOKS
        if totals[state]
    )
    title = f"{counted(len(nodes), 'node')} with devices for guests"
    body = (
        f'<h1>{title}</h1>\n{_verdict(rehearsal, len(nodes))}<p class="keys">{keys}</p>\n<ul class="nodes">{tiles}</ul>'
    )
    return sheet(title, style() + _STYLE, f"<main>{body}</main>")


def _verdict(rehearsal: Mapping[str, Any] | None, number: int) -> str:
    if rehearsal is None:
        return ""
    names = ", ".join(map(html_of, rehearsal["starts"])) or "none"
    tone = "good" if rehearsal["starts"] else "bad"
    started = f"{len(rehearsal['starts'])} of {counted(number, 'node')}"
    return f'<p><b class="{tone}">{html_of(rehearsal["vm"])} starts on {started}</b>: {names}</p>\n'


def _tile(node: ClusterNode, outcome: Mapping[str, Any] | None) -> Iterator[str]:
    kind = "" if outcome is None else ' class="starts"' if outcome["starts"] else ' class="refuses"'
    yield f"<li{kind}><h2>{html_of(node.name)}</h2>"
    if node.error is not None:
        yield f'<p class="bad"><b>{node.error.code}</b> {html_of(node.error.message)}</p></li>'
        return
    if outcome is not None:
        yield from _outcome(outcome)
    if not node.resources:
        yield "<p>Nothing is advertised.</p>"
    for name, states in _states(node).items():
        others = ", ".join(
            f"{states.count(state)} {LOOKS[state].word}" for state in LOOKS if state != "free" and state in states
        )
        counts = f"<b>{states.count('free')} free</b> of {len(states)}" + (f": {others}" if others else "")
        more = f"<p>and {len(states) - MAX_MARKS} more</p>" if states[MAX_MARKS:] else ""
        yield f"<h3>{html_of(name)}</h3>{_marks(states[:MAX_MARKS])}<p>{counts}</p>{more}"
    yield "</li>"


def _outcome(outcome: Mapping[str, Any]) -> Iterator[str]:
    if outcome["starts"]:
        devices = ", ".join(html_of(device["device"]) for device in outcome["allocation"])
        yield f'<p class="good">would start with {devices or "nothing of this node"}</p>'
    if outcome["errors"]:
        codes = ", ".join(dict.fromkeys(html_of(error["code"]) for error in outcome["errors"]))
        yield f'<details><summary class="bad">would not start: {codes}</summary>'
        yield from (
            f"<p><b>{html_of(error['code'])}</b> {html_of(error['message'])}</p>" for error in outcome["errors"]
        )
        yield "</details>"


def _states(node: ClusterNode) -> dict[str, list[CardState]]:
    """The states of a node's devices, by resource. A card is held if somebody has a share of it."""
    held = node.held | frozenset(map(without_replica, node.held))
    return {
        resource.name: sorted((_state(device, held) for device in resource.devices.values()), key=_order)
        for resource in node.resources
    }


def _order(state: CardState) -> tuple[bool, int]:
    """What is free comes first: that is what is looked for."""
    return state != "free", list(LOOKS).index(state)


def _state(device: Device, held: frozenset[str]) -> CardState:
    if device.id in held:
        return "held"
    if device.problem is None:
        return "free"
    return "kept" if device.problem.reason in USUAL else "unhealthy"


def _marks(states: Iterable[CardState]) -> str:
    """A mark for each state, sixteen in a row."""
    places: dict[CardState, list[tuple[float, float]]] = {}
    number = 0
    for number, state in enumerate(states, 1):
        places.setdefault(state, []).append(((number - 1) % 16 * _STEP, (number - 1) // 16 * _STEP))
    across, high = min(number, 16) * _STEP, (number + 15) // 16 * _STEP
    paths = "".join(
        f'<g class="{state}"><title>{LOOKS[state].word}</title>{marks(state, those)}</g>'
        for state, those in places.items()
    )
    size = f'width="{across}" height="{high}" viewBox="0 0 {across} {high}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill-rule="evenodd">{paths}</svg>'
