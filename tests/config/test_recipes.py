"""What the published configs say is what their papers say."""

from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path

import pytest

from megaptm.config import Config, load, resolve, resolve_model
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.read import UncheckedConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.objectives import Composed
from megaptm.objectives.denoising import Denoising
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion
from megaptm.objectives.replaced import ReplacedTokens
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.text_to_text import TextToText
from megaptm.objectives.translation import FILL
from megaptm.objectives.windows import CBOW
from tests.plan.test_count import EXACT, as_published

CONFIGS = Path(__file__).parents[2] / "configs"
ALL = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.parent.name in CATALOGUE and not path.stem.startswith("tiny")
)
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
# BERT's own repository publishes this model: its vocabulary has 21,128 words. ERNIE 2.0's is English but for as many
# rows of tokens as ERNIE 1.0 has, 18,000, and a fifth task.
CHINESE = {"bert": 102_267_648, "ernie-2": EXACT["ernie-2", "base"] - (30_522 - 18_000) * 768 + 768}


def config(name: str) -> Config:
    return load(CONFIGS / f"{name}.yaml")


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_config_has_as_many_parameters_as_the_published_model(path):
    found = load(path)
    spec = resolve_model(found)
    wanted = CHINESE[found.model.family] if "chinese" in path.stem else EXACT[found.model.family, found.model.size]
    if path.stem.endswith("-discourse"):  # a row more in the table of tasks
        wanted += spec.width
    assert as_published(spec) == wanted


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
    assert (optimizer.decay, optimizer.min_lr_ratio) == ("cosine", 0.1)
    assert (optimizer.warmup_steps, optimizer.decay_steps) == (ceil(375e6 / tokens), ceil(260e9 / tokens))


@pytest.mark.parametrize(("size", "billions"), [("small", 4), ("175b", 12)])
@pytest.mark.parametrize("family", ["gpt3", "gpt3-banded"])
def test_gpt3_ramps_as_the_paper_says(family, size, billions):
    """Appendix B: from 32 thousand tokens to all of a batch over 4 to 12 billion of them; 300 billion in all."""
    found, whole = config(f"{family}/{size}-ramp"), config(f"{family}/{size}")
    batches, steps = found.batch_schedule, found.train.steps
    assert batches.size(0) * 2048 == 32_768
    grown = next(step for step in range(steps) if batches.size(step) == whole.train.batch)
    assert batches.first(grown) * 2048 == pytest.approx(billions * 1e9, rel=1e-2)
    assert batches.first(steps - 1) * 2048 < 300e9 <= batches.first(steps) * 2048
    assert (found.model, found.optimizer, found.data) == (whole.model, whole.optimizer, whole.data)


@pytest.mark.parametrize(("size", "batches"), [("8b", (256, 512)), ("62b", (512, 1024)), ("540b", (512, 1024, 2048))])
def test_palm_doubles_its_batch_over_the_papers_tokens(size, batches):
    """arXiv:2204.02311, section 5: the steps of 540B; 780 billion tokens."""
    found = config(f"palm/{size}")
    steps = (0, 50_000, 115_000)[: len(batches)]
    assert tuple(map(found.batch_schedule.size, steps)) == batches
    assert found.batch_schedule.first(found.train.steps) * 2048 == pytest.approx(780e9, rel=0.01)


