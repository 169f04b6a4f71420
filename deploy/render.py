#!/usr/bin/env python3
"""Renders the manifests of this folder from ``templates/deploy`` and ``values.yaml``: ``python deploy/render.py``.

Change values.yaml, run this, apply what comes out. A template's name is its output's, less ``.j2``; one whose name
begins with ``_`` is a part of others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

try:
    import yaml
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ModuleNotFoundError as missing:
    sys.exit(
        f"deploy/render.py: jinja2 and PyYAML are needed, and {missing.name} isn't there. ./dev gets both:\n"
        "  ./dev demo && .venv/bin/python deploy/render.py"
    )

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))  # run as a file, it is alone

from deploy.admission import conditions, patch  # noqa: E402  # found only now

TEMPLATES = DEPLOY.parent / "templates" / "deploy"


def manifests(values: Mapping[str, object], templates: Path = TEMPLATES) -> dict[str, str]:
    """Every manifest by its file name.

    Args:
        values: what the templates are filled with; a value that is missing is an error.
        templates: folder of ``*.yaml.j2``.

    Raises:
        jinja2.TemplateError: a template is wrong, or uses a value that is not there.
        yaml.YAMLError: what was to become YAML isn't.
    """
    environment = _environment(templates)
    names = [name for name in environment.list_templates() if name.endswith(".yaml.j2") and not name.startswith("_")]
    rendered = {name.removesuffix(".j2"): environment.get_template(name).render(values) for name in names}
    for text in rendered.values():
        list(yaml.safe_load_all(text))
    return rendered


def _environment(templates: Path) -> ImmutableSandboxedEnvironment:
    # No autoescape: these are YAML, not markup; `quoted` serves YAML, JSON and CEL.
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = lambda value: json.dumps(str(value))
    environment.filters |= {"values": yaml.safe_load, "conditions": conditions, "patch": patch}
    return environment


def injections(values: Mapping[str, object], templates: Path = TEMPLATES) -> dict[str, str]:
    """What is added to which pods, as `launcherkit_plugin.webhook.injection` reads it, by name.

    Raises:
        As `manifests`.
    """
    environment = _environment(templates)
    texts = [
        environment.get_template(path.name).render(values) for path in sorted(templates.glob("_*-injection.yaml.j2"))
    ]
    return {yaml.safe_load(text)["name"]: text for text in texts}


def read_values(path: Path = DEPLOY / "values.yaml") -> dict[str, object]:
    """The values that the committed manifests are made with."""
    values: dict[str, object] = yaml.safe_load(path.read_text())
    return values


def main() -> None:
    """Write the manifests, and remove those that have no template any more."""
    rendered = manifests(read_values())
    for stale in set(DEPLOY.glob("*.yaml")) - {DEPLOY / name for name in (*rendered, "values.yaml")}:
        stale.unlink()
    for name, text in rendered.items():
        (DEPLOY / name).write_text(text)


if __name__ == "__main__":
    main()
