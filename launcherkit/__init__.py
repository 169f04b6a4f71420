"""launcherkit: from a device plugin's allocation to the hostdevs of a libvirt domain.

>>> from launcherkit import Host, translate
>>> translation = translate(domain_xml, env=os.environ, host=Host.from_sysfs(), vmi=vmi_json)
>>> connection.defineXML(translation.domain_xml.decode())
"""

from __future__ import annotations

from launcherkit.lazy import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcherkit.errors import LauncherkitError as LauncherkitError
    from launcherkit.errors import SeveralErrors as SeveralErrors
    from launcherkit.model.note import Note as Note
    from launcherkit.model.plan import Plan as Plan
    from launcherkit.model.policy import AliasPrefixes as AliasPrefixes
    from launcherkit.model.policy import Policy as Policy
    from launcherkit.pipeline import Translation as Translation
    from launcherkit.pipeline import translate as translate
    from launcherkit.sources.host import Host as Host

__version__ = "0.1.0"

_HOME = {
    "AliasPrefixes": "launcherkit.model.policy",
    "Host": "launcherkit.sources.host",
    "LauncherkitError": "launcherkit.errors",
    "Note": "launcherkit.model.note",
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


__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
