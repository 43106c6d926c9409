"""Journals: a full disk loses no line, and times never decrease."""

import json
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from megaptm.resilience.events import Events, StopSignalEvent, read_events
from megaptm.storage import JournalFile, parse_journal
from megaptm.track import Tracker, read_metrics


@contextmanager
def full_disk(path, *, free_bytes):
    """Limit files to the size of `path` plus `free_bytes`. A longer write is partial, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + free_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps(path):
    return [line["step"] for line in parse_journal(path.read_bytes())]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.mark.parametrize("free_bytes", [0, 10])
def test_lines_rejected_by_full_disk_are_written_later(path, free_bytes):
    journal = JournalFile(path)
    journal.append({"step": 1})
    with full_disk(path, free_bytes=free_bytes):
        for step in (2, 3):
            with pytest.raises(OSError, match="too large"):
                journal.append({"step": step})
    journal.append({"step": 4})
    assert steps(path) == [1, 2, 3, 4]


def test_unwritten_line_is_written_on_close(path):
    journal = JournalFile(path)
    with full_disk(path, free_bytes=5), pytest.raises(OSError, match="too large"):
        journal.append({"step": 1})
    journal.close()
    assert steps(path) == [1]


def test_event_survives_full_disk(tmp_path, caplog):
    with Events(tmp_path) as events:
        events.write(StopSignalEvent(signal="SIGTERM"))
        with full_disk(tmp_path / "events.jsonl", free_bytes=3):
            events.write(StopSignalEvent(signal="SIGUSR1"))
    assert [event["signal"] for event in read_events(tmp_path)] == ["SIGTERM", "SIGUSR1"]
    assert "events are written later" in caplog.text


def test_metrics_survive_full_disk(tmp_path):
    with Tracker(tmp_path, enabled=False) as tracker:
        with full_disk(tmp_path / "metrics.jsonl", free_bytes=3):
            tracker.log_metrics(1, {"loss": 2.0})
        tracker.log_metrics(2, {"loss": 1.0})
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_threads_append_each_line_once(path):
    journal = JournalFile(path)
    threads = [
        threading.Thread(target=lambda: [journal.append({"step": step}) for step in range(200)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(steps(path)) == sorted([*range(200)] * 8)


def test_line_after_incomplete_line(path):
    journal = JournalFile(path)
    path.write_text('{"time": 1, "st')
    journal.append({"step": 2})
    assert steps(path) == [2]


def test_time_is_not_before_last_line(path):
    """The system clock was an hour future when the last job wrote."""
    future = time.time() + 3600
    path.write_text(json.dumps({"time": future, "step": 1}) + "\n")
    source = (
        "import sys; from pathlib import Path; from megaptm.storage import JournalFile\n"
        "JournalFile(Path(sys.argv[1])).append({'step': 2})"
    )
    subprocess.run([sys.executable, "-c", source, str(path)], check=True)
    [_, second] = parse_journal(path.read_bytes())
    assert future <= second["time"] < future + 60


def test_time_ignores_clock_set_back(path, monkeypatch):
    journal = JournalFile(path)
    journal.append({"step": 1})
    monkeypatch.setattr(time, "time", lambda: 0.0)
    journal.append({"step": 2})
    first, second = parse_journal(path.read_bytes())
    assert first["time"] <= second["time"]


def test_implausible_time_in_journal_is_ignored(path):
    path.write_text(json.dumps({"time": 1e29}) + "\n")
    JournalFile(path).append({"step": 2})
    assert [*parse_journal(path.read_bytes())][1]["time"] < time.time() + 60