def test_palm_has_the_papers_optimizer():
    """The same section: Adafactor without factors, 10^-2 for 10,000 steps and then 1 / sqrt(k), a decay of the rate's
    square, which count steps of any size."""
    found = config("palm/540b")
    optimizer, model = found.optimizer, resolve_model(found)
    assert (model.dropout, model.family.z_loss, found.data.document_mask) == (0.0, 1e-4, False)
    assert (optimizer.name, optimizer.momentum, optimizer.clip) == ("adafactor", 0.9, 1.0)
    assert optimizer.adafactor == AdafactorConfig(min_dim_size_to_factor=None, clip_threshold=None)
    assert (optimizer.weight_decay, optimizer.weight_decay_scaling) == (1.0, "lr-squared")
    for step in (1, 10_000, 40_000, 255_000):
        assert learning_rate_at(found, step - 1) == pytest.approx(max(step, 10_000) ** -0.5)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("deberta/base", 2e-4), ("deberta/large", 2e-4), ("deberta-v2/xlarge", 2e-4), ("deberta-v2/xxlarge", 1.5e-4)],
)
def test_deberta_has_the_papers_batch_rate_and_steps(name, rate):
    """arXiv:2006.03654, appendix A.2; masks of up to three words, as often as 1 / n (the released code)."""
    found = config(name)
    optimizer, task = found.optimizer, found.built_objective
    assert isinstance(task, MaskedLM)
    assert (task.hide, task.lengths, task.show, task.rate) == ("ngrams", (), "tokens", 0.15)
    assert resolve_model(found).dropout == 0.1
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, 2048, 1_000_000)
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (rate, (0.9, 0.999), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        10_000,
        "linear",
        0.0,
        1.0,
    )


@pytest.mark.parametrize(("size", "rate"), [("small", 5e-4), ("base", 5e-4), ("large", 3e-4)])
def test_deberta_v3_has_the_papers_batch_rate_and_steps(size, rate):
    """arXiv:2111.09543, section 4."""
    found = config(f"deberta-v3/{size}")
    optimizer = found.optimizer
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, 8192, 500_000)
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (rate, (0.9, 0.98), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        10_000,
        "linear",
        0.0,
        1.0,
    )


def test_gpt_has_the_papers_batch_and_rate():
    """Radford et al., 2018, section 4.1."""
    found = config("gpt1/base")
    optimizer = found.optimizer
    assert (found.data.sequence, found.data.epochs, found.train.batch) == (512, 100, 64)
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (
        2.5e-4,
        2_000,
        "cosine",
        0.0,
    )
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.999), 1e-8, 0.01)
    assert resolve_model(found).dropout == 0.1


@pytest.mark.parametrize("size", ["base", "large", "base-chinese"])
def test_bert_has_the_papers_two_phases(size):
    """arXiv:1810.04805, appendix A.2."""
    first, second = config(f"bert/{size}"), config(f"bert/{size}-512")
    assert (first.data.sequence, first.train.phase_start, first.train.steps) == (128, 0, 900_000)
    assert (second.data.sequence, second.train.phase_start, second.train.steps) == (512, 900_000, 1_000_000)
    assert (second.run, second.model, second.optimizer) == (first.run, first.model, first.optimizer)
    assert second.data.mix == first.data.mix
    optimizer = first.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (1e-4, (0.9, 0.999), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        10_000,
        "linear",
        0.0,
        1.0,
    )
    assert not optimizer.bias_correction, "the released code"
    assert (first.objective, resolve_model(first).dropout) == ("masked-lm-next-sentence", 0.1)
    assert (optimizer.decay_steps, first.train.batch, second.train.batch) == (1_000_000, 256, 256)


