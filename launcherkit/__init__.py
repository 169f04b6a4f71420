"""launcherkit: from a device plugin's allocation to the hostdevs of a libvirt domain.

>>> from launcherkit import Host, translate
>>> translation = translate(domain_xml, env=os.environ, host=Host.from_sysfs(), vmi=vmi_json)
>>> connection.defineXML(translation.domain_xml.decode())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcherkit.errors import LauncherkitError as LauncherkitError
    from launcherkit.errors import SeveralErrors as SeveralErrors
    from launcherkit.host.source import Host as Host
    from launcherkit.model.plan import Note as Note
    from launcherkit.model.plan import Plan as Plan
    from launcherkit.model.policy import AliasPrefixes as AliasPrefixes
    from launcherkit.model.policy import Policy as Policy
    from launcherkit.pipeline import Translation as Translation
    from launcherkit.pipeline import translate as translate

__version__ = "0.1.0"

_HOME = {
    "AliasPrefixes": "launcherkit.model.policy",
    "Host": "launcherkit.host.source",
    "LauncherkitError": "launcherkit.errors",
    "Note": "launcherkit.model.plan",
    "Plan": "launcherkit.model.plan",
    "Policy": "launcherkit.model.policy",
    "SeveralErrors": "launcherkit.errors",
    "Translation": "launcherkit.pipeline",
    "translate": "launcherkit.pipeline",
}

__all__ = [  # the names above, which mypy and readers see
    "AliasPrefixes",
    "Host",
    "LauncherkitError",
    "Note",
    "Plan",
    "Policy",
    "SeveralErrors",
    "Translation",
    "__version__",
    "translate",
]


def __getattr__(name: str) -> object:
    """Import a name's module when it is first used: the device plugin, which needs only the host model, has no lxml."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
