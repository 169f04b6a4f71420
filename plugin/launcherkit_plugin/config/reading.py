"""Reads a configuration and the files to which it refers. Imports pydantic and YAML: see `config.child`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from launcherkit.errors import Collector, shown
from launcherkit.model.plan import Note
from launcherkit.request.documents import LARGE, parse_document, validate_document
from launcherkit.request.fields import read_file
from launcherkit_plugin.config.fields import Schema
from launcherkit_plugin.config.kubevirt import REMEDY as KUBEVIRT_REMEDY
from launcherkit_plugin.config.kubevirt import KubevirtRules, SettingsSchema, rules_of
from launcherkit_plugin.config.schema import CONFIG, LAYOUT, KubevirtSchema
from launcherkit_plugin.devices.cdi import check_kinds
from launcherkit_plugin.devices.names import clashes, configured_names, variable_name
from launcherkit_plugin.devices.selectors import with_auto, with_dra
from launcherkit_plugin.host.driver_nodes import NVIDIA
from launcherkit_plugin.model.config import (
    USB_VARIABLE,
    Auto,
    Config,
    Layout,
    LayoutEntry,
    PciRule,
    Reading,
    Selector,
)
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG, EMPTY_PLUGIN_CONFIG, NAME_CLASH, NO_NVML, NVML_BINDING

_REMEDY = "`launcherkit explain plugin-configuration` lists all keys."
_CLUSTER = "the cluster's KubeVirt resource"


def read_config(
    path: str,
    auto: Auto | None = None,
    kubevirt: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    dra: bool = False,
) -> Reading:
    """Read a configuration file.

    Args:
        path: YAML or JSON; ``-`` is standard input.
        auto: overrides the file's.
        kubevirt: the configuration of the cluster's KubeVirt, for a file with ``kubevirt: {cluster: true}``; empty
            if there is no KubeVirt, None if it isn't known yet; then ``auto`` is not applied yet.
        labels: of this node.
        dra: every rule has ``dra``, whatever the file says.

    Raises:
        UnreadableFile: the file, or one to which it refers, can't be read.
        BAD_PLUGIN_CONFIG, NAME_CLASH, SeveralErrors: all mistakes in it.
        NO_NVML: it declares GPU instances or asks for Xids, and the binding of NVML isn't installed.
        EMPTY_PLUGIN_CONFIG: nothing in it could ever be advertised.
    """
    document: Any = _read(path, CONFIG.model)
    nowhere = KubevirtSchema.model_validate({})
    source: KubevirtSchema = document.kubevirt or nowhere
    kubevirt_settings = _settings(source, path, kubevirt)
    rules = rules_of(
        kubevirt_settings.settings, kubevirt_settings.name, labels or {}, in_force=kubevirt_settings.in_force
    )
    config = _completed(CONFIG.value_of(document), rules, path)
    if auto is not None:
        config = config._replace(auto=auto)
    if source == nowhere:
        _check_says_something(config, path)
    asked = [f"resources.{number}.health.xid" for number, rule in enumerate(config.pci) if rule.watches_xids]
    _check_nvml([*_gpu_instances(config.vgpu.layout, "vgpu.layout"), *asked], path)
    _check_names(config, path)
    _check_kinds(with_dra(config, every=dra))
    notes = tuple(_by_variable(with_dra(config, every=dra), path))
    if source.cluster and kubevirt is None:
        # It isn't known yet what KubeVirt itself advertises, so the rules of ``auto`` can't exclude that.
        return Reading(with_dra(config, every=dra), notes, kubevirt_settings.files, cluster=True)
    config = with_auto(config, rules.others, vgpu=not rules.other_types)
    return Reading(with_dra(config, every=dra), (*notes, *rules.notes), kubevirt_settings.files, source.cluster)


def read_layout(path: str) -> Layout:
    """Read a file with a layout: ``layout`` and ``spread``, as under ``vgpu`` in a configuration.

    Raises:
        UnreadableFile: it can't be read.
        BAD_PLUGIN_CONFIG, SeveralErrors: all mistakes in it.
        NO_NVML: it declares GPU instances, and the binding of NVML isn't installed.
    """
    layout: Layout = LAYOUT.value_of(_read(path, LAYOUT.model))
    _check_nvml(_gpu_instances(layout.layout, "layout"), path)
    return layout


def read_permitted(path: str) -> Mapping[str, Any]:
    """Read ``permittedHostDevices`` of a KubeVirt resource, unchanged; empty if it has none.

    Args:
        path: a file with the output of ``kubectl get kubevirt -A -o yaml``; ``-`` is standard input.

    Raises:
        UnreadableFile: it can't be read.
        BAD_PLUGIN_CONFIG, SeveralErrors: it isn't a KubeVirt resource, or its entries don't match KubeVirt's schema.
    """
    configuration, is_resource = _configuration(_parse(path, KUBEVIRT_REMEDY), path)
    if not is_resource:
        remedy = "Save it with `kubectl get kubevirt -A -o yaml`."
        raise BAD_PLUGIN_CONFIG(f"{path}: not a KubeVirt resource: it has no kind", remedy, file=path, key="kind")
    _known(configuration, path)
    permitted: Mapping[str, Any] = configuration.get("permittedHostDevices") or {}
    return permitted


_Model = TypeVar("_Model", bound=Schema)


def _read(path: str, model: type[_Model]) -> _Model:
    return validate_document(model, _parse(path, _REMEDY), path, BAD_PLUGIN_CONFIG, _REMEDY)


def _parse(path: str, remedy: str) -> Any:
    # IDs are hexadecimal and classes begin with 0, so what looks like a number stays a string.
    return parse_document(read_file(path, LARGE + 1), path, BAD_PLUGIN_CONFIG, remedy, LARGE, numbers=False)


def _completed(config: Config, rules: KubevirtRules, path: str) -> Config:
    """The configuration of a file with KubeVirt's, and the defaults that depend on other keys."""
    vgpu = config.vgpu._replace(
        mdevs=(*config.vgpu.mdevs, *rules.mdevs),
        spread=config.vgpu.spread or rules.spread,
    )
    return config._replace(
        pci=(*_with_defaults(config.pci, cdi=config.cdi is not None), *rules.pci),
        vgpu=vgpu,
        usb=(*config.usb, *rules.usb),
        pci_ids=None if config.pci_ids is None else _beside(path, config.pci_ids),
    )


