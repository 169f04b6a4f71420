"""Checked by mypy, never run: what a user of the library sees."""

from collections.abc import Mapping
from typing import assert_type

from launcherkit import Host, LauncherkitError, Note, Plan, Policy, SeveralErrors, Translation, translate


def integrator(domain_xml: bytes, env: Mapping[str, str]) -> bytes:
    host = Host.from_sysfs("/")
    assert_type(host, Host)
    assert_type(Host.from_snapshot("host.json"), Host)
    assert_type(Host.from_umockdev("host.umockdev"), Host)
    assert_type(Host.none(), Host)
    translation = translate(
        domain_xml, env=env, host=host, vmi={"spec": {}}, policy=Policy(siblings="group", managed=True)
    )
    assert_type(translation, Translation)
    assert_type(translation.domain_xml, bytes)
    assert_type(translation.plan, Plan)
    assert_type(translation.notes, tuple[Note, ...])
    translate("<domain/>", env={}, host=Host.none())
    translate(b"<domain/>", env={}, host=Host.none(), vmi='{"spec": {}}')
    return translation.domain_xml


def errors(error: LauncherkitError) -> None:
    assert_type(error.code, str)
    assert_type(error.exit_code, int)
    assert_type(error.message, str)
    assert_type(error.remedy, str)
    if isinstance(error, SeveralErrors):
        assert_type(error.errors, tuple[LauncherkitError, ...])


def refused(domain_xml: bytes) -> None:
    translate(domain_xml, env={}, host="/")  # type: ignore[arg-type]
    translate(domain_xml, {}, Host.none())  # type: ignore[call-arg]
    translate(domain_xml, host=Host.none())  # type: ignore[call-arg]
    translate(domain_xml, env={"A": 1}, host=Host.none())  # type: ignore[dict-item]
    Policy(siblings="all")  # type: ignore[arg-type]
