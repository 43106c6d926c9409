"""Numbers as a reader says them."""

import pytest

from megaptm.plan.show import format_days


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3.5, "3.5 seconds"), (90, "1.5 minutes"), (5400, "1.5 hours"), (864000, "10.0 days")],
)
def test_a_time_is_said_in_the_unit_that_it_fills(seconds, said):
    assert format_days(seconds / 86400) == said