def _with_defaults(rules: Iterable[PciRule], *, cdi: bool) -> Iterator[PciRule]:
    """The rules of a document, with two defaults that depend on other keys: ``use: any`` includes Kata, which needs
    CDI, if CDI is configured; and ``void`` is set if a rule gives cards to containers, since these need NVIDIA's
    container runtime, which must then leave the cards of VMs alone."""
    rules = tuple(rules)
    container = any("container" in rule.uses for rule in rules)
    for rule in rules:
        void = container or None if rule.environment.void is None else rule.environment.void
        with_kata = cdi and rule.use == "any" and not (rule.names or rule.dra)
        yield rule._replace(environment=rule.environment._replace(void=void), with_kata=with_kata)


def _check_says_something(config: Config, path: str) -> None:
    """Refuse an empty configuration: a mistake in a template or ConfigMap would leave the node without resources."""
    vgpu = config.vgpu
    if not (config.auto or config.pci or config.usb or vgpu.mdevs or vgpu.vfs or vgpu.layout):
        raise EMPTY_PLUGIN_CONFIG(
            f"{path}: nothing in it could be advertised",
            "Write `auto: nvidia`, or rules under resources, vgpu or usb; `launcherkit explain "
            "plugin-configuration` lists all keys.",
            file=path,
        )


def _gpu_instances(layout: Iterable[LayoutEntry], key: str) -> list[str]:
    return [f"{key}.{number}.gpuInstances" for number, entry in enumerate(layout) if entry.gpu_instances]


def _check_nvml(declared: Sequence[str], path: str) -> None:
    """Refuse GPU instances that nothing here could make (G6), and Xids that nothing here could see (K15)."""
    if declared and find_spec("pynvml") is None:
        message = f"{path}, {declared[0]}: the Python module pynvml is not installed"
        raise NO_NVML(message, NVML_BINDING, file=path, key=declared[0])


def _check_names(config: Config, path: str) -> None:
    """Check that configured names are unique (K6); names that depend on the host are checked later."""
    named = [(name, variable_name(name, rule.environment.prefix)) for name, rule, _ in configured_names(config.pci)]
    vgpus = (*config.vgpu.mdevs, *config.vgpu.vfs)
    named += [(rule.name, variable_name(rule.name, rule.prefix)) for rule in vgpus if rule.name is not None]
    named += [(name, variable_name(name, USB_VARIABLE)) for name in dict.fromkeys(rule.name for rule in config.usb)]
    errors = Collector()
    for name, text in clashes(named):
        errors.add(NAME_CLASH(f"{path}: {text}", "Rename one, or merge the two rules.", file=path, resource=name))
    errors.raise_if_any()


