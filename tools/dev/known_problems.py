"""Reports known problems that nobody has reviewed for a year: ``./dev lint --reviews``.

Only CI asks this, by today's date; docs/decisions/0031-known-problems-are-a-table.md says why no test does.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from launcherkit.known_problems.table import known_problems, overdue


def main() -> int:
    """Print the overdue entries; 1 if there are any."""
    late = overdue(known_problems(), datetime.now(UTC).date())
    for problem in late:
        print(f"{problem.id}: last reviewed {problem.reviewed}; see {', '.join(problem.sources)}")
    if late:
        print(
            "Look whether each still holds and has been fixed since, correct its entry in "
            "launcherkit/known-problems.toml, set `reviewed` to the day, and run python -m tests.support.compatibility."
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
