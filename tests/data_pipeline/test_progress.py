"""Progress of a build."""

from __future__ import annotations

import io

import pytest

from data_pipeline import progress
from data_pipeline.progress import StageProgress
from megaptm.console import Console


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


def test_log_names_each_stage_when_it_starts(log):
    """A build of hours in a batch job must not be silent until its end."""
    with StageProgress(Console(file=log)) as stages, stages.stage("read and clean", 3):
        assert log.getvalue() == "read and clean ...\n"


def test_log_counts_jobs_once_a_minute(log, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0)
    with StageProgress(Console(file=log)) as stages, stages.stage("tokenizer", 1_000) as advance:
        advance()
    assert "  tokenizer: 1 of 1,000, 0 s\n" in log.getvalue()
    monkeypatch.undo()
    with StageProgress(Console(file=log)) as stages, stages.stage("deduplicate", 2) as advance:
        advance()
    assert "deduplicate: 1" not in log.getvalue()


def test_terminal_has_bars_instead_of_lines(log):
    with StageProgress(Console(file=log, force_terminal=True)) as stages, stages.stage("tokenizer"):
        pass
    assert "tokenizer ..." not in log.getvalue()
    assert "1/1" in log.getvalue()
