"""What a checker must refuse: each comment is an error itself if its line isn't one."""

from launcherkit import Host, Policy, translate
from launcherkit.errors import GROUP_NOT_VIABLE


def refused(domain_xml: bytes) -> None:
    translate(domain_xml, env={}, host="/")  # type: ignore[arg-type]
    translate(domain_xml, {}, Host.none())  # type: ignore[call-arg]
    translate(domain_xml, host=Host.none())  # type: ignore[call-arg]
    translate(domain_xml, env={"A": 1}, host=Host.none())  # type: ignore[dict-item]
    Policy(siblings="all")  # type: ignore[arg-type]
    Policy().managed = True  # type: ignore[misc]
    raise GROUP_NOT_VIABLE("it is not", "Free it.", group="44")  # type: ignore[arg-type]
