"""Prometheus scrapes the series of devices beside those of others, and answers the queries of the documentation."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry

from launcherkit.model.address import PciAddress
from launcherkit_plugin.model.device import Device, Holder, Problem, Resource, Usage
from launcherkit_plugin.telemetry.device_series import DeviceSeries
from launcherkit_plugin.telemetry.prometheus import exposition
from tests.plugin.telemetry.test_device_series import facts
from tests.support.imports import ROOT
from tests.support.waiting import until
from tests.test_monitoring import RULES
from tests.tiers import find_program

pytestmark = pytest.mark.prometheus

PAGE = ROOT / "docs" / "reference" / "plugin-metrics.md"
MONITOR = ROOT / "deploy" / "plugin" / "components" / "prometheus" / "podmonitor.yaml"
LAUNCHER, TRAINING = "virt-launcher-desk-1-x2b4c", "train-0"
UUID = "GPU-5a0c1f00-1111-2222-3333-444455556666"

KUBEVIRT = f"""\
# TYPE kubevirt_vmi_info gauge
kubevirt_vmi_info{{node="node-1",namespace="vms",name="desk-1",phase="running",vmi_pod="{LAUNCHER}"}} 1
kubevirt_vmi_info{{node="node-1",namespace="vms",name="other",phase="running",vmi_pod="virt-launcher-other-aaaaa"}} 1
"""
"""As KubeVirt has it: pkg/monitoring/metrics/virt-controller/vmistats_collector.go, KubeVirt d923fdb."""

DCGM = f"""\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{UUID}",modelName="NVIDIA A2",Hostname="node-1",pod="",namespace=""}} 93
DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="GPU-of-nobody",modelName="NVIDIA A2",Hostname="node-1",pod="",namespace=""}} 5
"""


def plugin() -> str:
    """What the daemon has: a VM and a container with a card each, a free one, and one in quarantine."""
    devices = [
        Device("0000:e1:00.0", functions=(PciAddress.parse("0000:e1:00.0"),)),
        Device("0000:01:00.0", functions=(PciAddress.parse("0000:01:00.0"),)),
        Device("0000:02:00.0", problem=Problem("quarantined", "came back wrong")),
    ]
    card = Device(UUID, functions=(PciAddress.parse("0000:03:00.0"),), uuid=UUID)
    resources = [
        Resource("nvidia.com/GPU", "X", {each.id: each for each in devices}),
        Resource("nvidia.com/gpu", "Y", {UUID: card}, use="container"),
    ]
    held = {
        "nvidia.com/GPU": {"0000:e1:00.0": Holder(f"vms/{LAUNCHER}")},
        "nvidia.com/gpu": {UUID: Holder(f"ml/{TRAINING}")},
    }
    series = DeviceSeries("node-1", lambda: 1000.0, names=True)
    series.observe(facts("0000:e1:00.0", "0000:01:00.0", "0000:03:00.0"), resources, Usage("pod-resources", held))
    registry = CollectorRegistry()
    registry.register(series)
    return exposition(registry, "")[1].decode()


@pytest.fixture(scope="module")
def exporters() -> Iterator[str]:
    """The address of what is scraped."""
    pages = {"/plugin": plugin(), "/kubevirt": KUBEVIRT, "/dcgm": DCGM}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(pages[self.path].encode())

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def prometheus(exporters: str) -> Iterator[str]:
    """The address of a Prometheus that has scraped everything."""
    (endpoint,) = yaml.safe_load(MONITOR.read_text())["spec"]["podMetricsEndpoints"]
    target = {"namespace": "launcherkit", "pod": "launcherkit-plugin-abcde", "container": "web"}

    def job(name: str, *, honor: bool, labels: dict[str, str]) -> dict[str, Any]:
        static = [{"targets": [exporters], "labels": labels}]
        return {"job_name": name, "metrics_path": f"/{name}", "honor_labels": honor, "static_configs": static}

    jobs = [
        job("plugin", honor=endpoint["honorLabels"], labels=target),
        job("kubevirt", honor=True, labels={}),
        job("dcgm", honor=False, labels={}),
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        config = Path(folder) / "prometheus.yml"
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        program = find_program("prometheus") or "prometheus"
        options = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([program, *options], stdout=log, stderr=log)
        try:
            wanted = ("launcherkit_device_info", "kubevirt_vmi_info", "DCGM_FI_DEV_GPU_UTIL")
            until(lambda: all(asked(address, each) for each in wanted), "everything is scraped")
            yield address
        finally:
            process.terminate()
            process.wait()


def asked(address: str, query: str) -> list[dict[str, Any]]:
    """The answer to a query; empty as long as it can't be asked."""
    try:
        with urlopen(f"http://{address}/api/v1/query?query={quote(query)}") as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except (URLError, ConnectionError):
        return []