@pytest.mark.parametrize(
    ("name", "sequence", "batch", "steps"),
    [
        ("t5/baseline", 512, 128, 2**19),
        *((f"t5/{size}", 512, 2**11, 10**6) for size in CATALOGUE["t5"].sizes),
        *((f"t5-v1.1/{size}", 512, 2**11, 10**6) for size in CATALOGUE["t5-v1.1"].sizes),
        *((f"mt5/{size}", 1024, 2**10, 10**6) for size in CATALOGUE["mt5"].sizes),
    ],
)
def test_t5_has_the_papers_batch_and_steps(name, sequence, batch, steps):
    """arXiv:1910.10683, sections 3.1.2 and 3.7; arXiv:2010.11934, section 3.2: Adafactor, at 1 / sqrt(max(n, 10^4));
    T5 v1.1 and mT5 without dropout. Only T5 v1.0 was released with other tasks than spans."""
    found = config(name)
    assert (found.data.sequence, found.train.batch, found.train.steps) == (sequence, batch, steps)
    assert resolve_model(found).dropout == (0.1 if name.startswith("t5/") else 0.0)
    asked = found.built_objective
    assert isinstance(asked, TextToText if found.data.size_limits else SpanCorruption)
    assert bool(found.data.size_limits) == (name.startswith("t5/") and name != "t5/baseline")
    if not found.data.size_limits:
        assert len(found.data.mix) == 1
        assert found.data.size_exponent == (0.3 if name.startswith("mt5/") else None)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.adafactor) == ("adafactor", 0.0, AdafactorConfig())
    assert (optimizer.weight_decay, optimizer.clip, optimizer.adafactor.clip_threshold) == (0.0, None, 1.0)
    for step in (1, 10_000, 40_000, steps):
        assert learning_rate_at(found, step - 1) == pytest.approx(max(step, 10_000) ** -0.5)


@pytest.mark.parametrize(
    ("size", "examples"),
    [("small", 710_000), ("base", 2_620_000), ("large", 8_660_000), ("3b", 33_500_000), ("11b", 133_000_000)],
)
def test_t5_is_released_with_its_tasks_in_proportion_to_their_examples(size, examples):
    """arXiv:1910.10683, section 3.7: C4 counts as if it had so many, and two of the translations a million."""
    data = config(f"t5/{size}").data
    assert data.size_exponent == 1.0
    assert data.size_limits == {
        "corpora/c4": examples,
        "corpora/wmt-en-de": 10**6,
        "corpora/wmt-en-fr": 10**6,
    }
    assert {*data.size_limits} < {*data.mix}
    assert {*data.mix.values()} == {1}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("ernie/base", 18_000),
        *((f"t5/{size}", 32_128) for size in (*CATALOGUE["t5"].sizes, "baseline")),
        *((f"t5-v1.1/{size}", 32_128) for size in CATALOGUE["t5-v1.1"].sizes),
        *((f"mt5/{size}", 250_112) for size in CATALOGUE["mt5"].sizes),
    ],
)
def test_a_run_has_the_published_rows_where_tokenizers_have_fewer_tokens(name, rows):
    """17,964, 32,100 and 250,100: what a run would take if its config did not say."""
    assert UncheckedConfig.read(CONFIGS / f"{name}.yaml").values["model"]["vocabulary"] == rows


@pytest.mark.parametrize(
    ("size", "width", "dropout", "steps"), [("base", 512, 0.1, 10**5), ("big", 1024, 0.3, 3 * 10**5)]
)
def test_the_transformer_has_the_papers_recipe(size, width, dropout, steps):
    """arXiv:1706.03762, section 5."""
    found = config(f"transformer/{size}")
    spec, optimizer = resolve_model(found), found.optimizer
    assert (spec.dropout, spec.family.label_smoothing, found.train.steps) == (dropout, 0.1, steps)
    assert 25_000 <= found.train.batch * found.data.sequence <= 25_000 / FILL + 448
    assert (optimizer.name, optimizer.betas, optimizer.eps) == ("adamw", (0.9, 0.98), 1e-9)
    assert (optimizer.weight_decay, optimizer.clip) == (0.0, None)
    for step in (1, 4000, 50_000):
        assert learning_rate_at(found, step - 1) == pytest.approx(width**-0.5 * min(step**-0.5, step * 4000**-1.5))


