"""Records of a received or damaged journal of metrics."""

import json

import pytest

from megaptm.track.journal import parse_record


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"step": 1.5, "loss": 1.0}, {"loss": 1.0}),
        ({"step": 2**70}, {}),
        ({"step": 1, "loss": 10**400}, {"step": 1}),
        ({"step": 1, "loss": "much", "lr": [], "norm": "-inf"}, {"step": 1, "norm": float("-inf")}),
        ({"params": [1]}, {}),
        ({"params": {"a": [1]}}, {"params": {"a": [1]}}),
        ({"artifact": 5}, {}),
        ({"status": "RUNNIN"}, {}),
        ({"status": ["RUNNING"]}, {}),
        ({"status": "RUNNING"}, {"status": "RUNNING"}),
    ],
)
def test_fields_of_wrong_types_are_not_sent(record, expected):
    """A logger raises for such a field, and would not get the later records."""
    assert parse_record(json.dumps({"time": 1.0, **record}).encode()) == {"time": 1.0, **expected}


@pytest.mark.parametrize("line", [b'{"time": 1e20, "step": 1}', rb'{"time": 1.0, "params": {"a": "\ud800"}}'])
def test_record_that_no_logger_can_store_is_not_sent(line):
    assert parse_record(line) is None
