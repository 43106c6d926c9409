"""A document that exceeds the time limit is dropped, also when the work is repeated."""

import time

import pytest

from data_pipeline.clean import run_steps
from data_pipeline.clean.step import Filter
from data_pipeline.document import Document, DropCounts
from data_pipeline.time_limit import TimeLimitError, apply_time_limit, time_limit

LIMIT = 0.2
"""Seconds of processor time."""
TEXTS = ("short", "stuck", "other")


class Stuck(Filter):
    """Loops on one text until it is interrupted."""

    ran = 0

    def reason(self, document):
        while document.text == "stuck":
            type(self).ran += 1
            time.process_time()
        return None

    def __repr__(self):
        return "Stuck()"


class Deaf(Stuck):
    """Reports an interruption as an error in the text, as libraries do that catch all exceptions."""

    def reason(self, document):
        try:
            return super().reason(document)
        except BaseException:
            return None


def texts_left(folder, step) -> tuple[list[str], dict[str, int]]:
    dropped = DropCounts()
    documents = [Document(text, text) for text in TEXTS]
    with apply_time_limit(LIMIT, folder):
        retained = [document.text for document in run_steps([step], documents, dropped, "skip")]
    return retained, dict(dropped.counts)


@pytest.mark.parametrize("step", [Stuck, Deaf])
def test_document_over_time_limit_is_dropped(step, tmp_path):
    expected = (["short", "other"], {"time limit exceeded": 1})
    assert texts_left(tmp_path, step()) == expected
    step.ran = 0
    assert texts_left(tmp_path, step()) == expected
    assert step.ran == 0


def test_time_limit_records_apply_to_same_limit(tmp_path):
    with (
        apply_time_limit(LIMIT, tmp_path),
        pytest.raises(TimeLimitError, match=r"takes more than 0\.2 s of processor time"),
    ):
        busy()
    with apply_time_limit(LIMIT, tmp_path), pytest.raises(TimeLimitError), time_limit("x", "text"):
        pytest.fail("it is known")
    with apply_time_limit(2 * LIMIT, tmp_path), time_limit("x", "text"):
        pass


def busy():
    with time_limit("x", "text"):
        while True:
            pass


def test_sleep_does_not_count(tmp_path):
    with apply_time_limit(LIMIT, tmp_path), time_limit("x", "text"):
        time.sleep(2 * LIMIT)


def test_no_limit_outside_of_a_job():
    with time_limit("x", "text"):
        assert sum(range(1000)) == 499500
