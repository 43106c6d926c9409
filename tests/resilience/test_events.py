"""The journal keeps every event, from every process, in order, through crashes."""

import json
import subprocess
import sys
import time

import pytest
import torch

from megaptm.checkpoint.store import Store
from megaptm.checkpoint.tensors import Piece
from megaptm.resilience.events import Events, last_saved, read_events


def test_events_come_back_in_order_with_their_fields(tmp_path):
    before = time.time()
    with Events(tmp_path / "run") as events:
        events.write("start", layout={"tensor": 2}, processes=2)
        events.write("checkpoint", step=10, path=tmp_path, loss=float("nan"))
    start, checkpoint = read_events(tmp_path / "run")
    assert start["kind"] == "start"
    assert start["layout"] == {"tensor": 2}
    assert before - 1 <= start["time"] <= checkpoint["time"] <= time.time() + 1
    assert checkpoint["path"] == str(tmp_path)
    assert checkpoint["loss"] == "nan"


def test_no_journal_means_no_events(tmp_path):
    assert read_events(tmp_path) == []


def test_a_line_torn_by_a_crash_is_left_out_and_the_next_is_not_lost(tmp_path):
    with Events(tmp_path) as events:
        events.write("start")
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": 1, "kind": "check')
    assert [event["kind"] for event in read_events(tmp_path)] == ["start"]
    with Events(tmp_path) as events:
        events.write("exit", code=0)
    assert [event["kind"] for event in read_events(tmp_path)] == ["start", "exit"]


def test_an_unknown_kind_is_refused(tmp_path):
    with Events(tmp_path) as events, pytest.raises(AssertionError, match="add it to"):
        events.write("lunch")


def test_lines_of_several_processes_do_not_mix(tmp_path):
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.events import Events\n"
        "events = Events(Path(sys.argv[1]))\n"
        "for i in range(200): events.write('checkpoint', writer=sys.argv[2], number=i, text='x' * 3000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    # Who opens the journal while another writes may see half a line and end it, which leaves an empty one.
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines() if line]
    for name in "ab":
        assert [line["number"] for line in lines if line["writer"] == name] == list(range(200))


def test_a_checkpoint_that_was_committed_and_not_written_down_counts(tmp_path):
    """A job can be killed between the two."""
    assert last_saved(tmp_path) == 0
    with Events(tmp_path) as events:
        events.write("checkpoint", step=10, bytes=1, seconds=0.1)
    store = Store(tmp_path, fence=lambda: True)
    store.prepare(20)
    store.write(20, 0, [Piece("weight/a", (1,), (0,), (1,), torch.ones(1))])
    assert last_saved(tmp_path) == 10
    store.commit(20, {}, ranks=1)
    assert last_saved(tmp_path) == 20
