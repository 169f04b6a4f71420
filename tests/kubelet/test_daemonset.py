"""The pod of the DaemonSet: what its two containers may do, and that each lives by itself."""

from __future__ import annotations

import pytest

from tests.kubelet.conftest import Serving
from tests.kubelet.node import Node
from tests.support.waiting import until

pytestmark = pytest.mark.kubelet

_LOOK = """
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr '\\t' ' '
touch /etc/new && echo written
ls -d /dev/vfio /var/run/secrets/kubernetes.io/serviceaccount/token
"""
NONE = "0000000000000000"


@pytest.mark.parametrize(("container", "user"), [("plugin", 0), ("cluster", 60701)])
def test_a_container_has_no_capability_and_a_root_that_it_cannot_write(
    serving: Serving, container: str, user: int
) -> None:
    said = serving.plugin.shell(container, _LOOK)
    facts = dict(line.split(": ", 1) for line in said.splitlines() if line[:3] in ("Uid", "Cap", "NoN", "Sec"))
    assert facts["Uid"].split() == [str(user)] * 4
    assert (facts["CapEff"], facts["CapBnd"], facts["NoNewPrivs"]) == (NONE, NONE, "1")
    assert facts["Seccomp"] == "2"  # a filter, the runtime's
    assert "Read-only file system" in said
    assert "written" not in said


def test_the_container_with_the_devices_has_no_token_and_the_one_with_the_token_no_devices(serving: Serving) -> None:
    seen = {name: serving.plugin.shell(name, _LOOK) for name in ("plugin", "cluster")}
    assert "/dev/vfio\n" in seen["plugin"]
    assert "serviceaccount/token: No such file" in seen["plugin"].replace("'", "")
    assert "/dev/vfio: No such file" in seen["cluster"].replace("'", "")
    assert "/var/run/secrets/kubernetes.io/serviceaccount/token\n" in seen["cluster"]


def test_the_container_that_speaks_to_the_cluster_is_ready_and_hears_of_the_node(serving: Serving, node: Node) -> None:
    def ready() -> bool:
        statuses = serving.plugin.pod()["status"]["containerStatuses"]
        return [status["name"] for status in statuses if status["ready"]] == ["cluster", "plugin", "web"]

    until(ready, "all containers ready", serving.plugin.logs)
    assert serving.plugin.pod()["spec"]["nodeName"] == node.name
