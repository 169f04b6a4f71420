from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.images import Container, container_maker


@pytest.fixture(scope="session")
def container() -> Iterator[Callable[[str], Container]]:
    """Gives a container of an image."""
    yield from container_maker()
