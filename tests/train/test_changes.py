"""Recipe that changes on resume: equal to the run that had it from the start, and bit-identical when resumed."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from megaptm.commands.checkpoint import diff_checkpoints_command
from megaptm.report.summary import report_run
from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests.commands import run_command
from tests.drills.program import TIMEOUT_SECONDS, arguments, losses, resumed_at
from tests.forked import megaptm
from tests.train.runs import build, write_text

STEPS, CHANGED, STOPPED = 8, 3, 6
CONSTANT = (f"train.steps={STEPS}", "optimizer.warmup_steps=0", "optimizer.decay=constant", "checkpoint.keep=9")


class Runs:
    """Runs of one tiny GPT-2; `started` is stopped after 3 of 8 steps."""

    def __init__(self, folder):
        self.folder = folder
        tales, self.other = (folder / f"corpus-{seed}" for seed in range(2))
        self.corpus = build(write_text(folder / "text-0", documents=200), tales, "gpt2")
        self.started = self.train("started", *CONSTANT, f"train.stop_at={CHANGED}", code=75)

    def train(self, name, *more, code=0):
        megaptm("train", *arguments("gpt2", self.folder / name, self.corpus, *more), code=code)
        return self.folder / name

    def change(self, name, *more):
        """Change a copy of the begun run and train it to its end; then the same with a stop in between."""
        through, stopped = (shutil.copytree(self.started, self.folder / f"{name}-{suffix}") for suffix in ("a", "b"))
        megaptm("train", through, "train.stop_at=null", *more, "--change")
        megaptm("train", stopped, f"train.stop_at={STOPPED}", *more, "--change", code=75)
        megaptm("train", stopped)
        assert resumed_at(stopped) == [CHANGED, STOPPED]
        assert losses(through) == losses(stopped)
        return stopped


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("changes"))


def column(run, name):
    return {record["step"]: record[name] for record in read_metrics(run) if name in record}


def state(run, step=STEPS):
    return json.loads((run / f"checkpoints/step-{step:08d}/manifest.json").read_text())["state"]


def test_changed_batch_equals_a_ramp_from_the_start(runs):
    changed = runs.change("batch", "train.batch=24")
    ramp = runs.train("ramp", *CONSTANT, "train.batch=24", f"train.ramp={{steps: {{0: 12, {CHANGED}: 24}}}}")
    assert losses(changed) == losses(ramp)
    assert column(changed, "samples") == column(ramp, "samples")


def test_changed_schedule_equals_that_from_the_start(runs):
    """A decay that begins at the change equals a run that had stable steps and the decay from the start."""
    decay = ("optimizer.decay=linear", f"optimizer.stable_steps={CHANGED}")
    changed = runs.change("schedule", *decay)
    stable = runs.train("stable", *CONSTANT, *decay)
    assert losses(changed) == losses(stable)
    assert column(changed, "learning_rate") == column(stable, "learning_rate")


def test_changed_learning_rate_starts_at_the_next_step(runs):
    changed = runs.change("rate", "optimizer.lr=2e-3")
    constant = runs.train("constant", *CONSTANT)
    assert [*column(changed, "learning_rate").values()] == [1e-3] * CHANGED + [2e-3] * (STEPS - CHANGED)
    same = [losses(changed)[step] == losses(constant)[step] for step in range(1, STEPS + 1)]
    assert same == [True] * (CHANGED + 1) + [False] * (STEPS - CHANGED - 1)


def test_other_text_continues_each_corpus(runs):
    mix = {str(runs.corpus): 1, str(runs.other): 3}
    build(
        write_text(runs.folder / "text-1", documents=200, seed=1),
        runs.other,
        "gpt2",
        tokenizer=runs.corpus / "tokenizer",
    )
    changed = runs.change("mix", f"data.mix={json.dumps(mix)}")
    before, after = (state(changed, step)["cursors"] for step in (CHANGED, STEPS))
    assert before == {str(runs.corpus): 12 * CHANGED}
    assert sum(after.values()) == 12 * STEPS
    assert after[str(runs.corpus)] > before[str(runs.corpus)]
    assert after[str(runs.other)] > 12
    assert "data.cursors.read.corpus-0: " in run_command(diff_checkpoints_command, f"{changed}@{CHANGED}", changed)
    assert '"data.cursors.read.corpus-0": ' in (changed / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("answer", "code"), [("n", 2), ("y", 75)])
def test_terminal_question_about_a_change(runs, answer, code):
    run = shutil.copytree(runs.started, runs.folder / f"answer-{answer}")
    command = [sys.executable, "-m", "megaptm", "train", str(run), "optimizer.lr=2e-3", "train.stop_at=4"]
    terminal, other = pty.openpty()
    program = subprocess.Popen(command, stdin=other, stdout=other, stderr=other)
    os.close(other)
    os.write(terminal, f"{answer}\n".encode())
    output = read_all(terminal)
    assert program.wait(TIMEOUT_SECONDS) == code, output
    assert "optimizer.lr is 0.002, was 0.001" in output
    assert "--change" not in output
    assert ("keeps its config, and was not started." in output) == (answer == "n")


def read_all(terminal):
    output = b""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while piece := os.read(terminal, 4096):
            output += piece
    return output.decode()


def test_dropout_precision_seed_and_optimizer_change_together(runs):
    more = ("model.dropout=0.3", "train.precision=bf16", "train.seed=9", "optimizer.betas=[0.8, 0.9]")
    changed = runs.change("all", *more)
    [event] = [event for event in read_events(changed) if event["kind"] == "change"]
    assert event["step"] == CHANGED
    assert [*event["after"]] == ["model.dropout", "optimizer.betas", "train.precision", "train.seed"]
    lines = (changed / "metrics.jsonl").read_text().splitlines()
    params = [record["params"] for record in map(json.loads, lines) if "params" in record]
    assert params[-1][f"change.step-{CHANGED}"].startswith("model.dropout 0.0 to 0.3, optimizer.betas")
    report_run(changed)
    assert (changed / "report/loss.png").is_file()
