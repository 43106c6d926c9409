"""The journal keeps every event, from every process, in order, through crashes."""

import dataclasses
import json
import subprocess
import sys
import time

import pytest
import torch

from megaptm.checkpoint.store import Store
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.resilience.events import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    Events,
    StartEvent,
    StopSignalEvent,
    last_saved,
    read_events,
)
from tests import ROOT


def test_events_come_back_in_order_with_their_fields(tmp_path):
    before = time.time()
    with Events(tmp_path / "run") as events:
        events.write(StartEvent(parameters=3, layout={"tensor": 2}, processes=2))
        events.write(EvaluationEvent(step=10, rows=4, loss=float("nan")))
    start, evaluation = read_events(tmp_path / "run")
    assert start["kind"] == "start"
    assert start["layout"] == {"tensor": 2}
    assert (start["parameters"], start["processes"]) == (3, 2)
    assert before - 1 <= start["time"] <= evaluation["time"] <= time.time() + 1
    assert evaluation | {"time": 0} == {"time": 0, "kind": "evaluation", "step": 10, "rows": 4, "loss": "nan"}


SOME = {"int": 3, "float": 0.5, "float | None": None, "str": "text", "Sequence[str]": ["a"], "Sequence[int]": [1]}


@pytest.mark.parametrize("event", Event.__subclasses__(), ids=lambda event: event.kind)
def test_every_kind_comes_back(event, tmp_path):
    """A field may be a number in one kind and text in another, as `checkpoint` is."""
    given = {field.name: SOME.get(field.type, {}) for field in dataclasses.fields(event)}
    with Events(tmp_path) as events:
        events.write(event(**given))
    [found] = read_events(tmp_path)
    assert found == {"time": found["time"], "kind": event.kind, **given}


def test_no_journal_means_no_events(tmp_path):
    assert read_events(tmp_path) == []


def test_a_line_torn_by_a_crash_is_left_out_and_the_next_is_not_lost(tmp_path):
    with Events(tmp_path) as events:
        events.write(StopSignalEvent(signal="SIGTERM"))
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 1, "kind": "check')
    assert [event["kind"] for event in read_events(tmp_path)] == ["stop-signal"]
    with Events(tmp_path) as events:
        events.write(StopSignalEvent(signal="SIGUSR1"))
    assert [event["signal"] for event in read_events(tmp_path)] == ["SIGTERM", "SIGUSR1"]


def test_no_two_kinds_have_one_name():
    with pytest.raises(AssertionError, match="two kinds of event are called exit"):

        class Another(Event, kind="exit"):
            pass


def test_what_is_no_declared_event_does_not_pass_the_type_checker(tmp_path):
    """mypy looks at every writer; here it looks at four that are wrong, and at one that is not."""
    program = tmp_path / "program.py"
    program.write_text(
        "from megaptm.resilience import events\n"
        "def write(journal: events.Events) -> None:\n"
        "    journal.write(events.EpochEvent(step=1, corpus='books', epoch=2))\n"
        "    journal.write('epoch', step=1, corpus='books', epoch=2)\n"
        "    journal.write(events.LunchEvent(step=1))\n"
        "    journal.write(events.EpochEvent(step=1, epoch=2))\n"
        "    journal.write(events.EpochEvent(step=1, corpus='books', epoch='second'))\n"
    )
    # In the checkout, for what `make types` knows already; in a process of its own, for it deepens recursion.
    command = [sys.executable, "-m", "mypy", program]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line} == {4, 5, 6, 7}, found


def test_lines_of_several_processes_do_not_mix(tmp_path):
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.events import Events, WorkerLostEvent\n"
        "events = Events(Path(sys.argv[1]))\n"
        "for i in range(200): events.write(WorkerLostEvent(rank=i, code=1, problem=sys.argv[2] * 3000))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    # Who opens the journal while another writes may see half a line and end it, which leaves an empty one.
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines() if line]
    for name in "ab":
        assert [line["rank"] for line in lines if line["problem"] == name * 3000] == list(range(200))


def test_a_checkpoint_that_was_committed_and_not_written_down_counts(tmp_path):
    """A job can be killed between the two."""
    assert last_saved(tmp_path) == 0
    with Events(tmp_path) as events:
        events.write(CheckpointEvent(step=10, bytes=1, seconds=0.1))
    store = Store(tmp_path, fence=lambda: True)
    store.prepare(20)
    store.write(20, 0, [TensorPiece("weight/a", (1,), (0,), (1,), torch.ones(1))])
    assert last_saved(tmp_path) == 10
    store.commit(20, {}, ranks=1)
    assert last_saved(tmp_path) == 20
