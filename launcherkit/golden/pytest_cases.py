"""``pytest --launcherkit-golden DIR``: every golden case in a directory is a test.

pytest loads this module by its entry point, so it imports nothing else of launcherkit until the option is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

OPTION = "--launcherkit-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option; it may be repeated."""
    group = parser.getgroup("launcherkit")
    group.addoption(
        OPTION, action="append", default=[], metavar="DIR", help="run launcherkit's golden cases in this directory, too"
    )


def pytest_collection(session: pytest.Session) -> None:
    """Add the directories to what the command line names."""
    for directory in session.config.getoption(OPTION):
        path = str(Path(directory).absolute())
        if path not in session.config.args:
            session.config.args.append(path)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the directory's cases; None for any other directory."""
    directories = {Path(directory).resolve() for directory in parent.config.getoption(OPTION)}
    if path.resolve() not in directories:
        return None
    cases: pytest.Collector = GoldenCases.from_parent(parent, path=path)
    return cases


class GoldenCases(pytest.Directory):
    """A directory of cases."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each case.

        Raises:
            CollectError: there are no cases.
        """
        from launcherkit.errors import LauncherkitError
        from launcherkit.golden.case import find_cases

        try:
            names = find_cases(str(self.path))
        except LauncherkitError as error:
            raise self.CollectError(f"{error.message}\n{error.remedy}") from error
        for name in names:
            yield GoldenItem.from_parent(self, name=name)


class GoldenItem(pytest.Item):
    """A case."""

    def runtest(self) -> None:
        """Translate and compare."""
        from launcherkit.golden.run import check_case

        result = check_case(self.parent.path / self.name)  # type: ignore[union-attr]  # GoldenCases
        if not result.ok:
            pytest.fail(str(result), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The case's path and name."""
        return self.path, None, f"golden case {self.name}"
