"""The journal contains each event of each process in order, also after crashes."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import time

import pytest
import torch

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.resilience.events import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    Events,
    StartEvent,
    StopSignalEvent,
    last_saved_step,
    read_events,
)
from tests import ROOT


def test_events_are_read_in_order(tmp_path):
    before = time.time()
    with Events(tmp_path / "run") as events:
        events.write(StartEvent(parameters=3, layout={"tensor": 2}, processes=2))
        events.write(EvaluationEvent(step=10, samples=4, loss=float("nan")))
    start, evaluation = read_events(tmp_path / "run")
    assert start["kind"] == "start"
    assert start["layout"] == {"tensor": 2}
    assert (start["parameters"], start["processes"]) == (3, 2)
    assert before - 1 <= start["time"] <= evaluation["time"] <= time.time() + 1
    assert evaluation | {"time": 0} == {"time": 0, "kind": "evaluation", "step": 10, "samples": 4, "loss": "nan"}


EXAMPLES = {"int": 3, "float": 0.5, "float | None": None, "str": "text", "Sequence[str]": ["a"], "Sequence[int]": [1]}


@pytest.mark.parametrize("event", Event.__subclasses__(), ids=lambda event: event.kind)
def test_every_kind_is_read_back(event, tmp_path):
    """A field may be a number in one kind and text in another: `checkpoint` is both."""
    values = {field.name: EXAMPLES.get(field.type, {}) for field in dataclasses.fields(event)}
    with Events(tmp_path) as events:
        events.write(event(**values))
    [read] = read_events(tmp_path)
    assert read == {"time": read["time"], "kind": event.kind, **values}


def test_missing_journal_is_empty(tmp_path):
    assert read_events(tmp_path) == []


def test_truncated_line_is_skipped(tmp_path):
    with Events(tmp_path) as events:
        events.write(StopSignalEvent(signal="SIGTERM"))
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 1, "kind": "check')
    assert [event["kind"] for event in read_events(tmp_path)] == ["stop-signal"]
    with Events(tmp_path) as events:
        events.write(StopSignalEvent(signal="SIGUSR1"))
    assert [event["signal"] for event in read_events(tmp_path)] == ["SIGTERM", "SIGUSR1"]


def test_duplicate_kind_is_rejected():
    with pytest.raises(AssertionError, match="two kinds of event are called exit"):

        class Another(Event, kind="exit"):
            pass


def test_mypy_rejects_undeclared_events(tmp_path):
    """The program has four invalid writers and a valid one."""
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
    # In the checkout, for the cache of `make types`; in another process, because mypy raises the recursion limit.
    command = [sys.executable, "-m", "mypy", program]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line} == {4, 5, 6, 7}, output


def test_concurrent_writers_do_not_mix_lines(tmp_path):
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.events import Events, WorkerLostEvent\n"
        "events = Events(Path(sys.argv[1]))\n"
        "for i in range(200): events.write(WorkerLostEvent(rank=i, code=1, problem=sys.argv[2] * 3000))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    # A writer that opens the journal during another's write may end the incomplete line, which leaves an empty one.
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines() if line]
    for name in "ab":
        assert [line["rank"] for line in lines if line["problem"] == name * 3000] == list(range(200))


def test_last_saved_step_counts_unrecorded_commits(tmp_path):
    """A job may be killed between the commit and its event."""
    assert last_saved_step(tmp_path) == 0
    with Events(tmp_path) as events:
        events.write(CheckpointEvent(step=10, bytes=1, seconds=0.1))
    store = CheckpointStore(tmp_path, fence=lambda: True)
    store.prepare(20)
    store.write(20, 0, [TensorPiece("weight/a", (1,), (0,), (1,), torch.ones(1))])
    assert last_saved_step(tmp_path) == 10
    store.commit(20, {}, ranks=1)
    assert last_saved_step(tmp_path) == 20


def test_disk_that_fails_does_not_add_a_failure(faulty_files, tmp_path):
    """A full disk made the report of a killed rank fail, and prevented the restart."""
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.events import InterruptEvent, record_events\n"
        "record_events(Path(sys.argv[1]), InterruptEvent())"
    )
    environment = {**os.environ, **faulty_files(("write", "events.jsonl", errno.ENOSPC, -1))}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert read_events(tmp_path) == []
