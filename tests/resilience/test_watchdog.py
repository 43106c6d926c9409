"""For how long a rank may stand still or be silent, and how those that do are told."""

from collections import Counter
from types import SimpleNamespace

import pytest

from megaptm.resilience.heartbeat import END, Beat, stacks_file
from megaptm.resilience.watchdog import Limits, Seen, Watchdog, find_hanging_rank, rank_spans

HANG = Limits(hang_seconds=4.0, patience=60.0)


def seen(phase, step_seconds, *, position=7, silent=0.0, still=0.0):
    beat = Beat(
        host="another", pid=1, thread=1, count=9, position=position, phase=phase, step=3, step_seconds=step_seconds
    )
    return Seen(beat=beat, silent=silent, still=still)


@pytest.mark.parametrize(
    ("phase", "step_seconds", "allowed", "asked_to_stop"),
    [
        # To start takes as long as it takes, whatever the steps that the seconds were chosen for.
        ("starting", 0.0, 300, 4),
        ("loading", 0.0, 300, 4),
        ("data", 0.0, 300, 4),
        ("step", 0.0, 300, 4),
        ("step", 0.1, 4, 4),
        ("step", 2.0, 20, 20),
        ("between", 0.1, 4, 4),
        ("data", 0.1, 64, 4),
        ("validation", 0.1, 80, 80),
        ("saving", 0.1, 80, 80),
        ("ending", 0.1, 80, 80),
    ],
)
def test_a_phase_may_take(phase, step_seconds, allowed, asked_to_stop):
    for stopping, seconds in ((False, allowed), (True, asked_to_stop)):
        for still in (0.9 * seconds, 1.1 * seconds):
            ranks = {
                0: seen(phase, step_seconds, still=still),
                1: seen("ending", step_seconds, position=8, still=still),
            }
            assert HANG.suspects(ranks, stopping=stopping) == ([0] if still > seconds else [])


def test_who_had_waited_long_for_data_when_asked_to_stop_has_the_time_to_save():
    for phase, left in (("data", 4), ("step", 0)):
        for still in (50 + 0.9 * left, 50 + 1.1 * left + 0.1):
            waiting = seen(phase, 0.1, still=still)
            waiting.waited = 50.0
            assert HANG.suspects({0: waiting}, stopping=True) == ([0] if still > 50 + left or not left else [])


def test_what_was_waited_before_a_stop_is_noted_once(tmp_path, monkeypatch):
    clock = 0.0
    monkeypatch.setattr("megaptm.resilience.watchdog.time.monotonic", lambda: clock)
    watchdog = Watchdog(tmp_path / "beats", [0], limits=HANG).clear()
    waiting = watchdog._seen[0] = seen("data", 0.1, still=50.0)
    for asked in (True, True, True):
        clock += 1000.0  # each look counts twice the seconds between two beats
        assert watchdog.look(stopping=asked) is None
    assert 50 < waiting.waited < waiting.still < 54


@pytest.mark.parametrize(
    ("phase", "others_silent", "allowed"),
    [("step", False, 4), ("saving", False, 4), ("step", True, 80), ("starting", False, 300), ("loading", True, 300)],
)
def test_a_rank_may_be_silent_for(phase, others_silent, allowed):
    for silent in (0.9 * allowed, 1.1 * allowed):
        ranks = {0: seen(phase, 0.1), 1: seen(phase, 0.1, silent=silent)}
        ranks[0].silent = 0.9 * allowed if others_silent else 0.0
        assert HANG.suspects(ranks, stopping=False) == ([1] if silent > allowed else [])


def test_who_looks_after_another_one_has_always_comes_later():
    """Also where the phase's own limit counts, and not the seconds that are set."""
    later = Limits(hang_seconds=4.0, times=1.5)
    for phase, step_seconds, allowed in (("loading", 0.0, 300), ("step", 2.0, 20), ("step", 0.1, 4)):
        for still in (1.1 * allowed, 1.6 * allowed):
            found = later.suspects({0: seen(phase, step_seconds, still=still)}, stopping=False)
            assert found == ([0] if still > 1.5 * allowed else [])


def test_many_ranks_are_told_as_spans():
    assert rank_spans([1, 0]) == "0, 1"
    assert rank_spans([5, *range(1023, 6, -1)]) == "5, 7-1023"
    assert rank_spans(range(0, 1024, 2)) == "0, 2, 4, 6, 8, 10, 12, 14 and 504 more"


COLLECTIVE = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce\n'
COMPUTES = '  File "/home/me/mine.py", line 1 in compute\n'


PASSES_ON = """\
  File "/x/megaptm/words/sharded_table.py", line 70 in pass_on
  File "/x/megaptm/words/rotating_table.py", line 28 in rotate
  File "/x/megaptm/words/pair_engine.py", line 131 in _through"""


def test_who_does_not_wait_for_others_is_accused_and_a_thousand_are_told_in_a_line():
    assert find_hanging_rank({0: COLLECTIVE, 1: COMPUTES, 2: COLLECTIVE}) == (1, "")
    assert find_hanging_rank({0: PASSES_ON, 1: COLLECTIVE, 2: COMPUTES}) == (2, "")
    assert find_hanging_rank({3: COLLECTIVE}) == (3, "")
    assert find_hanging_rank(dict.fromkeys(range(1024), COMPUTES)) == (0, "; so does rank 1-1023")
    assert find_hanging_rank(dict.fromkeys(range(1024), COLLECTIVE)) == (
        0,
        "; all 1,024 that are there (rank 0-1023) wait for each other",
    )


def test_who_has_not_answered_is_looked_at_less_and_less_often(tmp_path, monkeypatch):
    watchdog, pauses = Watchdog(tmp_path / "beats", [0, 1], limits=HANG).clear(), []
    looks = Counter()

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            stacks_file(watchdog.folder, 0).write_bytes(b"Thread 0x1\n" + END)

    def file(folder, rank):
        looks[rank] += 1
        return stacks_file(folder, rank)

    monkeypatch.setattr("megaptm.resilience.watchdog.stacks_file", file)
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep)
    monkeypatch.setattr("megaptm.resilience.watchdog.time", clock)
    monkeypatch.setattr(watchdog, "_every", 5.0)
    watchdog._ask_for_stacks([0, 1])
    assert sum(pauses) >= 15.0
    assert looks[0] == 1 + 3
    assert looks[1] < 25
