"""What the published configs say is what their papers say."""

from math import ceil
from pathlib import Path

import pytest

from megaptm.config import Config, load, resolve_model
from megaptm.plan.count import count
from tests.plan.test_count import EXACT

CONFIGS = Path(__file__).parents[2] / "configs"
ALL = [path for family in ("gpt2", "gpt3", "bert", "t5") for path in sorted((CONFIGS / family).glob("*.yaml"))]
# arXiv:2005.14165, table 2.1: peak rate, and tokens of a batch in millions as printed.
GPT3 = {
    "small": (6.0e-4, 0.5),
    "medium": (3.0e-4, 0.5),
    "large": (2.5e-4, 0.5),
    "xl": (2.0e-4, 1.0),
    "2.7b": (1.6e-4, 1.0),
    "6.7b": (1.2e-4, 2.0),
    "13b": (1.0e-4, 2.0),
    "175b": (0.6e-4, 3.2),
}
# BERT's own repository publishes this model: its vocabulary has 21,128 words.
CHINESE = 102_267_648


def config(name: str) -> Config:
    return load(CONFIGS / f"{name}.yaml")


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_config_has_as_many_parameters_as_the_published_model(path):
    found = load(path)
    wanted = CHINESE if "chinese" in path.stem else EXACT[found.model.family, found.model.size]
    assert count(resolve_model(found)) == wanted


@pytest.mark.parametrize("size", GPT3)
def test_gpt3_has_the_papers_batch_rate_and_tokens(size):
    """Appendix B: 300 billion tokens, warm-up over 375 million, cosine to a tenth at 260 billion."""
    found = config(f"gpt3/{size}")
    rate, millions = GPT3[size]
    tokens = found.train.batch * found.data.sequence
    assert found.data.sequence == 2048
    assert tokens == pytest.approx(millions * 1e6, rel=0.05)
    assert found.train.steps == ceil(300e9 / tokens)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps) == (rate, (0.9, 0.95), 1e-8)
    assert (optimizer.weight_decay, optimizer.clip) == (0.1, 1.0)
    assert (optimizer.decay, optimizer.final) == ("cosine", 0.1)
    assert (optimizer.warmup_steps, optimizer.decay_steps) == (ceil(375e6 / tokens), ceil(260e9 / tokens))


@pytest.mark.parametrize(
    ("size", "words", "billions", "steps"),
    [
        ("175b", ["devices=64"], 12, 111_355),
        ("small", ["layout.microbatch=2"], 4, 591_581),
    ],
)
def test_gpt3_ramps_as_docs_say(size, words, billions, steps):
    """Appendix B: from 32 thousand tokens; the commands of docs/configs.md read 300 billion of them."""
    ramp = f"train.ramp={{start: 16, increment: 16, samples: {billions * 10**9 // 2048}}}"
    command = " ".join(["megaptm train", f"configs/gpt3/{size}.yaml", *words, ramp, f"train.steps={steps}"])
    assert command in (CONFIGS.parent / "docs/configs.md").read_text(encoding="utf-8").replace("'", "")
    batches = load(CONFIGS / f"gpt3/{size}.yaml", [*words, ramp, f"train.steps={steps}"]).batches
    assert batches.size(0) * 2048 == 32_768
    assert batches.first(steps - 1) * 2048 < 300e9 <= batches.first(steps) * 2048


@pytest.mark.parametrize("size", ["base", "large", "base-chinese"])
def test_bert_has_the_papers_two_phases(size):
    """arXiv:1810.04805, appendix A.2."""
    first, second = config(f"bert/{size}"), config(f"bert/{size}-512")
    assert (first.data.sequence, first.train.after, first.train.steps) == (128, 0, 900_000)
    assert (second.data.sequence, second.train.after, second.train.steps) == (512, 900_000, 1_000_000)
    assert (second.run, second.model, second.optimizer) == (first.run, first.model, first.optimizer)
    assert second.data.mix == first.data.mix
    optimizer = first.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay) == (1e-4, (0.9, 0.999), 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.final) == (10_000, "linear", 0.0)
    assert (optimizer.decay_steps, first.train.batch, second.train.batch) == (1_000_000, 256, 256)


@pytest.mark.parametrize(
    ("size", "batch", "steps"),
    [("baseline", 128, 2**19), *((size, 2**11, 10**6) for size in ("small", "base", "large", "3b", "11b"))],
)
def test_t5_has_the_papers_batch_and_steps(size, batch, steps):
    """arXiv:1910.10683, sections 3.1.2 and 3.7."""
    found = config(f"t5/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, batch, steps)
    assert (found.optimizer.warmup_steps, found.optimizer.decay) == (10_000, "rsqrt")


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_gpt2_has_its_published_batch_and_the_rate_of_gpt3_at_its_size(size):
    found = config(f"gpt2/{size}")
    assert (found.data.sequence, found.train.batch) == (1024, 512)
    assert found.optimizer.lr == config(f"gpt3/{size}").optimizer.lr
