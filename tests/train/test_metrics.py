"""Steps that are recorded in the metrics."""

import io
import re

from megaptm import console
from megaptm.track import read_metrics
from megaptm.train.metrics import _LogLines, _ProgressBar
from tests.drills.program import arguments
from tests.forked import megaptm


def test_first_and_last_step_are_recorded(real_corpus, tmp_path):
    run = tmp_path / "run"
    words = arguments("bert", run, real_corpus("wordpiece"), "train.log_every=5", "train.steps=12")
    megaptm("train", *words, "train.stop_at=7", code=75)
    output = megaptm("train", *words)
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 5, 10, 12]
    number = r"\d+\.\d{4}"
    each = rf"{number} \(mlm {number}, next-sentence {number}\)"
    assert re.search(rf"^step 10/12  loss {each}  lr", output, re.MULTILINE)
    assert re.search(rf"^step 12/12  validation loss {each}$", output, re.MULTILINE)


def test_progress_bar_shows_the_remaining_time_of_the_run(monkeypatch):
    """The estimate of rich needs two steps in 30 seconds, and leaves out validations and checkpoints."""
    terminal = console.Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(console, "Console", lambda: terminal)
    bar = _ProgressBar(100, start=40)
    bar.show_step_metrics(41, {"loss": 2.0, "tokens_per_second": 1000.0, "seconds_left": 5400.0})
    bar._progress.refresh()
    assert "41/100" in terminal.file.getvalue()
    assert "1:30:00 left" in terminal.file.getvalue()
    bar.close()


def test_lines_of_a_log_escape_control_characters(capsys):
    lines = _LogLines(10)
    lines.show_epoch(3, "corpora/\x1b[2J", 2)
    lines.show_validation(3, {"validation/loss": 1.0, "validation/\x1b[2J/loss": 2.0})
    assert capsys.readouterr().out == (
        "step 3/10  epoch 2 of corpora/\\x1b[2J starts\nstep 3/10  validation loss 1.0000 (\\x1b[2J 2.0000)\n"
    )
