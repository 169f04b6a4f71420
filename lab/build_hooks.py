"""The hooks of the other distributions, ``plugin/hatch_build.py``, of which an sdist of this one has a copy."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_COPY = Path(__file__).with_name("hatch_build.py")
_SPEC = spec_from_file_location(
    "hatch_build", _COPY if _COPY.exists() else Path(__file__).resolve().parents[1] / "plugin" / "hatch_build.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
_SHARED = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_SHARED)
PagesAndBill, SharedMetadata = _SHARED.PagesAndBill, _SHARED.SharedMetadata
