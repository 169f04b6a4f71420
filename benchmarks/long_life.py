"""A daemon that lives long: 100,000 Allocates and 10,000 claims, with a kubelet that restarts, and what it takes.

The daemon is the plugin and the DRA driver of one node, with cards that are bound already; kubelet, API server and host
are stand-ins. After a tenth of the rounds it is killed, after another tenth it is ended, each time to be started again;
the rest of the rounds is one life. The kubelet restarts after every round. Rounds are compared by thirds of that life.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.dra.manager import FAST
from tests.dra.node import PYTHON, RULE, Node, running_node
from tests.support.hosttree import HostTree

PLAIN = "example.com/PLAIN"


class Sample(NamedTuple):
    """What a daemon takes after a round."""

    memory: float
    """MB of its processes (PSS)."""
    own: float
    """MB of its processes that are of no file: what other programs begin or cease to share with them is no change."""
    handles: int
    """Open files of its processes."""
    files: int
    """On the disk, of the daemon or for it."""
    lines: int
    """Of its log, in this round."""


def main() -> None:
    """Run it, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--allocates", type=int, default=2000, help="a round")
    parser.add_argument("--claims", type=int, default=200, help="a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-") as folder, node(Path(folder)) as place:
        samples = []
        for number, sample in enumerate(rounds(place, args.rounds, args.allocates, args.claims), 1):
            samples.append(sample)
            print(f"{number:4} {_described(sample)}", flush=True)
    for name, part in zip(("first", "second", "last"), thirds(samples), strict=True):
        print(f"{name} third of the last life: {_described(part)}")


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    """A node with two cards for Allocates and two for claims, whose host is a folder."""
    tree = HostTree(folder)
    cards = [f"0000:0{bus}:00" for bus in range(1, 5)]
    for group, card in enumerate(cards, 10):
        tree.card(card, group=group)
    plain, claimed = ([f"{card}.0" for card in some] for some in (cards[:2], cards[2:]))
    with running_node(tree.root, pace=FAST.scaled(8)) as made:
        rules = [
            {**RULE, "select": [{"addresses": claimed}]},
            {"name": PLAIN, "select": [{"addresses": plain}]},
        ]
        made.configure(resources=rules)
        yield made


def rounds(node: Node, count: int, allocates: int, claims: int) -> Iterator[Sample]:
    """Go through so many rounds; ends with a daemon that runs."""
    node.start(program=PYTHON)
    told = 0
    for number in range(count):
        for _ in range(allocates):
            node.kubelet.admit("pod", [("compute", PLAIN, 1)])
            node.kubelet.delete("pod")
        for claim in range(claims):
            name = f"claim-{number}-{claim}"
            node.claim(name)
            pod = node.pod(f"vm-{name}", name)
            node.run(pod)
            node.delete(pod)
            node.api.delete_claim(name)
        node.kubelet.restart()
        node.manager.restart()
        node.kubelet.wait_for(PLAIN)
        node.wait_until_ready()
        assert node.process is not None
        lines = len(node.process.reported().splitlines())
        yield Sample(*_taken(node.process.process.pid), _files(node.folder), lines - told)
        told = lines
        if number + 1 in _restarts(count):
            node.kill() if number + 1 == _restarts(count)[0] else node.end()
            node.start(program=PYTHON)
            node.kubelet.wait_for(PLAIN)
            told = 0


def thirds(samples: Sequence[Sample]) -> list[Sample]:
    """The medians of each third of the last life."""
    life = samples[_restarts(len(samples))[1] :]
    part = len(life) // 3
    return [
        Sample(*(statistics.median(values) for values in zip(*life[start : start + part], strict=True)))
        for start in (len(life) - 3 * part, len(life) - 2 * part, len(life) - part)
    ]


def _restarts(count: int) -> tuple[int, int]:
    return count // 10, count // 5


def _taken(pid: int) -> tuple[float, float, int]:
    memory, own, handles = 0.0, 0.0, 0
    for process in _family(pid):
        _, *lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        kilobytes = {name: int(text.split()[0]) for name, _, text in (line.partition(":") for line in lines)}
        memory += kilobytes["Pss"] / 1000
        own += kilobytes["Anonymous"] / 1000
        handles += len(list(Path(f"/proc/{process}/fd").iterdir()))
    return memory, own, handles


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _described(sample: Sample) -> str:
    return (
        f"{sample.memory:.1f} MB (PSS), {sample.handles:.0f} open files, {sample.files:.0f} files on the disk, "
        f"{sample.lines:.0f} lines of log"
    )


if __name__ == "__main__":
    main()
