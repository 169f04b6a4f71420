"""What large documents cost: CPU of the largest one of each kind that is not refused, and the ratio to a quarter of it.

A ratio near 4 is linear. The target: under a second of CPU for each, at up to 8 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from launcherkit import Host, LauncherkitError, translate
from launcherkit.domain.xml import MAX_ATTRIBUTES, MAX_BYTES, MAX_HOSTDEVS, MAX_TAGS

_HEAD, _TAIL = "<domain type='kvm'><devices>", "</devices></domain>"
_ENV = {"PCI_RESOURCE_X_GPU": "0000:e1:00.0"}


def _hostdev(number: int) -> str:
    source = f"<source><address domain='{number}'/></source>"
    return f"<hostdev type='pci'>{source}<alias name='ua-gpu-{number}'/></hostdev>"


def _attributed(count: int) -> str:
    attributes = "".join(f" a{number}=''" for number in range(count - 2))
    return f"<hostdev type='pci'{attributes}><source><address bus='1'/></source></hostdev>"


_BYTES = MAX_BYTES - 4096
KINDS: dict[str, tuple[int, Callable[[int], str]]] = {
    "elements": (MAX_TAGS - 100, lambda count: "<a/>" * count),
    "comments": (MAX_TAGS - 100, lambda count: "<!---->" * count),
    "text": (_BYTES, lambda count: "a" * count),
    "line breaks": (_BYTES, lambda count: "\n" * count),
    "references": (_BYTES // 5, lambda count: "&#65;" * count),
    "namespaces": (MAX_TAGS - 100, lambda count: "".join(f"<b xmlns='u{number}'/>" for number in range(count))),
    "attributes": (MAX_ATTRIBUTES - 100, _attributed),
    "hostdevs": (MAX_HOSTDEVS - 10, lambda count: "".join(map(_hostdev, range(count)))),
}
"""The largest count of each kind, and what makes so many."""


def _cpu(document: bytes) -> float:
    start = time.process_time()
    try:
        translate(document, env=_ENV, host=Host.none())
    except LauncherkitError as error:
        print(f"  refused: {error}")
    return time.process_time() - start


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    rounds = parser.parse_args().rounds
    for name, (count, make) in KINDS.items():
        large, small = ((_HEAD + make(number) + _TAIL).encode() for number in (count, count // 4))
        pairs = [(_cpu(small), _cpu(large)) for _ in range(rounds)]
        seconds = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        print(
            f"{name:12} {len(large) / 2**20:5.1f} MiB  {1000 * seconds:6.0f} ms of CPU  {ratio:4.1f} of a quarter of it"
        )


if __name__ == "__main__":
    main()
