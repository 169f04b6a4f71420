"""``python -m launcherkit``: the command ``launcherkit``."""

from __future__ import annotations

import sys

from launcherkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
