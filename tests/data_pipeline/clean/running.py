"""Runs steps on texts, for the tests of each step."""

from data_pipeline.clean import run_steps
from data_pipeline.document import Document, DropCounts


def run(step, *texts, notes=None):
    """The output documents, and what was dropped."""
    dropped = DropCounts()
    documents = (Document(text, f"{number}.txt", notes=notes or {}) for number, text in enumerate(texts))
    return list(run_steps([step], documents, dropped)), dropped


def texts(step, *inputs):
    return [document.text for document in run(step, *inputs)[0]]


def reason(step, text):
    """Why a step drops this text, without the step's name; None if it keeps it."""
    retained, dropped = run(step, text)
    assert len(retained) + sum(dropped.counts.values()) == 1
    return None if retained else next(iter(dropped.counts)).split(": ", 1)[1]
