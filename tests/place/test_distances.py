"""How far the guest's NUMA cells are from each other (P10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from launcherkit import Host, Policy, Translation, translate
from launcherkit.model.domain import GuestCell
from launcherkit.model.host import NumaNode
from launcherkit.place.distances import distances_of
from tests.support.facts import at, facts, function

GOLDEN = Path(__file__).parents[1] / "golden"
ASKED = Policy(numa_distances=True)
NOTHING: frozenset[int] = frozenset()


def translated(domain: str, policy: Policy = ASKED) -> Translation:
    host = Host.from_snapshot(GOLDEN / "numa-distances" / "host.json")
    return translate(domain, env={"PCI_RESOURCE_X": "0000:41:00.0"}, host=host, policy=policy)


def domain() -> str:
    return (GOLDEN / "numa-distances" / "domain.xml").read_text()


def written(translation: Translation) -> dict[str, dict[str, str]]:
    """By cell, the values by sibling."""
    cells = etree.fromstring(translation.domain_xml).iterfind("cpu/numa/cell")
    rows = {
        str(cell.get("id")): {str(row.get("id")): str(row.get("value")) for row in cell.iter("sibling")}
        for cell in cells
    }
    return {cell: row for cell, row in rows.items() if row}


def remarks(translation: Translation) -> list[str]:
    return [note.text for note in translation.notes if note.topic == "numa-distances"]


def numa(*rows: list[int], cpus: int = 8) -> dict[int, NumaNode]:
    """Nodes with a processor each, the first ``cpus`` of them."""
    return {
        number: NumaNode(frozenset([number] if number < cpus else []), dict(enumerate(row)))
        for number, row in enumerate(rows)
    }


def cell(number: int, *nodes: int, cpus: tuple[int, ...] = (), empty: bool = False) -> GuestCell:
    return GuestCell(number, frozenset(nodes), frozenset(cpus), empty)


def test_without_the_policy_there_are_none() -> None:
    assert written(translated(domain(), Policy())) == {}


def test_the_written_document_stays_as_it_is_the_next_time() -> None:
    once = translated(domain())
    assert len(written(once)) == 4
    again = translated(once.domain_xml.decode())
    assert (again.domain_xml, again.plan.distances, remarks(again)) == (once.domain_xml, {}, [])


def test_a_document_on_one_line_stays_on_one() -> None:
    line = "".join(part.strip() for part in domain().splitlines())
    result = translated(line)
    assert b"\n" not in result.domain_xml
    assert written(result) == written(translated(domain()))


def test_cells_without_a_number_are_counted() -> None:
    result = translated(domain().replace("<cell id='0' ", "<cell ").replace("<cell id='1' ", "<cell "))
    assert [*result.plan.distances] == [0, 1, 2, 3]
    rows = [row.get("value") for row in etree.fromstring(result.domain_xml).iterfind("cpu/numa/cell[2]//sibling")]
    assert rows == ["12", "10", "32", "32"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cellid='0' mode='strict' nodeset='0'", "cellid='0' mode='strict' nodeset='0-1'"),
        ("cellid='0' mode='strict' nodeset='0'", "cellid='0' mode='strict' nodeset='7'"),
        ("<memnode cellid='0' mode='strict' nodeset='0'/>", ""),
    ],
)
def test_a_cell_of_no_single_node_leaves_all_to_libvirt_and_a_note_names_it(old: str, new: str) -> None:
    assert old in domain()
    result = translated(domain().replace(old, new))
    assert (written(result), result.plan.distances) == ({}, {})
    assert remarks(result) == ["none are written: which node of the host stands behind the guest's cell 0 isn't known"]


def test_vcpus_that_are_pinned_to_two_nodes_are_on_none() -> None:
    result = translated(domain().replace("vcpu='3' cpuset='17'", "vcpu='3' cpuset='0'"))
    assert "guest's cell 1 isn't" in remarks(result)[0]


def test_one_cell_is_far_from_nothing() -> None:
    host = facts()._replace(numa=numa([10, 21], [21, 10]))
    assert distances_of([cell(0, 0)], (), {}, host) == ({}, ())


def test_a_host_that_gives_no_distances_gives_the_guest_none() -> None:
    nodes = numa([10, 21], [21, 10])
    host = facts()._replace(numa={**nodes, 1: nodes[1]._replace(distances={})})
    result = distances_of([cell(0, 0), cell(1, 1)], (), {}, host)
    assert result.between == {}
    assert [note.text for note in result.notes] == ["none are written: those of the host's node 1 aren't known"]


GPUS = ("01:00.0", "02:00.0")
ROWS = ([10, 40, 80, 80], [40, 10, 90, 90], [80, 90, 10, 10], [80, 90, 10, 10])
"""Two sockets, and two nodes for the memory of a GPU on the first."""


def with_gpus(homes: dict[int, int], nodesets: dict[int, set[int]]) -> dict[int, dict[int, int]]:
    """What is written for two cells with processors and those of GPUs, each given by its number."""
    functions = [function(GPUS[gpu])._replace(numa_node=home) for gpu, home in homes.items()]
    host = facts(*functions)._replace(numa=numa(*ROWS, cpus=2))
    added = sorted(set[int]().union(*nodesets.values()))
    sets = {at(GPUS[gpu]): frozenset(cells) for gpu, cells in nodesets.items()}
    result = distances_of([cell(0, 0), cell(1, 1)], added, sets, host)
    assert bool(result.between) != bool(result.notes)
    return {number: dict(row) for number, row in result.between.items()}


def test_the_cells_of_a_gpu_that_is_alone_on_its_socket_are_those_of_its_nodes() -> None:
    assert with_gpus({0: 0}, {0: {2, 3}})[3] == {0: 80, 1: 90, 2: 11, 3: 10}


@pytest.mark.parametrize(
    ("homes", "nodesets"),
    [
        ({0: 1}, {0: {2, 3}}),  # the nodes are the other socket's
        ({0: 0}, {0: {2, 3, 4}}),  # it has more cells than there are nodes
        ({0: 0}, {0: {2}}),  # and fewer
        ({0: 0, 1: 0}, {0: {2, 3}, 1: {4, 5}}),  # whose are they?
        ({0: 0, 1: 1}, {0: {2, 3}, 1: {4, 5}}),  # the other has none
        ({}, {0: {2, 3}}),
    ],
)
def test_where_its_nodes_are_not_known_none_are_written(homes: dict[int, int], nodesets: dict[int, set[int]]) -> None:
    assert with_gpus(homes, nodesets) == {}


@given(st.data())
def test_each_distance_is_that_of_the_two_nodes_and_only_a_cells_own_is_10(data: st.DataObject) -> None:
    """The oracle looks each pair up in the host's table, and finds a cell's node by trying all."""
    count = data.draw(st.integers(1, 4))
    table = [[10 if a == b else data.draw(st.integers(10, 255)) for b in range(count)] for a in range(count)]
    cells, homes = [], {}
    for number in data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True)):
        by_memory, by_cpu = data.draw(st.sets(st.integers(0, count), max_size=2)), data.draw(st.sets(st.integers(0, 3)))
        cells.append(cell(number, *by_memory, cpus=tuple(by_cpu)))
        able = by_memory or {node for node in range(count) if node in by_cpu}
        if len(able) == 1 and max(able) < count:
            homes[number] = able.pop()
    result = distances_of(sorted(cells), (), {}, facts()._replace(numa=numa(*table)))
    if len(cells) < 2:
        assert result == ({}, ())
    elif len(homes) < len(cells):
        assert (result.between, len(result.notes)) == ({}, 1)
    else:
        assert {(a, b): value for a, row in result.between.items() for b, value in row.items()} == {
            (a, b): 10 if a == b else max(11, table[homes[a]][homes[b]]) for a in homes for b in homes
        }
