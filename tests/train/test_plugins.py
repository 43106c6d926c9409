"""Custom objectives that fail during training lose no finished step."""

import pytest

from tests.drills.program import arguments, checkpoints, finish
from tests.forked import megaptm

OBJECTIVES = """
import os
import time
from itertools import count

from megaptm.objectives.causal import CausalLM

MADE = count(1)


class Mine(CausalLM):
    name = "mine"

    def make_sample(self, *arguments):
        if next(MADE) > 30:
            raise KeyError("label")
        return super().make_sample(*arguments)


class Silent(CausalLM):
    name = "silent"

    def make_sample(self, *arguments):
        sample = super().make_sample(*arguments)
        return sample if next(MADE) <= 24 else sample | {"labels": sample["labels"] * 0 - 100}


class Weighed(CausalLM):
    name = "weighed"

    def weights(self, step):
        return {"lm": 1.0} if step < 2 else {"llm": 1.0}


class Leaving(CausalLM):
    name = "leaving"

    def make_sample(self, *arguments):
        if next(MADE) > 30:
            time.sleep(2)  # until the rank waits for it
            os._exit(3)
        return super().make_sample(*arguments)


class Ours(Mine):
    __module__ = "megaptm.objectives.mine"


OURS = Ours()
MINE, SILENT, WEIGHED, LEAVING = Mine(), Silent(), Weighed(), Leaving()
"""


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(OBJECTIVES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "run"


def test_failing_custom_objective_ends_a_saved_run(run, corpus):
    done = finish("train", *arguments("gpt2", run, corpus, "objective=of_mine:MINE", "train.steps=6"))
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: sample 30, of ")
    assert line.endswith(
        f": objective mine failed (KeyError: 'label', {run.parent}/of_mine.py:16): fix it; the run is saved at step 2."
    )
    assert checkpoints(run) == [2]
    assert "KeyError" in (run / "logs/rank-0.log").read_text()


def test_bug_of_megaptm_is_a_traceback_after_saving(run, corpus):
    more = ("objective=of_mine:OURS", "train.steps=6", "layout.data=2", "data.workers=1", "train.batch=12")
    output = megaptm("train", *arguments("gpt2", run, corpus, *more), code=1)
    assert "Traceback" in output
    assert "KeyError: 'label'" in output
    assert checkpoints(run) == [5]


def test_step_without_labels_ends_a_saved_run(run, corpus):
    output = megaptm("train", *arguments("gpt2", run, corpus, "objective=of_mine:SILENT", "train.steps=6"), code=2)
    line = output.splitlines()[-1]
    assert line.startswith("error: step 3 was rejected and changed no weight: no sample has a label, all labels")
    assert line.endswith("; the run is saved at step 2.")
    assert checkpoints(run) == [2]


def test_invalid_loss_weights_end_a_saved_run(run, corpus):
    output = megaptm("train", *arguments("gpt2", run, corpus, "objective=of_mine:WEIGHED", "train.steps=6"), code=2)
    assert output.splitlines()[-1] == (
        "error: objective weighed: weights(2) has no lm: it must have a weight for each loss (lm); the run is saved at "
        "step 2."
    )
    assert checkpoints(run) == [2]


def test_exiting_loader_worker_is_not_reported_as_out_of_memory(run, corpus):
    more = ("objective=of_mine:LEAVING", "train.steps=40", "data.workers=1")
    output = megaptm("train", *arguments("gpt2", run, corpus, *more), code=1)
    assert "exit code 3" in output
    assert "whether code of the objective ends its process" in output
    assert "memory" not in output
