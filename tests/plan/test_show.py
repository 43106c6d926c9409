"""Formatting of numbers."""

import pytest

from megaptm.plan.show import format_days


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3.5, "3.5 seconds"), (90, "1.5 minutes"), (5400, "1.5 hours"), (864000, "10.0 days")],
)
def test_format_days(seconds, expected):
    assert format_days(seconds / 86400) == expected
