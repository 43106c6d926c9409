"""Time limits of the watchdog, and its messages about hanging ranks."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from megaptm.resilience.heartbeat import END, Beat, stacks_file
from megaptm.resilience.watchdog import RankState, Watchdog, WatchdogLimits, find_hanging_rank, format_ranks, newer_beat

HANG = WatchdogLimits(hang_seconds=4.0, data_timeout=60.0)


def rank_state(phase, step_seconds, *, position=7, seconds_silent=0.0, seconds_in_phase=0.0):
    beat = Beat(
        host="another", pid=1, thread=1, count=9, position=position, phase=phase, step=3, step_seconds=step_seconds
    )
    return RankState(beat=beat, seconds_silent=seconds_silent, seconds_in_phase=seconds_in_phase)


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize(
    ("phase", "step_seconds", "allowed", "allowed_when_stopping"),
    [
        # The start may take long even if steps and `hang_seconds` are short.
        ("starting", 0.0, 300, 4),
        ("loading", 0.0, 300, 4),
        ("data", 0.0, 300, 4),
        ("step", 0.0, 300, 4),
        ("step", 0.1, 4, 4),
        ("step", 2.0, 20, 20),
        ("between", 0.1, 4, 4),
        ("data", 0.1, 64, 4),
        ("validation", 0.1, 80, 80),
        ("callbacks", 0.1, 80, 80),
        ("saving", 0.1, 80, 80),
        ("ending", 0.1, 80, 80),
    ],
)
def test_max_seconds_in_phase(phase, step_seconds, allowed, allowed_when_stopping, stopping):
    seconds = allowed_when_stopping if stopping else allowed
    ahead = rank_state("ending", step_seconds, position=8, seconds_in_phase=2 * seconds)
    in_time = rank_state(phase, step_seconds, seconds_in_phase=0.9 * seconds)
    assert HANG.find_suspects({0: in_time, 1: ahead}, stopping=stopping) == []
    late = rank_state(phase, step_seconds, seconds_in_phase=1.1 * seconds)
    assert HANG.find_suspects({0: late, 1: ahead}, stopping=stopping) == [0]


@pytest.mark.parametrize(
    ("phase", "seconds_after_stop", "suspects"), [("data", 3.6, []), ("data", 4.5, [0]), ("step", 0.1, [0])]
)
def test_stop_allows_time_to_save_after_long_wait_for_data(phase, seconds_after_stop, suspects):
    waiting = rank_state(phase, 0.1, seconds_in_phase=50 + seconds_after_stop)
    waiting.waited_before_stop = 50.0
    assert HANG.find_suspects({0: waiting}, stopping=True) == suspects


def test_wait_before_stop_is_recorded_once(tmp_path, monkeypatch):
    clock = 0.0
    monkeypatch.setattr("megaptm.resilience.watchdog.time.monotonic", lambda: clock)
    watchdog = Watchdog(tmp_path / "beats", [0], limits=HANG).clear()
    waiting = watchdog._states[0] = rank_state("data", 0.1, seconds_in_phase=50.0)
    for stopping in (True, True, True):
        clock += 1000.0  # each check counts at most two intervals between beats
        assert watchdog.check_progress(stopping=stopping) is None
    assert 50 < waiting.waited_before_stop < waiting.seconds_in_phase < 54


@pytest.mark.parametrize(
    ("phase", "all_silent", "allowed"),
    [("step", False, 4), ("saving", False, 4), ("step", True, 80), ("starting", False, 300), ("loading", True, 300)],
)
def test_max_seconds_silent(phase, all_silent, allowed):
    other = rank_state(phase, 0.1, seconds_silent=0.9 * allowed if all_silent else 0.0)
    in_time = rank_state(phase, 0.1, seconds_silent=0.9 * allowed)
    assert HANG.find_suspects({0: other, 1: in_time}, stopping=False) == []
    late = rank_state(phase, 0.1, seconds_silent=1.1 * allowed)
    assert HANG.find_suspects({0: other, 1: late}, stopping=False) == [1]


@pytest.mark.parametrize(
    ("phase", "step_seconds", "allowed"), [("loading", 0.0, 300), ("step", 2.0, 20), ("step", 0.1, 4)]
)
def test_factor_applies_to_all_limits(phase, step_seconds, allowed):
    limits = WatchdogLimits(hang_seconds=4.0, factor=1.5)
    in_time = rank_state(phase, step_seconds, seconds_in_phase=1.4 * allowed)
    assert limits.find_suspects({0: in_time}, stopping=False) == []
    late = rank_state(phase, step_seconds, seconds_in_phase=1.6 * allowed)
    assert limits.find_suspects({0: late}, stopping=False) == [0]


def test_format_ranks_as_spans():
    assert format_ranks([1, 0]) == "0, 1"
    assert format_ranks([5, *range(1023, 6, -1)]) == "5, 7-1023"
    assert format_ranks(range(0, 1024, 2)) == "0, 2, 4, 6, 8, 10, 12, 14 and 504 more"


def test_beat_that_another_machine_wrote_back_is_ignored():
    older, newer = (rank_state("step", 0.1, position=position).beat for position in (7, 8))
    assert newer_beat(older, newer) == newer_beat(newer, older) == newer
    assert newer_beat(None, older) == newer_beat(older, None) == older
    assert newer_beat(None, None) is None


COLLECTIVE = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce\n'
COMPUTES = '  File "/home/me/mine.py", line 1 in compute\n'


SENDS = """\
  File "/x/megaptm/parallel/collectives.py", line 56 in send_to_previous
  File "/x/megaptm/families/word_vectors/sharded_table.py", line 70 in send_to_previous
  File "/x/megaptm/families/word_vectors/sharded_table.py", line 28 in rotate"""


def test_find_hanging_rank():
    assert find_hanging_rank({0: COLLECTIVE, 1: COMPUTES, 2: COLLECTIVE}) == (1, "")
    assert find_hanging_rank({0: SENDS, 1: COLLECTIVE, 2: COMPUTES}) == (2, "")
    assert find_hanging_rank({3: COLLECTIVE}) == (3, "")
    assert find_hanging_rank(dict.fromkeys(range(1024), COMPUTES)) == (0, "; the same holds for rank 1-1023")
    assert find_hanging_rank(dict.fromkeys(range(1024), COLLECTIVE)) == (
        0,
        "; all 1,024 remaining ranks (0-1023) wait for each other",
    )


@pytest.mark.parametrize(
    ("hosts", "stacks", "node"),
    [
        (["a", "b"], [COMPUTES, COLLECTIVE], "a"),
        (["a", "a"], [COMPUTES, COMPUTES], "a"),
        (["a", "b"], [COMPUTES, COMPUTES], None),
        (["a", "b"], [COLLECTIVE, COLLECTIVE], None),
    ],
)
def test_hang_names_its_node_only_if_no_other_may_be_the_cause(tmp_path, hosts, stacks, node):
    watchdog = Watchdog(tmp_path / "beats", [0, 1], limits=HANG).clear()
    for rank, (host, stack) in enumerate(zip(hosts, stacks, strict=True)):
        beat = rank_state("step", 0.1, seconds_silent=1000.0).beat
        watchdog._states[rank] = rank_state("step", 0.1, seconds_silent=1000.0)
        watchdog._states[rank].beat = replace(beat, host=host)
        stacks_file(watchdog.folder, rank).write_text(f"Thread {beat.thread:#x} (most recent call first):\n{stack}")
    hang = watchdog._find_hang([0, 1], (), stopping=False)
    assert (hang.event.rank, hang.event.node) == (0, node)


def test_stacks_are_polled_less_and_less_often(tmp_path, monkeypatch):
    watchdog, pauses = Watchdog(tmp_path / "beats", [0, 1], limits=HANG).clear(), []
    num_polls = Counter()

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            stacks_file(watchdog.folder, 0).write_bytes(b"Thread 0x1\n" + END)

    def count_poll(folder, rank):
        num_polls[rank] += 1
        return stacks_file(folder, rank)

    monkeypatch.setattr("megaptm.resilience.watchdog.stacks_file", count_poll)
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep)
    monkeypatch.setattr("megaptm.resilience.watchdog.time", clock)
    monkeypatch.setattr(watchdog, "_interval", 5.0)
    watchdog._request_stacks([0, 1])
    assert sum(pauses) >= 15.0
    assert num_polls[0] == 1 + 3
    assert num_polls[1] < 25
