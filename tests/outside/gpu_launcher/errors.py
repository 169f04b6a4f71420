"""Errors by their kind, by their code, and by what they are about."""

from typing import assert_type

from launcherkit import LauncherkitError, SeveralErrors
from launcherkit.errors import (
    BAD_PCI_ADDRESS,
    BadConfig,
    BadInput,
    CannotServe,
    Code,
    Conflict,
    DeviceUnusable,
    ErrorFields,
    GroupNotViable,
    LibvirtNotThere,
    NoPlace,
    NoSysfs,
    NotAllowed,
    NotInstalled,
    NotOnHost,
    Refused,
    Taken,
    TooFew,
    Unavailable,
    UnreadableFile,
    UnwritableFile,
    UsageUnknown,
)
from launcherkit.golden.case import find_cases
from launcherkit.golden.run import CaseResult, Difference, check_case
from launcherkit_plugin.model.errors import BadRecord, NoCluster, NoKubelet, StepFailed, TooSlow


def about(error: LauncherkitError) -> None:
    assert_type(error.code, str)
    assert_type(error.exit_code, int)
    assert_type(error.message, str)
    assert_type(error.remedy, str)
    assert_type(error.facts, ErrorFields)
    assert_type(error.group, int | None)
    assert_type((error.device, error.driver), tuple[str | None, str | None])
    assert_type((error.variable, error.resource), tuple[str | None, str | None])
    assert_type((error.file, error.key), tuple[str | None, str | None])
    assert_type(error.domain, str | None)
    for leaf in error.leaves():
        assert_type(leaf, LauncherkitError)
    if isinstance(error, SeveralErrors):
        assert_type(error.errors, tuple[LauncherkitError, ...])


def codes() -> LauncherkitError:
    for name, row in LauncherkitError.codes().items():
        assert_type(name, str)
        assert_type(row, Code[LauncherkitError])
        assert_type((row.code, row.title, row.exit_code), tuple[str, str, int])
        assert_type(row.kind, type[LauncherkitError])
    assert_type(BAD_PCI_ADDRESS, Code[BadInput])
    assert_type(BAD_PCI_ADDRESS("it is none", "Give one.", variable="PCI_RESOURCE_A", group=4), BadInput)
    return BAD_PCI_ADDRESS("it is none", "Give one.")


def is_worth_another_try(error: LauncherkitError) -> bool:
    match error:
        case LibvirtNotThere() | UsageUnknown() | NoKubelet() | NoCluster() | TooSlow() | StepFailed() | Unavailable():
            return True
        case Taken() | Refused() | GroupNotViable() | DeviceUnusable() | NotOnHost() | TooFew() | NoPlace():
            return True
        case BadInput() | Conflict() | NotAllowed() | BadConfig() | BadRecord():
            return False
        case UnreadableFile() | UnwritableFile() | NoSysfs() | NotInstalled() | CannotServe():
            return False
        case _:
            return False


def cases(folder: str) -> list[str]:
    failed: list[str] = []
    for name in find_cases(folder):
        result = check_case(f"{folder}/{name}")
        assert_type(result, CaseResult)
        assert_type((result.name, result.description, result.ok), tuple[str, str, bool])
        assert_type(result.differences, tuple[Difference, ...])
        failed += [f"{name}: {each.summary}\n{each.diff}" for each in result.differences]
    return failed
