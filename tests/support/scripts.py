"""Programs without `.py` in their names, as modules."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType


def load_script(path: Path) -> ModuleType:
    """The module that a Python program is; its `main` is not called."""
    name = f"script_{path.name}"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
