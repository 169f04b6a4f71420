"""A real libvirt for this directory's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kernel.inside import was_asked_for
from tests.libvirt.capabilities import Guests, read_capabilities
from tests.libvirt.daemon import CannotStart, Libvirt, private_libvirt
from tests.libvirt.pod import CannotUnshare, Pod, pod


@pytest.fixture(scope="session")
def libvirt(request: pytest.FixtureRequest) -> Iterator[Libvirt]:
    """A private libvirtd; one that can't start is a failure where the tier was asked for, else a skip."""
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(private_libvirt())
        except CannotStart as error:
            if was_asked_for(request.config):
                raise
            pytest.skip(str(error))
        yield connection


@pytest.fixture(scope="session")
def capabilities(libvirt: Libvirt) -> dict[str, Guests]:
    """What can be defined on it, by architecture."""
    return read_capabilities(libvirt("capabilities"))


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Pod]:
    """A pod with libvirt in it; one that can't be made is a failure where the tier was asked for, else a skip."""
    try:
        with pod() as made:
            made.libvirtd()
            yield made
    except CannotUnshare as error:
        if was_asked_for(request.config):
            raise
        pytest.skip(str(error))
