"""Which keys of a rule go together that say who gets its cards: VMs, Kata, containers (K10)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from launcherkit_plugin.model.config import ContainerUse, PciRule


def check_container(container: ContainerUse, set_fields: Set[str]) -> None:
    """Refuse keys of ``container`` that are for another ``by``. For this and `check_use` see `config.fields.Check`."""
    keys = {"cdi_kind": "cdiKind", "cdi_names": "cdiNames"}
    wrong = [key for field, key in keys.items() if field in set_fields]
    if container.by != "cdi" and wrong:
        raise ValueError(f"{_are(wrong)} for `by: cdi`")
    if container.pass_nodes and container.by != "environment":
        raise ValueError("passDeviceSpecs is for `by: environment`")


def check_use(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys of a rule that aren't for its ``use``."""
    if rule.use not in ("container", "any"):
        if rule.sharing is not None:
            raise ValueError("a VM doesn't share its cards: sharing is for `use: container` and `use: any`")
        if rule.container is not None:
            raise ValueError("container is for `use: container` and `use: any`")
    if rule.use != "any" and rule.names is not None:
        raise ValueError("names is for `use: any`: give `name`")
    if rule.names is not None and len(rule.names.uses) < 2:
        raise ValueError("names has those that get the cards, two at least: else say `use: vm`, `kata` or `container`")
    if rule.use != "vm":
        _check_passthrough(rule, set_fields)
    if rule.dra:
        _check_claims(rule)


def _check_passthrough(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys that are only for cards of VMs."""
    fields = {"companion": "companion", "when_bound": "whenBound"}
    if rule.use == "container":
        fields |= {"bind": "bind", "environment": "environment", "siblings": "siblings"}
    if rule.use == "kata":
        fields |= {"environment": "environment"}
    wrong = [key for field, key in fields.items() if field in set_fields and getattr(rule, field) is not False]
    if wrong:
        raise ValueError(f"{_are(wrong)} not for `use: {rule.use}`")
    if rule.use == "any" and rule.bind is True:
        raise ValueError("with `bind: yes` no container could ever have them: say `bind: on-demand`")


def _check_claims(rule: PciRule) -> None:
    """Refuse keys that only the device plugin supports (D1)."""
    have = {
        "`use: kata`": rule.use == "kata",
        "`names.kata`": rule.names is not None and rule.names.kata is not None,
        "`sharing`": rule.sharing is not None,
        "`container: {by: cdi}`": rule.container is not None and rule.container.by == "cdi",
    }
    alone = [key for key, is_so in have.items() if is_so]
    if alone:
        raise ValueError(f"dra is not for {', '.join(alone)}: leave out `dra`, and the device plugin gives the cards")


def _are(keys: Sequence[str]) -> str:
    """``bind is``, ``bind and siblings are``, of one key or more."""
    *others, last = keys
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"
