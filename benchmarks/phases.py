"""Where the time of a translation goes, in one process that is warm.

The targets: at most 0.7 ms for 8 devices and 1.3 ms for 64 on the machine they were set on, half of what KubeVirt's own
converter takes there for as many hostdevs. With facts from a sysfs tree 8 two-function cards take at most 1.8 ms of
CPU, 64 at most 7. The floor for these is the system calls that reading the facts takes, and nothing else, in turns with
the translation: a machine that is slow at the moment is slow for both.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lxml import etree

from benchmarks.hook import host_tree
from launcherkit import Host, Translation, translate
from launcherkit.domain.reader import read_facts
from launcherkit.domain.writer import write_plan
from launcherkit.domain.xml import element_spans, read_document
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.request.vmi import read_vmi
from tests.support.samples import Sample, sample


class FixedHost:
    """A host that has been read already."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        return self._facts


def phases(inputs: Sample) -> dict[str, Callable[[], object]]:
    """What is measured, by name; ``round trip`` is the floor: lxml parses and writes the result, and nothing else."""
    host = FixedHost(inputs.facts)

    def whole() -> Translation:
        return translate(inputs.domain_xml, env=inputs.env, host=host, vmi=inputs.vmi_json)

    translation = whole()
    document = read_document(inputs.domain_xml)
    return {
        "round trip": lambda: etree.tostring(etree.fromstring(translation.domain_xml)),
        "whole": whole,
        "read VMI": lambda: read_vmi(inputs.vmi_json),
        "read domain": lambda: read_facts(read_document(inputs.domain_xml).root),
        "find elements": lambda: element_spans(document.data),
        "write plan": lambda: write_plan(document, translation.plan),
    }


def measure(inputs: Sample, rounds: int) -> dict[str, float]:
    """Median milliseconds of each phase, the phases interleaved."""
    actions = phases(inputs)
    times: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def from_tree(count: int, functions: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds of CPU of a translation that reads its facts from a sysfs tree, and of its system calls."""
    inputs = sample(count, functions)
    ours: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        root = host_tree(Path(directory), count, functions)
        host = Host.from_sysfs(root)
        for _ in range(rounds):
            start = time.process_time()
            translate(inputs.domain_xml, env=inputs.env, host=host, vmi=inputs.vmi_json)
            between = time.process_time()
            system_calls(root)
            ours.append(between - start)
            floor.append(time.process_time() - between)
    return 1000 * statistics.median(ours), 1000 * statistics.median(floor)


def system_calls(root: str) -> None:
    """What must be asked of the kernel about all functions (S2, V1-V3, P5), without looking at the answers."""
    devices = os.open(f"{root}/sys/bus/pci/devices", _DIRECTORY)
    for name in os.listdir(f"{root}/sys/bus/pci/devices"):
        function = os.open(name, _DIRECTORY, dir_fd=devices)
        is_first = name.endswith("0")  # the others are HD audio, and in the same group
        for file in ("uevent", "power_state", "config", *(("resource",) if is_first else ())):
            handle = os.open(file, _FILE, dir_fd=function)
            os.pread(handle, 4096, 0)
            os.close(handle)
        os.access("physfn", os.F_OK, dir_fd=function)
        os.access("sriov_numvfs", os.F_OK, dir_fd=function)
        group = os.readlink("iommu_group", dir_fd=function).rpartition("/")[2]
        os.close(function)
        if is_first:
            os.listdir(f"{root}/sys/kernel/iommu_groups/{group}/devices")
    os.close(devices)


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def main() -> None:
    """Print a table for 8 and 64 devices, of one function and of two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=201, help="at least 21 (default: 201)")
    rounds = parser.parse_args().rounds
    for functions in (1, 2):
        for count in (8, 64):
            result = measure(sample(count, functions), rounds)
            floor = result["round trip"]
            print(f"{count} devices of {functions} function(s)")
            for name, milliseconds in result.items():
                print(
                    f"  {name:14} {milliseconds:7.3f} ms   {milliseconds / floor:5.2f} of lxml's round trip of "
                    "the result"
                )
            ours, calls = from_tree(count, functions, rounds)
            print(f"  {'from sysfs':14} {ours:7.3f} ms   {ours / calls:5.2f} of its system calls (CPU time)")


if __name__ == "__main__":
    main()
