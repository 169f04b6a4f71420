"""The schema of the keys of a rule that say who gets its cards: VMs, Kata, containers (K10)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Annotated

from pydantic import Field, model_validator

from launcherkit_plugin.config.fields import Declared, ResourceName, Schema
from launcherkit_plugin.model.config import CardUse, ContainerUse, Sharing, Use


def _check_container(container: ContainerUse, given: Set[str]) -> None:
    keys = {"cdi_kind": "cdiKind", "cdi_names": "cdiNames"}
    wrong = [key for field, key in keys.items() if field in given]
    if container.by != "cdi" and wrong:
        raise ValueError(f"{_are(wrong)} for `by: cdi`")
    if container.pass_nodes and container.by != "environment":
        raise ValueError("passDeviceSpecs is for `by: environment`")


CONTAINER = Declared(ContainerUse, _check_container, "ContainerSchema")
SHARING = Declared(Sharing)


class NamesSchema(Schema):
    """What the resources of `use: any` are called; uses that aren't named get none."""

    vm: ResourceName | None = None
    kata: ResourceName | None = None
    container: ResourceName | None = None

    def value(self) -> dict[CardUse, str]:
        named: dict[CardUse, str | None] = {"vm": self.vm, "kata": self.kata, "container": self.container}
        return {use: name for use, name in named.items() if name is not None}


class UseSchema(Schema):
    """Who gets the cards of a rule."""

    use: Use = Field(
        "vm",
        description="vm: launchers of VMs; kata: Kata Containers; container: containers, through the host's driver; "
        "any: whichever asks first, each under its own name.",
    )
    names: NamesSchema | None = Field(
        None, description="With `use: any`: the names of the resources, instead of `name`."
    )
    container: Annotated[ContainerUse, CONTAINER] | None = Field(None, description="How containers get the cards.")
    sharing: Annotated[Sharing, SHARING] | None = Field(None, description="Containers share each card.")

    @property
    def uses(self) -> tuple[CardUse, ...]:
        """Who gets the cards. With ``any``, `read_config` adds Kata if CDI is configured, which Kata needs."""
        if self.use != "any":
            return (self.use,)
        return ("vm", "container") if self.names is None else tuple(self.names.value())

    @model_validator(mode="after")
    def _of_its_use(self) -> UseSchema:
        if self.use not in ("container", "any"):
            if self.sharing is not None:
                raise ValueError("a VM doesn't share its cards: sharing is for `use: container` and `use: any`")
            if self.container is not None:
                raise ValueError("container is for `use: container` and `use: any`")
        if self.use != "any" and self.names is not None:
            raise ValueError("names is for `use: any`: give `name`")
        if self.names is not None and len(self.names.value()) < 2:
            raise ValueError(
                "names has those that get the cards, two at least: else say `use: vm`, `kata` or `container`"
            )
        return self

    @model_validator(mode="after")
    def _of_passthrough(self) -> UseSchema:
        """Refuse keys that are only for cards of VMs."""
        if self.use == "vm":
            return self
        fields = {"companion": "companion", "when_bound": "whenBound"}
        if self.use == "container":
            fields |= {"bind": "bind", "environment": "environment", "siblings": "siblings"}
        if self.use == "kata":
            fields |= {"environment": "environment"}
        wrong = [
            key for field, key in fields.items() if field in self.model_fields_set and getattr(self, field) is not False
        ]
        if wrong:
            raise ValueError(f"{_are(wrong)} not for `use: {self.use}`")
        if self.use == "any" and getattr(self, "bind", False) is True:
            raise ValueError("with `bind: yes` no container could ever have them: say `bind: on-demand`")
        return self

    @model_validator(mode="after")
    def _of_claims(self) -> UseSchema:
        """With ``dra``, refuse keys that only the device plugin supports (D1)."""
        have = {
            "`use: kata`": self.use == "kata",
            "`names.kata`": self.names is not None and self.names.kata is not None,
            "`sharing`": self.sharing is not None,
            "`container: {by: cdi}`": self.container is not None and self.container.by == "cdi",
        }
        alone = [key for key, is_so in have.items() if is_so]
        if alone and getattr(self, "dra", False):
            raise ValueError(
                f"dra is not for {', '.join(alone)}: leave out `dra`, and the device plugin gives the cards"
            )
        return self


def _are(keys: Sequence[str]) -> str:
    """``bind is``, ``bind and siblings are``, of one key or more."""
    *others, last = keys
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"