def _check_kinds(config: Config) -> None:
    """Check that configured names can be CDI kinds; names that depend on the host are checked later."""
    named = [(name, use) for name, rule, use in configured_names(config.pci) if not rule.dra]
    vgpus = (*config.vgpu.mdevs, *config.vgpu.vfs)
    check_kinds([*named, *((rule.name, "vm") for rule in vgpus if rule.name is not None and not rule.dra)], config.cdi)


def _by_variable(config: Config, path: str) -> Iterator[Note]:
    """A note on each rule whose cards containers get by NVIDIA's variable."""
    for number, rule in enumerate(config.pci):
        if "container" not in rule.uses:
            continue
        key = f"{path}: resources.{number}"
        hole = (
            "NVIDIA's container runtime gives a container all cards that its NVIDIA_VISIBLE_DEVICES names, and any pod "
            "can set that"
        )
        by = None if rule.container is None else rule.container.by
        if rule.dra and by != "nodes" and any(map(_may_be_nvidias, rule.select)):
            yield Note(
                "by-environment",
                f"{key}.dra: containers get NVIDIA's cards of a claim by a variable. {hole}. Without `dra` the device "
                "plugin gives these cards by CDI",
            )
        elif by == "environment":
            yield Note(
                "by-environment",
                f"{key}.container.by: {hole}. `by: cdi` doesn't need the variable; then set "
                "accept-nvidia-visible-devices-envvar-when-unprivileged = false in the runtime's config.toml",
            )


def _may_be_nvidias(selector: Selector) -> bool:
    vendors = selector.vendors | {vendor for vendor, _ in selector.models}
    return not vendors or NVIDIA in vendors


class _Found(NamedTuple):
    """KubeVirt's settings and their source."""

    settings: SettingsSchema
    name: str
    """The name of the source in messages."""
    files: tuple[str, ...]
    """All files that were read."""
    in_force: bool
    """A KubeVirt uses them too: they are from its resource, and not only in its format."""


def _settings(source: KubevirtSchema, path: str, cluster: Mapping[str, Any] | None) -> _Found:
    if source.file is not None:
        file = _beside(path, source.file)
        configuration, is_resource = _configuration(_parse(file, KUBEVIRT_REMEDY), file)
        return _Found(_known(configuration, file), file, (path, file), is_resource)
    if source.cluster:
        return _Found(_known(cluster or {}, _CLUSTER), _CLUSTER, (path,), in_force=True)
    inline = SettingsSchema.model_construct(permitted=source.permitted, mediated=source.mediated)
    return _Found(inline, f"{path}, kubevirt", (path,), in_force=False)


def _beside(path: str, name: str) -> str:
    """The path of a file that a configuration names, relative to the configuration: both may be keys of a ConfigMap."""
    return os.path.join(os.path.dirname(path), name)


def _configuration(document: Any, name: str) -> tuple[Any, bool]:
    """``spec.configuration`` of the KubeVirt resource in a document and True; or the document itself and False.

    Raises:
        BAD_PLUGIN_CONFIG: it is another resource, or a list without exactly one KubeVirt resource.
    """
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        resources = [item for item in document["items"] if isinstance(item, dict) and item.get("kind") == "KubeVirt"]
        if len(resources) != 1:
            raise BAD_PLUGIN_CONFIG(
                f"{name}: a list with {len(resources)} KubeVirt resources, not one", KUBEVIRT_REMEDY, file=name
            )
        document = resources[0]
    if not isinstance(document, dict) or "kind" not in document:
        return document, False
    if document["kind"] != "KubeVirt":
        raise BAD_PLUGIN_CONFIG(
            f"{name}, kind: {shown(document['kind'])} is not 'KubeVirt'", KUBEVIRT_REMEDY, file=name, key="kind"
        )
    spec = document.get("spec") or {}
    return ((spec.get("configuration") or {}) if isinstance(spec, dict) else spec), True


def _known(values: Any, name: str) -> SettingsSchema:
    """The settings, without unknown keys: they are KubeVirt's, and every release adds some."""
    values = deepcopy(values)
    try:
        return SettingsSchema.model_validate(values)
    except ValidationError as problem:
        for fault in problem.errors(include_url=False):
            if fault["type"] == "extra_forbidden":
                *path, key = fault["loc"]
                place = values
                for step in path:
                    place = place[step]
                del place[key]
    return validate_document(SettingsSchema, values, name, BAD_PLUGIN_CONFIG, KUBEVIRT_REMEDY)
