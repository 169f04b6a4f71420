"""`python -m tests.fuzz.drive NAME ARGUMENTS...`: one fuzzer under libFuzzer, with its arguments."""

from __future__ import annotations

import sys

import atheris

from tests.fuzz.targets import target

INSTRUMENTED = ["launcherkit", "grpclib", "h2", "hpack", "hyperframe"]
"""Packages whose branches guide the fuzzer."""


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=INSTRUMENTED):
        run = target(name)
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