@pytest.mark.parametrize(("size", "rate", "warmup"), [("base", 6e-4, 24_000), ("large", 4e-4, 30_000)])
def test_roberta_has_the_papers_recipe(size, rate, warmup):
    """arXiv:1907.11692, appendix A."""
    found = config(f"roberta/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, 8192, 500_000)
    assert (found.objective, found.data.document_mask) == ("masked-lm", False)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (rate, (0.9, 0.98), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        warmup,
        "linear",
        0.0,
        None,
    )


def test_bart_has_the_papers_recipe():
    """arXiv:1910.13461, section 5.1; rate and warm-up are the released command's. No dropout in the last tenth. The
    base size is that of section 4: longer, on books and Wikipedia."""
    first, last, base = config("bart/large"), config("bart/large-no-dropout"), config("bart/base")
    assert (first.data.sequence, first.train.batch, first.objective) == (512, 8000, "denoising")
    assert (first.train.steps, last.train.phase_start, last.train.steps) == (450_000, 450_000, 500_000)
    assert (resolve_model(first).dropout, resolve_model(last).dropout) == (0.1, 0.0)
    assert (last.run, last.optimizer) == (first.run, first.optimizer)
    assert (base.train.steps, base.train.batch, base.optimizer.decay_steps) == (1_000_000, 8000, 1_000_000)
    assert [*base.data.mix] == ["corpora/books-and-wikipedia-bart"]
    assert base.optimizer.model_copy(update={"decay_steps": 500_000}) == first.optimizer
    optimizer = first.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (4e-4, (0.9, 0.98), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay_steps) == (10_000, 500_000)
    assert (optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == ("linear", 0.0, None)
    task = first.built_objective
    assert isinstance(task, Denoising)
    assert (task.infill, task.mean, task.permute) == (0.3, 3.0, 1.0)
    assert (task.mask, task.delete, task.rotate, task.random) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("size", "dropout"), [("base", 0.1), ("large", 0.1), ("xlarge", 0.1), ("xxlarge", 0.0)])
def test_albert_has_the_papers_recipe(size, dropout):
    """arXiv:1909.11942, sections 4.1 and 4.8; the warm-up is the released code's."""
    found = config(f"albert/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, 4096, 125_000)
    assert (found.objective, resolve_model(found).dropout) == ("masked-lm-ngrams-sentence-order", dropout)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("lamb", 1.76e-3, 0.01)
    assert (optimizer.betas, optimizer.eps, optimizer.clip) == ((0.9, 0.999), 1e-6, 1.0)
    assert not optimizer.bias_correction, "the released code"
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (3_125, "linear", 0.0)


@pytest.mark.parametrize("size", ["base", "large"])
def test_spanbert_has_the_papers_recipe(size):
    """arXiv:1907.10529, section 4.2."""
    found = config(f"spanbert/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (512, 256, 2_400_000)
    assert found.objective == "masked-lm-span-boundary"
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (1e-4, (0.9, 0.999), 1e-8, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        10_000,
        "linear",
        0.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("size", "rate", "batch", "sequence", "steps", "share", "masked"),
    [
        ("small", 5e-4, 128, 128, 1_000_000, 1 / 4, 0.15),
        ("base", 2e-4, 256, 512, 766_000, 1 / 3, 0.15),
        ("large", 2e-4, 2048, 512, 400_000, 1 / 4, 0.25),
    ],
)
def test_electra_has_the_papers_recipe(size, rate, batch, sequence, steps, share, masked):
    """arXiv:2003.10555, tables 6 and 7; clipping is the released code's."""
    found = config(f"electra/{size}")
    assert (found.train.batch, found.data.sequence, found.train.steps) == (batch, sequence, steps)
    optimizer, model, task = found.optimizer, resolve_model(found), found.built_objective
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (rate, (0.9, 0.999), 1e-6, 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio, optimizer.clip) == (
        10_000,
        "linear",
        0.0,
        1.0,
    )
    assert not optimizer.bias_correction, "the released code"
    assert task.losses == {"mlm": 1.0, "replaced-token": 50.0}
    asked = task.tasks[0].objective if isinstance(task, Composed) else task
    assert isinstance(asked, ReplacedTokens)
    assert asked.rate == masked
    generator, judge = (model.size_of(stack) for stack in ("generator", "discriminator"))
    assert (generator.layers, generator.width) == (judge.layers, judge.width * share)
    assert (generator.key_width, generator.ffn, model.dropout) == (64, 4 * generator.width, 0.1)


@pytest.mark.parametrize("size", ["base", "large"])
def test_unilm_has_the_papers_recipe(size):
    """arXiv:1905.03197, 2.4."""
    found = config(f"unilm/{size}")
    assert (found.objective, found.data.sequence, found.train.batch, found.train.steps) == ("unilm", 512, 330, 770_000)
    assert [*found.data.mix] == [*config("spanbert/base").data.mix], "cased"
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay) == (3e-5, (0.9, 0.999), 0.01)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (40_000, "linear", 0.0)
    assert resolve_model(found).dropout == 0.1


def test_ernie_has_the_recipe_of_the_released_code():
    found = config("ernie/base")
    assert found.train.batch * found.data.sequence == 8 * 8_192
    assert (found.train.steps, found.optimizer.lr, found.optimizer.weight_decay) == (1_000_000, 1e-4, 0.01)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.betas, optimizer.eps, optimizer.clip) == ("adamw", (0.9, 0.999), 1e-8, 1.0)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (4_000, "linear", 0.0)


def test_ernie_masks_characters_then_phrases_then_entities():
    """arXiv:1904.09223, section 3.2."""
    task = config("ernie/base").built_objective
    for step, units in {0: "tokens", 333_333: "words", 666_667: "entities", 999_999: "entities"}.items():
        made, dialogues = (part for part in task.tasks if part.share.at(step))
        assert (made.objective.question, dialogues.objective.question) == ("next-sentence", "dialogue")
        assert isinstance(made.objective, MaskedLMWithQuestion)
        masked = made.objective.masked
        assert (masked.hide, masked.units, masked.rate, masked.mask, masked.random) == (
            *("independent", units),
            *(0.15, 0.8, 0.1),
        )


ENGLISH = [[20, 10, 10, 10], [0, 30, 10, 10], [0, 0, 40, 10], [0, 0, 0, 50]]
OF_FIVE = [[10, 10, 10, 10, 10], [0, 20, 10, 10, 10], [0, 0, 30, 10, 10], [0, 0, 0, 40, 10], [0, 0, 0, 0, 50]]


@pytest.mark.parametrize(
    ("size", "rate", "expected"),
    [
        ("base", 5e-5, ENGLISH),
        ("large", 5e-5, ENGLISH),
        ("base-discourse", 5e-5, OF_FIVE),
        ("large-discourse", 5e-5, OF_FIVE),
        ("base-chinese", 1.28e-4, OF_FIVE),
    ],
)
def test_ernie_2_learns_a_task_more_in_each_stage(size, rate, expected):
    """arXiv:1907.12412, table 1: steps of each task in each stage, 50,000 in all; five tasks are laid out like four;
    5.1.3: 393,216 tokens a step."""
    found = config(f"ernie-2/{size}")
    assert found.train.batch * found.data.sequence == 393_216
    optimizer = found.optimizer
    assert (optimizer.betas, optimizer.lr, optimizer.warmup_steps) == ((0.9, 0.98), rate, 4_000)
    assert (optimizer.decay, optimizer.stable_steps, optimizer.min_lr_ratio) == ("rsqrt", 0, 0.0), "noam, its peak said"
    assert (optimizer.weight_decay, optimizer.clip) == (0.01, 1.0)
    borders = [*accumulate((1000 * sum(stage) for stage in zip(*expected, strict=True)), initial=0)]
    assert borders[-1] == found.train.steps
    assert [*optimizer.restarts] == borders[1:-1], "each task is warmed up for"
    made = [[0.0] * len(expected) for _ in expected]
    for stage, (first, stop) in enumerate(pairwise(borders)):
        shares = [(task.task_id, task.share.at(first)) for task in found.built_objective.tasks]
        assert shares == [(task.task_id, task.share.at(stop - 1)) for task in found.built_objective.tasks]
        for number, share in shares:
            made[number][stage] += share / sum(share for _, share in shares) * (stop - first) / 1000
    for found_steps, steps in zip(made, expected, strict=True):
        assert found_steps == pytest.approx(steps)


@pytest.mark.parametrize(("size", "steps"), [("base", 1_000_000), ("large", 2_000_000)])
def test_macbert_has_the_papers_masks(size, steps):
    """arXiv:2004.13922, section 3.1: n-grams of four lengths; 80% similar words, 10% random, 10% kept. Rows, rate and
    warm-up are BERT's."""
    found = config(f"macbert/{size}")
    assert (found.train.steps, found.train.batch, found.data.sequence) == (steps, 512, 512)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adamw", 1e-4, 0.01)
    assert (optimizer.betas, optimizer.eps, optimizer.clip) == ((0.9, 0.999), 1e-6, 1.0)
    assert (optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (10_000, "linear", 0.0)
    task = found.built_objective
    assert isinstance(task, MaskedLMWithQuestion)
    assert (task.question, task.masked.hide, task.masked.show) == ("sentence-order", "ngrams", "similar-words")
    assert (task.masked.lengths, task.masked.rate) == ((0.4, 0.3, 0.2, 0.1), 0.15)
    assert (task.masked.mask, task.masked.random) == (0.8, 0.1)


@pytest.mark.parametrize("name", ["bert/large-whole-word", "bert/base-chinese-whole-word"])
def test_masks_of_whole_words_are_all_that_differs(name):
    for phase in ("", "-512"):
        whole, plain = config(f"{name}{phase}"), config(f"{name.removesuffix('-whole-word')}{phase}")
        assert whole.objective == "masked-lm-whole-word-next-sentence"
        assert whole.run == f"runs/{name.replace('/', '-')}"
        same = {"objective": plain.objective, "run": plain.run}
        assert whole.model_copy(update=same) == plain


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_gpt2_has_its_published_batch_and_the_rate_of_gpt3_at_its_size(size):
    found = config(f"gpt2/{size}")
    assert (found.data.sequence, found.train.batch) == (1024, 512)
    assert (resolve_model(found).context, resolve_model(found).vocabulary) == (1024, 50_257)
    assert found.optimizer.lr == config(f"gpt3/{size}").optimizer.lr


@pytest.mark.parametrize("size", ["base", "large"])
def test_longformer_has_the_papers_recipe(size):
    """arXiv:2004.05150, section 5; what it does not say is RoBERTa's."""
    found = config(f"longformer/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (4096, 64, 65_000)
    block = resolve_model(found).family.last_block
    assert (block.window, block.dilation, resolve_model(found).positions) == (512, 1, 4098)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.decay, optimizer.power) == (3e-5, 500, "polynomial", 3.0)
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.98), 1e-6, 0.01)


