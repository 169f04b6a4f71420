"""The domain hook of a KubeVirt plugin (VEP 190), in the folder ``/var/run/kubevirt-plugin/<plugin>``.

The domain passes through libvirt's complete schema here, so nothing that an earlier call wrote is stripped.
"""

from __future__ import annotations

import os

from grpclib.server import Stream

from launcherkit.errors import UNKNOWN_DOMAIN_TYPE
from launcherkit.hooks.core import HookSettings, complete_domain
from launcherkit.hooks.proto import plugins_v1alpha1_pb2 as plugins
from launcherkit.hooks.server import Endpoint, check_name, not_made
from launcherkit.rpc.calls import receive, refusal
from launcherkit.rpc.methods import Servicer

SOCKET = "launcherkit.sock"
"""A fixed name: the Plugin resource contains the socket's path."""


def domain_hook(folder: str, plugin: str, settings: HookSettings) -> Endpoint:
    """The service, on ``<folder>/<plugin>/launcherkit.sock``; the plugin's folder is created if it is missing.

    Raises:
        BAD_HOOK_NAME: the plugin's name is not valid.
        SOCKET_NOT_MADE: its folder is a link, which KubeVirt doesn't follow, or can't be created.
    """
    own = os.path.join(folder, check_name(plugin, "--domain-hook"))
    path = os.path.join(own, SOCKET)
    if os.path.islink(own):
        raise not_made(path, f"{own} is a symbolic link")
    try:
        os.makedirs(own, mode=0o770, exist_ok=True)
    except OSError as problem:
        raise not_made(path, problem.strerror or str(problem)) from problem
    return Endpoint(path, (DomainHook(settings),), f"the domain hook of {plugin}")


class DomainHook(Servicer):
    service = plugins.DESCRIPTOR.services_by_name["DomainHookService"]

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings

    async def MutateDomain(self, stream: Stream[plugins.MutateDomainRequest, plugins.MutateDomainResponse]) -> None:
        asked = await receive(stream, plugins.MutateDomainRequest)
        if asked.domain_type not in ("", "libvirt"):
            raise refusal(
                UNKNOWN_DOMAIN_TYPE(
                    f"the domain's type is {asked.domain_type[:60]!r}, and only 'libvirt' is known",
                    "Restrict the plugin's condition to VMs of libvirt.",
                    key="domain_type",
                )
            )
        domain = complete_domain(asked.domain, asked.vmi, self._settings)
        await stream.send_message(plugins.MutateDomainResponse(domain=domain))
