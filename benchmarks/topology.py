"""What it costs to place cards by NUMA cell: 8 two-function cards on two nodes, against the same ones placed flat.

The target: at most 1.3 times the flat placement, in one process that is warm.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from benchmarks.phases import FixedHost
from launcherkit import Translation, translate
from launcherkit.model.host import NumaNode
from launcherkit.model.policy import Policy, Topology
from tests.support.samples import Sample, sample

_CELLS = """<cpu mode='host-passthrough'><numa>
    <cell id='0' cpus='0-3' memory='4' unit='GiB'/><cell id='1' cpus='4-7' memory='4' unit='GiB'/>
  </numa></cpu>
  <numatune><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/></numatune>
  <devices>"""


def on_two_nodes(inputs: Sample) -> Sample:
    """The sample with half of the cards on another node, and a guest with a cell for each node."""
    last = max(address.bus for address in inputs.facts.functions)
    node_of = {address: int(address.bus > last // 2) for address in inputs.facts.functions}
    functions = {
        address: function._replace(numa_node=node_of[address]) for address, function in inputs.facts.functions.items()
    }
    details = {
        address: detail._replace(parents=(f"pci0000:{node_of[address]:02x}", f"0000:00:{address.bus:02x}.0"))
        for address, detail in inputs.facts.details.items()
    }
    numa = {node: NumaNode(frozenset(range(node * 32, node * 32 + 32)), {0: 10, 1: 21}) for node in (0, 1)}
    facts = inputs.facts._replace(functions=functions, details=details, numa=numa)
    return inputs._replace(domain_xml=inputs.domain_xml.replace("<devices>", _CELLS, 1), facts=facts)


def main() -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="how often each is measured")
    rounds = parser.parse_args().rounds
    inputs = on_two_nodes(sample(8, 2))
    host = FixedHost(inputs.facts)

    def placed(topology: Topology) -> Translation:
        policy = Policy(topology=topology)
        return translate(inputs.domain_xml, env=inputs.env, host=host, vmi=inputs.vmi_json, policy=policy)

    assert sum(each.bus_number is not None for each in placed("auto").plan.controllers) == 2
    times: dict[Topology, list[float]] = {"flat": [], "auto": []}
    gc.collect()
    for _ in range(rounds):
        for topology, taken in times.items():
            start = time.process_time()
            placed(topology)
            taken.append(time.process_time() - start)
    flat, auto = (statistics.median(taken) * 1000 for taken in times.values())
    print(f"8 two-function cards on 2 nodes: flat {flat:.2f} ms of CPU, by cell {auto:.2f}, {auto / flat:.2f} times")


if __name__ == "__main__":
    main()