@pytest.mark.parametrize("size", ["base", "large"])
def test_led_is_trained_on_from_bart_as_longformer_from_roberta(size):
    """arXiv:2004.05150, sections 5 and 7; what the decoder says is as long as its places."""
    found, first = config(f"led/{size}"), config(f"longformer/{size}")
    assert (found.data.sequence, found.built_objective) == (1024, Denoising(global_tokens=1))
    assert (found.train.batch, found.train.steps, found.optimizer) == (64, 65_000, first.optimizer)
    spec = resolve_model(found)
    assert (spec.family.first_block.window, spec.context, spec.context_of("decoder")) == (1024, 16_384, 1024)


@pytest.mark.parametrize("size", ["base", "large"])
def test_led_learns_to_summarize_as_in_the_released_script(size):
    """arXiv:2004.05150, section 7, and scripts/summarization.py of allenai/longformer: 5 epochs of 203,037 articles."""
    found = config(f"led/{size}-summarization")
    task = TextToText(targets=256, enclosed=True, global_tokens=1, packed=False)
    assert (found.data.sequence, found.built_objective) == (16_384, task)
    assert (found.train.batch, found.train.steps) == (16, 5 * 203_037 // 16)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (
        3e-5,
        1000,
        "linear",
        0.0,
    )
    assert (optimizer.betas, optimizer.weight_decay, optimizer.clip) == ((0.9, 0.999), 0.0, None)


