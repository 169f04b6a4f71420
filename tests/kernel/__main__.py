"""The machine for a developer: ``./dev kernel shell`` and ``./dev kernel fetch``."""

from __future__ import annotations

import os
import sys

from launcherkit_lab.machine import SHARE, Machine
from launcherkit_lab.packages import CannotFetch, cache_folder, fetch
from tests.support.imports import ROOT

_HINT = f"""\
A machine with an IOMMU. What you see is this machine's own root, read-only below a layer in memory: the checkout and
its .venv are there, and nothing that you change stays, but what is in {SHARE}, which is %s out here.
`exit` ends it, or Ctrl-A X.
"""


def main() -> int:
    """Do what the one argument says."""
    cache = cache_folder(os.environ)
    try:
        if sys.argv[1:] == ["fetch"]:
            kernel = fetch(cache)
            print(f"Linux {kernel.release} is in {kernel.folder}")  # noqa: T201
            return 0
        results = cache / "shell"
        print(_HINT % results, flush=True)  # noqa: T201
        return Machine(cache, ROOT).shell(results)
    except (CannotFetch, OSError) as error:
        sys.exit(f"./dev kernel: {error}")


if __name__ == "__main__":
    sys.exit(main())
