"""The cluster, from a process of its own: Events, KubeVirt's configuration, this node's pods.

That process alone has the Kubernetes client (as much memory as all the rest), the credentials and the network; the
daemon works without it. `client` is the daemon's side, `__main__` the other; they exchange lines of JSON:

* down: ``{"event": [type, reason, message]}``;
* up: ``{"kubevirt": {...} | null}`` and ``{"labels": {...}}`` as they are now; ``{"pod": "namespace/name"}``, which has
  ended.
"""

from launcherkit_plugin.telemetry.events import EventType as EventType
from launcherkit_plugin.telemetry.events import LogRecorder as LogRecorder
from launcherkit_plugin.telemetry.events import Recorder as Recorder