@pytest.mark.parametrize("size", ["base", "large"])
def test_bigbird_has_the_papers_recipe(size):
    """arXiv:2007.14062, appendix E.1."""
    found = config(f"bigbird/{size}")
    assert (found.data.sequence, found.train.batch, found.train.steps) == (4096, 256, 500_000)
    block = resolve_model(found).family.last_block
    assert (block.block, block.random_blocks, block.edge_blocks) == (64, 3, True)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.decay, optimizer.min_lr_ratio) == (
        1e-4,
        10_000,
        "linear",
        0.0,
    )


def test_bigbird_has_the_papers_tokens_that_see_all_in_the_place_of_blocks():
    """arXiv:2007.14062, appendix E.1, table 8."""
    found = config("bigbird/base-etc")
    block = resolve_model(found).family.last_block
    assert (block.block, block.random_blocks, block.edge_blocks) == (84, 0, False)
    assert found.built_objective.global_tokens == 256
    assert (found.data.sequence, found.train.batch, found.train.steps) == (4096, 256, 500_000)


def test_reformer_has_the_released_recipe():
    """arXiv:2001.04451, section 5, and the released gin: 1 / sqrt(width x step) after 2,000 steps."""
    found, spec = config("reformer/enwik8"), resolve_model(config("reformer/enwik8"))
    assert (found.data.sequence, found.data.document_mask) == (65_536, False)
    assert (found.train.batch, found.train.steps, spec.dropout, spec.axial) == (8, 100_000, 0.2, (128, 512))
    blocks = [spec.family.last_block.at(layer) for layer in range(4)]
    assert [(one.attention, one.chunk) for one in blocks] == [
        ("local", 128),
        ("local", 128),
        ("lsh", 256),
        ("local", 128),
    ]
    assert (found.optimizer.betas, found.optimizer.eps, found.optimizer.weight_decay) == ((0.9, 0.98), 1e-9, 0.0)
    for step in (2_000, 50_000):
        assert learning_rate_at(found, step - 1) == pytest.approx((1024 * step) ** -0.5)


