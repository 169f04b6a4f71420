"""The process that reads the configuration, and what comes over from it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.errors import UNREADABLE_FILE, SeveralErrors
from launcherkit.model.plan import Note
from launcherkit_plugin.codec import decode
from launcherkit_plugin.config.child import answer_of, decode_answer, dump, read_config_in_child
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.config.source import folders, versions
from launcherkit_plugin.model.config import (
    CdiConfig,
    Config,
    ContainerUse,
    ContainerVariable,
    DraConfig,
    FabricConfig,
    LayoutEntry,
    Names,
    PciRule,
    Reading,
    ReleaseProgram,
    Selector,
    Sharing,
    VfSettings,
    VgpuConfig,
    VgpuRule,
)
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG, CONFIG_NOT_READ
from tests.support.errors import raises_code
from tests.support.provoked import provoked
from tests.support.waiting import PATIENCE, until

CONFIG = """\
auto: nvidia
resources:
  - {name: a/X, select: [{models: ["10de:2204"], numaNodes: [0]}], exclude: [{drivers: [nvidia]}]}
aliases: {T4: B}
domains: {10de: a.b}
vgpu: {layout: [{parent: "#0", type: a}], graceSeconds: 0.5}
cdi: {}
kubevirt: {cluster: true}
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "plugin.yaml").write_text(CONFIG)
    return str(tmp_path / "plugin.yaml")


# What comes over is what was read


ints, names = st.frozensets(st.integers(0, 0xFFFF), max_size=2), st.lists(st.text(max_size=3), max_size=2).map(tuple)
pairs = st.frozensets(st.tuples(st.integers(), st.integers()), max_size=2)
selectors = st.builds(
    Selector,
    vendors=ints,
    devices=ints,
    models=pairs,
    classes=names,
    subsystems=pairs,
    addresses=names,
    drivers=st.frozensets(st.text(max_size=3)),
    numa_nodes=ints,
    virtual=st.none() | st.booleans(),
)
chosen = st.lists(selectors, max_size=2).map(tuple)
programs = st.builds(ReleaseProgram, names, st.floats(1, 1e5))
rules = st.builds(
    PciRule,
    select=chosen,
    exclude=chosen,
    name=st.none() | st.text(),
    environment=st.builds(ContainerVariable, st.text(), st.booleans(), st.none() | st.booleans()),
    bind=st.sampled_from([False, True, "on-demand"]),
    bind_seconds=st.floats(1, 40),
    grace_seconds=st.floats(0, 1e5),
    give_back=st.sampled_from(["always", "never"]),
    release=st.none() | st.just("reset") | programs,
    same_device=st.sampled_from([False, "preferred", "required"]),
    keep_for=st.floats(0, 1e6),
    when_bound=st.booleans(),
    use=st.sampled_from(["vm", "any"]),
    names=st.none() | st.builds(Names, st.none() | st.text(), container=st.text()),
    with_kata=st.booleans(),
    container=st.none() | st.builds(ContainerUse, st.sampled_from([None, "cdi"]), names),
    sharing=st.none() | st.builds(Sharing, st.integers(), st.booleans()),
    virtual_functions=st.none() | st.builds(VfSettings, program=st.none() | programs),
)
vgpus = st.builds(
    VgpuConfig,
    st.lists(st.builds(LayoutEntry, st.text(), st.text(), st.none() | st.integers())).map(tuple),
    names,
    st.lists(st.builds(VgpuRule, names, st.none() | st.text(), st.sampled_from(["static", "dynamic"]), names)).map(
        tuple
    ),
    st.lists(
        st.builds(VgpuRule, names, st.none() | st.text(), st.just("static"), names, prefix=st.just("PCI_RESOURCE"))
    ).map(tuple),
    st.floats(0, 1e9),
)
configs = st.builds(
    Config,
    st.sampled_from([None, "all"]),
    st.lists(rules, max_size=2).map(tuple),
    vgpus,
    st.dictionaries(st.text(), st.text(), max_size=2),
    st.dictionaries(st.integers(), st.text(), max_size=2),
    rescan_seconds=st.floats(0, 1e9),
    cdi=st.none() | st.builds(CdiConfig, st.text(), st.booleans()),
    dra=st.none() | st.builds(DraConfig, st.text(), st.booleans(), evict=st.booleans()),
    fabric=st.none() | st.builds(FabricConfig, st.text(), modules=st.dictionaries(st.integers(), st.text())),
)
readings = st.builds(Reading, configs, st.lists(st.builds(Note, st.text(), st.text())).map(tuple), names, st.booleans())


@given(readings)
def test_a_reading_is_the_same_after_its_way_through_json(value: Reading) -> None:
    loaded = decode(Reading, json.loads(dump(value)))
    assert loaded == value
    assert shape(loaded) == shape(value)


def shape(value: object) -> object:
    """The types in a value: a tuple is equal to a named one of the same content, and a list would not be."""
    if isinstance(value, tuple):
        return type(value), [shape(each) for each in value]
    return type(value)


@pytest.mark.parametrize("document", [{}, [], None, 7, [[], [], []], [[0] * 9, [], []], "text"])
def test_json_of_another_shape_is_no_reading(document: object) -> None:
    with pytest.raises(ValueError, match=" is no "):
        decode(Reading, document)


