"""Run with Adafactor: resume on another layout."""

import pytest

from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

ADAFACTOR = (
    *("optimizer.name=adafactor", "optimizer.lr=0.01", "optimizer.decay=rsqrt", "optimizer.min_lr_ratio=0.0"),
    *("optimizer.warmup_steps=0", "optimizer.stable_steps=2", "optimizer.adafactor.min_dim_size_to_factor=16"),
    *("optimizer.momentum=0.9", "layout.microbatch=2", "train.steps=4"),
)


def test_adafactor_run_resumes_on_another_layout(real_corpus, tmp_path):
    def train(name, *more, code=0):
        megaptm("train", *arguments("gpt2", tmp_path / name, real_corpus("byte-bpe"), *ADAFACTOR, *more), code=code)
        return tmp_path / name

    uninterrupted = losses(train("whole"))
    train("cut", "layout.data=2", "layout.distributed_optimizer=true", "train.stop_at=2", code=75)
    cut = train("cut", "layout.tensor=2")
    assert resumed_at(cut) == [2]
    assert losses(cut) == {step: pytest.approx(loss, rel=1e-5) for step, loss in uninterrupted.items()}