@pytest.mark.parametrize(
    ("name", "places", "batch", "steps", "warmup", "dropout"),
    [
        ("transformer-xl/base", 150, 60, 200_000, 0, 0.1),
        ("transformer-xl/large", 384, 128, 4_000_000, 16_000, 0.2),
        ("transformer-xl-bytes/base", 512, 22, 400_000, 0, 0.1),
        ("transformer-xl-bytes/large", 768, 64, 400_000, 4_000, 0.15),
    ],
)
def test_transformer_xl_has_the_released_recipe(name, places, batch, steps, warmup, dropout):
    """The run_wt103 and run_enwik8 scripts; memory as long as rows, a batch that layouts divide."""
    found, spec = config(name), resolve_model(config(name))
    assert (found.data.sequence, spec.size.memory, found.train.steps, spec.dropout) == (places, places, steps, dropout)
    assert batch <= found.train.batch <= 1.1 * batch
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.warmup_steps, optimizer.clip) == ("adamw", 2.5e-4, warmup, 0.25)
    assert (optimizer.decay, optimizer.min_lr_ratio, optimizer.weight_decay) == ("cosine", 0.0, 0.0)
    assert bool(spec.family.last_block.attention_dropout) == name.endswith("large")


def test_xlnet_has_the_papers_recipe():
    """arXiv:1906.08237, 3.1 and appendix A.4: 32.89 billion pieces of five corpora."""
    found, spec = config("xlnet/large"), resolve_model(config("xlnet/large"))
    assert (found.data.sequence, found.train.batch, found.train.steps, spec.size.memory) == (512, 8192, 500_000, 384)
    assert (len(found.data.mix), sum(found.data.mix.values())) == (5, pytest.approx(32.89))
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.decay, optimizer.eps) == (4e-4, 40_000, "linear", 1e-6)
    assert (optimizer.weight_decay, optimizer.min_lr_ratio) == (0.01, 0.0)
    task = found.built_objective
    assert (task.partial, task.both_ways, task.units, task.elsewhere) == (6, True, "words", 0.5)


