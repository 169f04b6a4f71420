"""``python -m launcherkit_plugin`` is ``launcherkit-plugin``."""

import sys

from launcherkit_plugin.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
