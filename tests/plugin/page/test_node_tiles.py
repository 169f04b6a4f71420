"""The page of a cluster: what is free where, and which node would start a VM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import etree

from launcherkit_plugin.__main__ import run
from launcherkit_plugin.model.device import Device, Problem, Resource
from launcherkit_plugin.page.node_tiles import ClusterNode, draw_cluster
from launcherkit_plugin.rehearsal.node_record import NOBODY, pack, record_of
from tests.plugin.rehearsal.test_node_record import HELD, offer
from tests.plugin.resources import GPU
from tests.support.apiserver import CONFIGMAPS, ApiServer

NAMESPACE = "launcherkit"
VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: train}}
spec: {{domain: {{devices: {{gpus: [{}]}}}}}}
"""


@pytest.fixture
def page(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> object:
    """Runs the command on a cluster of three nodes: on one a card is held, on one none, of one nothing is known."""
    server = ApiServer()
    labels = {"launcherkit.io/record": "node"}
    busy, idle = (pack(record_of(offer(tmp_path / str(usage is HELD), usage))) for usage in (HELD, NOBODY))
    for name, data in (
        ("busy", {"record": busy}),
        ("idle", {"record": idle}),
        ("lost", {"problem": "it is <too> large"}),
    ):
        metadata = {"name": f"launcherkit-node-{name}", "namespace": NAMESPACE, "labels": labels}
        server.put(CONFIGMAPS, {"metadata": metadata, "data": {"node": name, **data}})

    def run_page(vm: str | None = None) -> tuple[int, str, str]:
        arguments = ["page", "--cluster"]
        if vm is not None:
            (tmp_path / "vmi.yaml").write_text(vm)
            arguments += ["--vm", str(tmp_path / "vmi.yaml")]
        with server.running(tmp_path) as kubeconfig:
            code = run(arguments, {"KUBECONFIG": str(kubeconfig)})
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run_page


def tiles(text: str) -> dict[str, str]:
    """The text of each node's tile, by its name."""
    root = etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False, no_network=True))
    items = root.iter("{http://www.w3.org/1999/xhtml}li")
    return {str(item[0].text): " ".join(" ".join(item.itertext()).split()) for item in items}


def test_each_node_says_what_is_free_there_and_what_is_kept_by_what_is_in_use(page: object) -> None:
    assert callable(page)
    code, text, _ = page()
    assert code == 0
    nodes = tiles(text)
    assert [*nodes] == ["busy", "idle", "lost"]
    assert nodes["busy"].endswith("1 free of 3: 1 held, 1 kept")
    assert nodes["busy"].startswith(f"busy {GPU} ")
    assert nodes["idle"].endswith("3 free of 3")
    assert "LK865 lost has published no record to rehearse on: it is <too> large" in nodes["lost"]
    assert "starts" not in text.partition("<main>")[2]
    assert not re.search(r"<script|url\(|@import|https?://(?!www\.w3\.org/)| style=", text)


def test_with_a_vm_it_says_where_that_would_start_and_with_which_devices(page: object) -> None:
    assert callable(page)
    gpus = ", ".join(f"{{name: gpu{number}, deviceName: {GPU}}}" for number in range(2))
    code, text, _ = page(VM.format(gpus))
    assert code == 0
    assert "train starts on 1 of 3 nodes</b>: idle" in text
    nodes = tiles(text)
    assert [*nodes] == ["idle", "busy", "lost"]
    assert re.search(r"would start with 0000:0\d:00.0, 0000:0\d:00.0 ", nodes["idle"])
    assert "would not start: LK861 LK861 busy has 1 of the 2" in nodes["busy"]
    assert [text.count(f'<li class="{kind}"') for kind in ("starts", "refuses")] == [1, 2]


def test_a_vm_that_is_none_ends_it_with_the_message_of_a_rehearsal(page: object) -> None:
    assert callable(page)
    code, text, said = page("kind: Pod")
    assert (code, text) == (65, "")
    assert "error[LK" in said


def test_a_card_of_which_somebody_has_a_share_is_held() -> None:
    devices = {key: Device(key) for key in ("GPU-1", "GPU-2")}
    held = frozenset({"GPU-1::s-1", "GPU-1::s-2"})
    text = draw_cluster([ClusterNode("n", (Resource("x/y", "V", devices, dra=True),), held)], None)
    assert [tile.endswith("1 free of 2: 1 held") for tile in tiles(text).values()] == [True]


def test_of_many_devices_the_first_have_a_mark_and_all_are_counted() -> None:
    failed = Problem("failed", "it failed")
    devices = {f"d{number}": Device(f"d{number}", problem=None if number else failed) for number in range(100)}
    text = draw_cluster([ClusterNode("n", (Resource("x/y", "V", devices),))], None)
    (tile,) = tiles(text).values()
    assert "99 free of 100: 1 unhealthy" in tile
    assert "and 36 more" in tile
    assert text.count("m6 1a5") == 64 + 1  # those of the node, and that of the key