WITH_VMS, WITH_DCGM, IDLE = re.findall(r"^```promql\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_a_series_keeps_the_names_of_who_has_the_device(prometheus: str) -> None:
    found = {each["metric"]["device"]: each["metric"] for each in asked(prometheus, "launcherkit_device_info")}
    assert {key: each.get("pod") for key, each in found.items()} == {
        "0000:e1:00.0": LAUNCHER,
        UUID: TRAINING,
        "0000:01:00.0": None,  # of a free one it isn't the plugin's own
        "0000:02:00.0": None,
    }
    assert found["0000:e1:00.0"]["vm"] == "desk-1"


def test_kubevirt_s_series_name_the_vm_of_a_device(prometheus: str) -> None:
    (found,) = asked(prometheus, WITH_VMS)
    assert found["metric"].items() >= {"device": "0000:e1:00.0", "name": "desk-1", "phase": "running"}.items()


def test_nvidia_s_series_are_those_of_a_container_s_card(prometheus: str) -> None:
    (found,) = asked(prometheus, WITH_DCGM)
    assert found["metric"].items() >= {"resource": "nvidia.com/gpu", "namespace": "ml", "pod": TRAINING}.items()
    assert found["value"][1] == "93"


def test_what_was_free_for_a_day_is_found(prometheus: str) -> None:
    """Since the first minutes of 1970."""
    (found,) = asked(prometheus, IDLE)
    assert found["metric"]["device"] == "0000:01:00.0"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The alerts as a file for a Prometheus without the operator."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    return path


def promtool(*arguments: str) -> None:
    done = subprocess.run([find_program("promtool") or "promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_are_valid(rules: Path) -> None:
    promtool("check", "rules", str(rules))


def test_alerts_name_the_device_that_is_quarantined_or_not_cleaned(rules: Path, tmp_path: Path) -> None:
    """The times of the series are close to promtool's own beginning, 0."""
    states = {"e1": ("quarantined", "1x60"), "e2": ("cleaning", "0x60"), "e3": ("held", "1x60")}
    series = [
        {
            "series": f'launcherkit_device_state_timestamp_seconds{{node="node-1",device="0000:{bus}:00.0",'
            f'resource="a/GPU",state="{state}"}}',
            "values": values,
        }
        for bus, (state, values) in states.items()
    ]
    texts = {rule["alert"]: rule["annotations"] for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]}

    def alert(name: str, bus: str, severity: str) -> dict[str, Any]:
        labels = {"device": f"0000:{bus}:00.0", "resource": "a/GPU", "node": "node-1", "state": states[bus][0]}
        annotations = {key: filled(text, labels) for key, text in texts[name].items()}
        expected = {"exp_labels": {**labels, "severity": severity}, "exp_annotations": annotations}
        return {"eval_time": "40m", "alertname": name, "exp_alerts": [expected]}

    tests = [
        alert("LauncherkitDeviceQuarantined", "e1", "critical"),
        alert("LauncherkitDeviceNotCleaned", "e2", "warning"),
        {"eval_time": "30m", "alertname": "LauncherkitDeviceNotCleaned", "exp_alerts": []},
    ]
    whole = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [whole]}))
    promtool("test", "rules", str(path))


def filled(text: str, labels: dict[str, str]) -> str:
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return text.replace("{{ $value | humanizeDuration }}", "40m 0s")
