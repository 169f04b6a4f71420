"""Whether a host name that libvirt would wait for is told of."""

from __future__ import annotations

import threading

from launcherkit.run.daemons import report_slow_host_name


def test_a_name_that_takes_long_to_resolve_is_reported_once() -> None:
    reported: list[str] = []
    done = threading.Event()
    thread = report_slow_host_name("launcher-0", reported.append, resolve=lambda _: done.wait(), patience=0.01)
    assert thread is not None
    thread.join()
    done.set()
    (text,) = reported
    assert text.startswith("the host name launcher-0 has not been resolved in 0.01 seconds")
    assert text.endswith("add the name to /etc/hosts")


def test_a_name_that_resolves_or_is_known_not_to_is_not_told_of() -> None:
    def unknown(name: str) -> None:
        raise OSError(name)

    for resolve in (str.upper, unknown):
        reported: list[str] = []
        thread = report_slow_host_name("launcher-0", reported.append, resolve=resolve, patience=3600)
        assert thread is not None
        thread.join()
        assert reported == []


def test_a_name_with_a_dot_is_not_asked_for() -> None:
    """libvirt takes it as it is."""
    for name in ("launcher-0.example.org", "localhost"):
        assert report_slow_host_name(name, print, resolve=print) is None
