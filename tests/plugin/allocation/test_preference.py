"""Which devices a container should rather get: whole groups, one NUMA node, one switch (K3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.allocation.preference import prefer
from launcherkit_plugin.model.device import Device
from tests.plugin.resources import CountedId, device


def known(*devices: Device) -> dict[str, Device]:
    return {each.id: each for each in devices}


def taken(devices: dict[str, Device], size: int, must: tuple[str, ...] = (), free: str = "") -> list[str]:
    return sorted(prefer(devices, list(free) or list(devices), must, size))


PAIR_AND_SINGLES = known(device("a", 1), device("b", 2), device("c", 2), device("d", 3))


def test_two_mates_rather_than_one_of_each_group() -> None:
    assert taken(PAIR_AND_SINGLES, 2) == ["a", "d"] or taken(PAIR_AND_SINGLES, 2) == ["b", "c"]
    assert taken(known(device("a", 1), device("b", 2), device("c", 2)), 2) == ["b", "c"]


def test_one_device_is_taken_from_no_group_of_two() -> None:
    assert taken(PAIR_AND_SINGLES, 1) in (["a"], ["d"])
    assert taken(known(device("a", 1), device("b", 1), device("c", 2)), 1) == ["c"]


def test_what_the_kubelet_has_chosen_brings_its_mate() -> None:
    assert taken(PAIR_AND_SINGLES, 2, must=("b",)) == ["b", "c"]


def test_groups_hang_together_through_a_third() -> None:
    chain = known(device("a", 1), device("b", 1, 2), device("c", 2), device("d", 3), device("e", 4))
    assert taken(chain, 2) == ["d", "e"]
    assert taken(chain, 3) == ["a", "b", "c"]


def test_one_numa_node_rather_than_two() -> None:
    nodes = known(device("a", 1, numa=0), device("b", 2, numa=1), device("c", 3, numa=1))
    assert taken(nodes, 2) == ["b", "c"]
    assert taken(nodes, 2, must=("c",)) == ["b", "c"]


def test_whole_groups_come_before_numa_nodes() -> None:
    nodes = known(device("a", 1, numa=0), device("b", 1, numa=1), device("c", 2, numa=0), device("d", 2, numa=1))
    assert taken(nodes, 2) == ["a", "b"]


def test_one_switch_rather_than_two_on_the_same_node() -> None:
    def on(name: str, group: int, *path: str) -> Device:
        return device(name, group, numa=0, path=path)

    switches = known(
        on("a", 1, "pci0000:00", "0000:00:01.0", "0000:01:08.0"),
        on("b", 2, "pci0000:00", "0000:00:02.0", "0000:02:08.0"),
        on("c", 3, "pci0000:00", "0000:00:02.0", "0000:02:09.0"),
    )
    assert taken(switches, 2) == ["b", "c"]


def test_only_what_is_free_is_taken() -> None:
    assert taken(PAIR_AND_SINGLES, 3, free="abd") == ["a", "b", "d"]


def test_too_few_are_better_than_none() -> None:
    assert taken(PAIR_AND_SINGLES, 9) == ["a", "b", "c", "d"]


def test_ids_that_are_not_known_any_more_do_no_harm() -> None:
    assert taken(PAIR_AND_SINGLES, 2, free="xa") == ["a", "x"]
    assert taken({}, 1, free="xy") == ["x"]


def test_the_answer_is_the_same_every_time() -> None:
    many = known(*(device(f"{number:03}", number // 2, numa=number % 4) for number in range(64)))
    first = prefer(many, sorted(many), [], 8)
    assert first == prefer(many, sorted(many, reverse=True), [], 8)
    assert len({many[name].numa_node for name in first}) <= 4


def test_thousands_of_devices_are_no_trouble() -> None:
    many = known(
        *(
            device(f"{number:05}", number, numa=number % 4, path=("pci", f"{number % 64}", f"{number}"))
            for number in range(4096)
        )
    )
    chosen = prefer(many, sorted(many), [], 64)
    assert len(chosen) == 64
    assert len({many[name].path[:-1] for name in chosen}) == 1


def test_what_would_be_refused_comes_last() -> None:
    pairs = known(device("a", 1), device("b", 1), device("c", 2), device("d", 2))
    assert prefer(pairs, ["b", "c", "d"], [], 1, blocked=["b"]) == ["c"]
    assert prefer(pairs, ["b", "c", "d"], [], 3, blocked=["b"]) == ["c", "d", "b"]
    assert prefer(pairs, ["b", "c", "d"], ["b"], 1, blocked=["b"]) == ["b"]


def test_a_preference_looks_at_each_device_a_few_times_however_many_there_are() -> None:
    def looks(count: int, size: int) -> float:
        ids = [CountedId(f"{number:06}") for number in range(count)]
        devices: dict[str, Device] = {
            name: device(name, number // 64, numa=number % 2) for number, name in enumerate(ids)
        }
        CountedId.looks = 0
        assert len(prefer(devices, ids, ids[: size // 2], size, blocked=ids[-count // 4 :])) == size
        return CountedId.looks / count

    assert looks(8192, 4096) <= 1.5 * looks(1024, 512)


def test_devices_of_one_large_group_are_looked_at_a_few_times_each() -> None:
    ids = [CountedId(f"{number:06}") for number in range(4096)]
    devices: dict[str, Device] = {name: device(name, 7) for name in ids}
    CountedId.looks = 0
    assert prefer(devices, ids, [], 3) == ids[:3]
    assert CountedId.looks <= 100 * len(ids)


DEVICES = st.lists(
    st.tuples(st.frozensets(st.integers(0, 5), max_size=2), st.sampled_from([None, 0, 1])), min_size=1, max_size=12
).map(lambda rows: known(*(device(f"d{n:02}", *groups, numa=numa) for n, (groups, numa) in enumerate(rows))))


@given(DEVICES, st.data())
def test_any_answer_has_the_size_the_musts_and_only_what_is_free(
    devices: dict[str, Device], data: st.DataObject
) -> None:
    free = data.draw(st.lists(st.sampled_from(sorted(devices)), unique=True))
    must = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    size = data.draw(st.integers(len(must), max(len(must), len(free))))
    chosen = prefer(devices, free, must, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(free))
    assert set(must) <= set(chosen) <= set(free)
