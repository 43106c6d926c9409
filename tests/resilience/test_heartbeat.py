"""Beats of several ranks share a file, and a watchdog opens each file once."""

import socket
from collections import Counter
from pathlib import Path

import pytest

from megaptm.resilience import heartbeat
from megaptm.resilience.heartbeat import RANKS_PER_FILE, RECORD_BYTES, Heartbeat, beat_file, read_beats


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the heartbeat of a rank in the folder of the test."""
    started = []

    def start_rank(rank):
        started.append(Heartbeat(rank).open(tmp_path))
        return started[-1]

    yield start_rank
    for beating in started:
        beating.close()


def test_ranks_share_a_file_without_changing_each_others_beats(start, tmp_path):
    ranks = (1, 0, RANKS_PER_FILE - 1, RANKS_PER_FILE, 2 * RANKS_PER_FILE + 3)
    for rank in ranks:
        start(rank).enter("saving" if rank else "step")
    beats = read_beats(tmp_path, range(4 * RANKS_PER_FILE))
    assert sorted(beats) == sorted(ranks)
    assert {rank: beat.phase for rank, beat in beats.items()} == {rank: "saving" if rank else "step" for rank in ranks}
    assert sorted(path.name for path in tmp_path.glob("*.beats")) == [
        "ranks-0-7.beats",
        "ranks-16-23.beats",
        "ranks-8-15.beats",
    ]


def test_only_requested_ranks_are_returned(start, tmp_path):
    for rank in range(4):
        start(rank)
    assert sorted(read_beats(tmp_path, [2, 3, 9])) == [2, 3]


def test_each_file_is_opened_once(start, tmp_path, monkeypatch):
    for rank in range(2 * RANKS_PER_FILE):
        start(rank)
    opened = Counter()
    really = Path.open

    def count(path, *arguments, **options):
        opened[path.name] += 1
        return really(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", count)
    assert len(read_beats(tmp_path, range(2 * RANKS_PER_FILE))) == 2 * RANKS_PER_FILE
    assert opened == {"ranks-0-7.beats": 1, "ranks-8-15.beats": 1}


def test_longest_record_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    monkeypatch.setattr(heartbeat, "halted_children", lambda: [1 << 22] * heartbeat.MAX_READERS)
    with Heartbeat(1) as beating:
        beating._steps = beating._position = beating._count = 1 << 53
        beating._durations.append(1 / 3 * 1e-200)
        beating._phase = "data"
        beating.open(tmp_path)
        assert beat_file(tmp_path, 1).stat().st_size == 2 * RECORD_BYTES
        assert read_beats(tmp_path, [1])[1].halted_readers == [1 << 22] * heartbeat.MAX_READERS


def test_damaged_record_hides_no_other(start, tmp_path):
    for rank in range(3):
        start(rank)
    with beat_file(tmp_path, 0).open("r+b") as file:
        file.seek(RECORD_BYTES)
        file.write(b"{" * RECORD_BYTES)
    assert sorted(read_beats(tmp_path, range(3))) == [0, 2]
