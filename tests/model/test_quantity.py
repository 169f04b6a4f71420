"""Quantities of Kubernetes as numbers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from launcherkit.model.quantity import amount_of


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        ("8Gi", 8 * 1024**3),
        ("1.5k", 1500),
        (".5", Decimal("0.5")),
        ("250m", Decimal("0.25")),
        ("1e3", 1000),
        ("-1Ki", -1024),
        ("2.", 2),
        (42, 42),
    ],
)
def test_a_quantity_is_a_number(quantity: object, amount: object) -> None:
    assert amount_of(quantity) == amount


@pytest.mark.parametrize(
    "other", ["", ".", "much", "8 Gi", "8gi", "1.2.3", "1e999999999", "\u0663Gi", True, None, 1.5, {}], ids=repr
)
def test_what_is_none_is_none(other: object) -> None:
    assert amount_of(other) is None