def test_what_a_process_reads_is_what_this_one_would_read(path: str) -> None:
    kubevirt = {"mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-1"], "enabled": False}}
    apart = asyncio.run(read_config_in_child(path, "gpu", kubevirt, {"zone": "a"}, dra=True))
    assert apart == read_config(path, "gpu", kubevirt, {"zone": "a"}, dra=True)
    assert apart.cluster
    assert apart.config.vgpu.spread == ("nvidia-1",)
    assert (0x10DE, 0x2204) in apart.config.pci[0].select[0].models


def test_notes_and_files_come_over(path: str) -> None:
    reading = Reading(read_config(path).config, (Note("a", "b"),), ("x", "y"), cluster=True)
    assert decode_answer(dump(reading).encode()) == reading


def test_errors_come_over_with_code_message_and_remedy(path: str) -> None:
    Path(path).write_text("auto: x\nbogus: 1")
    with pytest.raises(SeveralErrors) as raised:
        asyncio.run(read_config_in_child(path))
    first, second = raised.value.leaves()
    assert first.code == BAD_PLUGIN_CONFIG.code
    assert raised.value.exit_code == 78
    assert second.message == f"{path}, bogus: unknown key; found '1'"
    assert second.facts == {"file": path, "key": "bogus"}
    assert "launcherkit explain plugin-configuration" in second.remedy


def test_an_error_alone_comes_over_as_itself() -> None:
    with raises_code(UNREADABLE_FILE, match="/no/such/file") as raised:
        decode_answer(answer_of(b'{"path": "/no/such/file"}'))
    assert raised.value.file == "/no/such/file"


# What can happen to a process


def ends(path: str, program: str, patience: float = 60.0) -> str:
    with raises_code(CONFIG_NOT_READ) as raised:
        asyncio.run(read_config_in_child(path, command=(sys.executable, "-c", program), patience=patience))
    assert raised.value.exit_code == 69
    return raised.value.message


def test_a_process_that_fails_is_reported_with_its_last_words(path: str) -> None:
    assert ends(path, "import sys; sys.exit('a\\nno such package')").endswith(
        "it ended with exit code 1: no such package"
    )


def test_a_process_that_is_killed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = ends("plugin.yaml", "import os; os.kill(os.getpid(), 9)")
    assert [f"LK703: {message}"] == provoked("config", "LK703")


def test_a_process_that_never_answers_is_ended(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcherkit_plugin.host.child.END_SECONDS", PATIENCE)  # a busy machine may take longer
    reported = tmp_path / "pid"
    program = f"import os, time; open({str(reported)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    # However long it took to start, it is gone when the call is back.
    assert "no answer within" in ends(path, program, patience=1.0)
    if reported.exists() and reported.read_text():
        assert not Path(f"/proc/{reported.read_text()}").exists()


CHILD = "import os, sys, time; from launcherkit_plugin.host.child import end_with; end_with(int(sys.argv[1]));"


def test_it_ends_with_who_has_started_it(tmp_path: Path) -> None:
    reported = tmp_path / "pid"
    child = f"{CHILD} open({str(reported)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    with subprocess.Popen([sys.executable, "-c", parent]) as started:
        until(lambda: reported.exists() and reported.read_text(), "a child that has begun")
        started.kill()
    until(lambda: not alive(int(reported.read_text())), "its end")


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_does_not_begin_where_that_one_has_ended_already() -> None:
    assert subprocess.run([sys.executable, "-c", f"{CHILD} print('begun')", "1"], capture_output=True).stdout == b""


def test_a_program_that_is_not_there_is_reported(path: str) -> None:
    with raises_code(CONFIG_NOT_READ, match="No such file"):
        asyncio.run(read_config_in_child(path, command=("/no/such/program",)))


def test_an_answer_that_is_none_is_reported(path: str) -> None:
    assert "its answer can't be understood" in ends(path, "print('hello')")


def test_this_process_needs_neither_pydantic_nor_yaml(path: str) -> None:
    program = (
        "import asyncio, sys; from launcherkit_plugin.config.child import read_config_in_child\n"
        "from launcherkit_plugin.config.source import versions\n"
        "asyncio.run(read_config_in_child(sys.argv[1]))\n"
        "sys.exit(' '.join({'pydantic', 'yaml', 'kubernetes', 'jinja2'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Whether the files are others than they were


def test_a_file_that_is_written_again_has_another_version(path: str) -> None:
    before = versions([path])
    assert versions([path]) == before
    Path(path).write_text("auto: all")
    assert versions([path]) != before


def test_a_file_that_comes_or_goes_has_another_version(path: str) -> None:
    before = versions([path])
    os.unlink(path)
    assert versions([path]) == {path: None}
    Path(path).write_text(CONFIG)
    assert versions([path]) != before


def test_a_link_that_a_kubelet_swaps_is_seen(tmp_path: Path) -> None:
    # As a ConfigMap is mounted: plugin.yaml -> ..data/plugin.yaml, ..data -> ..2026_1
    for name in ("..2026_1", "..2026_2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plugin.yaml").write_text("auto: all")
    (tmp_path / "..data").symlink_to("..2026_1")
    file = tmp_path / "plugin.yaml"
    file.symlink_to("..data/plugin.yaml")
    assert folders([str(file)]) == (str(tmp_path), str(tmp_path / "..2026_1"))
    before = versions([str(file)])
    (tmp_path / "..new").symlink_to("..2026_2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert versions([str(file)]) != before


def test_without_options_it_is_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("auto: gpu")
    assert asyncio.run(read_config_in_child(str(path))) == read_config(str(path))
