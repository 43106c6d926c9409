"""Resume with a moved corpus and more steps."""

import shutil

from megaptm.track import read_metrics
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm


def rates(run):
    return {record["step"]: record["learning_rate"] for record in read_metrics(run) if "learning_rate" in record}


def test_resume_with_moved_corpus_and_more_steps_is_bit_identical(real_corpus, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(real_corpus("byte-bpe"), new)
    longer = ("optimizer.warmup_steps=1", "train.steps=6", "optimizer.decay_steps=3")
    megaptm("train", *arguments("gpt2", tmp_path / "whole", new, *longer))
    new.rename(old)
    run = tmp_path / "run"
    megaptm("train", *arguments("gpt2", run, old, "optimizer.warmup_steps=1", "train.steps=3"))
    old.rename(new)
    megaptm("train", str(run), f"data.mix={{{new}: 1}}", *longer)
    assert resumed_at(run) == [3]
    assert losses(run) == losses(tmp_path / "whole")
    assert rates(run) == rates(tmp_path / "whole")