@pytest.mark.parametrize("size", ["small", "medium", "original", "original-5.5b"])
def test_elmo_has_the_released_recipe(size):
    """bilm-tf: ten epochs of 768,648,884 words on 3 GPUs, each 128 rows of 20; Adagrad, squares from 1, a norm of 10,
    of a gradient that is twenty times ours."""
    found, spec = config(f"elmo/{size}"), resolve_model(config(f"elmo/{size}"))
    assert (found.data.sequence, found.train.batch, spec.family.negatives, spec.dropout) == (20, 3 * 128, 8192, 0.1)
    assert found.train.steps * 3 * 128 * 20 == pytest.approx(10 * 768_648_884, rel=1e-4)
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.decay, optimizer.clip) == ("adagrad", 0.2, "constant", 10 / 20)
    assert optimizer.initial_accumulator == 1 / 20**2


def test_a_pattern_number_of_a_family_without_the_pattern_is_refused():
    with pytest.raises(UserError, match=r"model\.window is of window attention, which bigbird has not"):
        load(CONFIGS / "bigbird/base.yaml", ["model.window=64"])


def test_distilbert_takes_three_epochs_of_berts_text_in_batches_of_4k():
    """arXiv:1910.01108, section 3: up to 4,000 examples by accumulation; the rest is the released script's: 3 epochs,
    5e-4, warm-up over 5%, no decay, a gradient of 5."""
    found = config("distilbert/base")
    steps, rows = found.train.steps, found.train.batch
    assert (rows, found.data.sequence) == (4096, 512)
    assert steps * rows * 512 == pytest.approx(3 * 4.3e9, rel=0.01)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.decay, optimizer.weight_decay, optimizer.clip) == (5e-4, "linear", 0.0, 5.0)
    assert optimizer.warmup_steps == pytest.approx(0.05 * steps, abs=1)


@pytest.mark.parametrize("size", ["4x312", "6x768"])
def test_tinyberts_first_stage_is_three_epochs_of_wikipedia(size):
    """arXiv:1909.10351, section 4.2: rows of 128, 3 epochs; the released script's batch of 256 and warm-up over 10%."""
    found = config(f"tinybert/{size}")
    steps = found.train.steps
    assert (found.train.batch, found.data.sequence, found.optimizer.lr) == (256, 128, 1e-4)
    assert steps * 256 * 128 == pytest.approx(3 * 3.3e9, rel=0.01)
    assert found.optimizer.warmup_steps == steps // 10
    assert (found.distill.objective, found.distill.logits) == (0.0, 0.0)


def test_fasttexts_crawl_has_weights_of_places_and_pieces_of_five():
    """arXiv:1802.06893, section 3, and fasttext.cc/docs/en/crawl-vectors.html; the rest is the released code's."""
    found = config("fasttext/crawl")
    spec, task = resolve(found), found.built_objective
    assert isinstance(task, CBOW)
    assert (task.position_weights, task.window, task.negatives) == (True, 5, 10)
    assert (spec.size.width, spec.size.ngrams, spec.size.buckets, spec.positions) == (300, (5, 5), 2_000_000, 10)
    assert spec.parameters == (2 * 2_000_000 + 2_000_000 + 10) * 300
    assert (found.optimizer.lr, task.subsample, task.min_count) == (0.05, 1e-4, 5)
