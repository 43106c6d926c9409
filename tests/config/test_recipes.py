"""Published configs have the recipes of their papers.

`recipes.yaml` has the values that papers print. The other tests compute values that follow from those of a paper.
"""

from functools import cache
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import pytest

from megaptm.config import Config, load_config, resolve_model, resolve_spec
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.phases import phase_end
from megaptm.config.read import UncheckedConfig, phase_configs
from megaptm.config.yamls import YamlLoader
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.objectives import Composed
from megaptm.objectives.masked import MaskedLMWithQuestion
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.text_to_text import TextToText
from megaptm.objectives.translation import FILL
from tests import ROOT
from tests.plan.test_count import EXACT, as_published

RECIPES = YamlLoader((ROOT / "tests/config/recipes.yaml").read_text(encoding="utf-8"), "recipes.yaml").get_single_data()
PUBLISHED = sorted(
    f"{path.parent.name}/{path.stem}"
    for path in (ROOT / "configs").glob("*/*.yaml")
    if path.parent.name in CATALOGUE and not path.stem.startswith("tiny")
)
# arXiv:2005.14165, table 2.1: peak learning rate, and millions of tokens of a batch as printed.
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
# BERT's repository has a Chinese model with 21,128 tokens. That of ERNIE 2.0 is the English model, but with the 18,000
# rows of ERNIE 1.0's token table, and a fifth task.
CHINESE = {"bert": 102_267_648, "ernie-2": EXACT["ernie-2", "base"] - (30_522 - 18_000) * 768 + 768}


@cache
def loaded(name: str) -> Config:
    """Return the config `family/name`, or that of one of its phases: `family/name@1`."""
    name, _, phase = name.partition("@")
    return phase_configs(load_config(name))[int(phase or 0)]


def value_of(config: Any, key: str) -> Any:
    """Return the value of a dotted key, with lists for tuples as in YAML."""
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return [*config] if isinstance(config, tuple) else config


@pytest.mark.parametrize(("name", "recipe"), [(name, recipe) for recipe in RECIPES for name in recipe["configs"]])
def test_values_of_the_paper(name: str, recipe: dict[str, Any]) -> None:
    published = recipe["values"]
    assert {key: value_of(loaded(name), key) for key in published} == published, recipe["source"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters(name: str) -> None:
    spec, model = resolve_model(loaded(name)), loaded(name).model
    expected = CHINESE[model.family] if "chinese" in name else EXACT[model.family, model.size]
    tasks = 1 if name.endswith("-discourse") else 0  # one more row in the task table
    assert as_published(spec) == expected + tasks * spec.width


@pytest.mark.parametrize("size", GPT3)
def test_gpt3_batch_rate_and_tokens(size: str) -> None:
    """Appendix B: 300 billion tokens, warm-up over 375 million, cosine to a tenth at 260 billion."""
    config = loaded(f"gpt3/{size}")
    rate, millions = GPT3[size]
    tokens = config.train.batch * config.data.sequence
    assert config.data.sequence == 2048
    assert tokens == pytest.approx(millions * 1e6, rel=0.05)
    assert config.train.steps == ceil(300e9 / tokens)
    assert config.optimizer.lr == rate
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.optimizer.eps == 1e-8
    assert config.optimizer.weight_decay == 0.1
    assert config.optimizer.clip == 1.0
    assert config.optimizer.decay == "cosine"
    assert config.optimizer.min_lr_ratio == 0.1
    assert config.optimizer.warmup_steps == ceil(375e6 / tokens)
    assert config.optimizer.decay_steps == ceil(260e9 / tokens)


@pytest.mark.parametrize(("size", "billions"), [("small", 4), ("175b", 12)])
@pytest.mark.parametrize("family", ["gpt3", "gpt3-banded"])
def test_gpt3_batch_ramp(family: str, size: str, billions: int) -> None:
    """Appendix B: from 32 thousand tokens to the full batch over 4 to 12 billion tokens; 300 billion in total."""
    ramped, constant = loaded(f"{family}/{size}-ramp"), loaded(f"{family}/{size}")
    batches, steps = ramped.batch_schedule, ramped.train.steps
    assert batches.size(0) * 2048 == 32_768
    full = next(step for step in range(steps) if batches.size(step) == constant.train.batch)
    assert batches.first_sample(full) * 2048 == pytest.approx(billions * 1e9, rel=1e-2)
    assert batches.first_sample(steps - 1) * 2048 < 300e9 <= batches.first_sample(steps) * 2048
    assert ramped.model == constant.model
    assert ramped.optimizer == constant.optimizer
    assert ramped.data == constant.data


@pytest.mark.parametrize(("size", "batches"), [("8b", (256, 512)), ("62b", (512, 1024)), ("540b", (512, 1024, 2048))])
def test_palm_batch_ramp(size: str, batches: tuple[int, ...]) -> None:
    """arXiv:2204.02311, section 5: the steps of 540B; 780 billion tokens."""
    config = loaded(f"palm/{size}")
    steps = (0, 50_000, 115_000)[: len(batches)]
    assert tuple(map(config.batch_schedule.size, steps)) == batches
    assert config.batch_schedule.first_sample(config.train.steps) * 2048 == pytest.approx(780e9, rel=0.01)


@pytest.mark.parametrize("name", ["palm/540b", "t5/baseline", "t5/11b", "t5-v1.1/base", "mt5/xxl"])
@pytest.mark.parametrize("step", [1, 10_000, 40_000, 255_000])
def test_inverse_square_root_of_t5_and_palm(name: str, step: int) -> None:
    """arXiv:1910.10683, section 3.1.2, and arXiv:2204.02311, section 5: 1 / sqrt(max(step, 10^4)) for steps of any
    batch size."""
    assert learning_rate_at(loaded(name), step - 1) == pytest.approx(max(step, 10_000) ** -0.5)


@pytest.mark.parametrize(("size", "width"), [("base", 512), ("big", 1024)])
@pytest.mark.parametrize("step", [1, 4000, 50_000])
def test_transformer_learning_rate(size: str, width: int, step: int) -> None:
    """arXiv:1706.03762, section 5.3."""
    expected = width**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert learning_rate_at(loaded(f"transformer/{size}"), step - 1) == pytest.approx(expected)


@pytest.mark.parametrize("size", ["base", "big"])
def test_transformer_batch(size: str) -> None:
    """arXiv:1706.03762, section 5.1: 25,000 tokens; packed sequences are partly padding."""
    config = loaded(f"transformer/{size}")
    assert 25_000 <= config.train.batch * config.data.sequence <= 25_000 / FILL + 448


@pytest.mark.parametrize("step", [2_000, 50_000])
def test_reformer_learning_rate(step: int) -> None:
    """The released gin file: 1 / sqrt(width x step) after 2,000 steps."""
    assert learning_rate_at(loaded("reformer/enwik8"), step - 1) == pytest.approx((1024 * step) ** -0.5)


def test_reformer_layers() -> None:
    """arXiv:2001.04451, section 5."""
    block = resolve_model(loaded("reformer/enwik8")).family.last_block
    layers = [(block.attention_at(layer).kind, block.attention_at(layer).chunk_length) for layer in range(4)]
    assert layers == [("local", 128), ("local", 128), ("lsh", 256), ("local", 128)]


@pytest.mark.parametrize("name", ["bert/base", "bert/large", "bert/base-chinese"])
def test_bert_second_phase_continues_the_first(name: str) -> None:
    first, second = loaded(name), loaded(f"{name}-512")
    assert second.run == first.run
    assert second.train.phase_start == first.train.steps
    assert second.model == first.model
    assert second.optimizer == first.optimizer
    assert second.data.mix == first.data.mix


def test_bart_phases_and_base() -> None:
    """arXiv:1910.13461, sections 4 and 5.1."""
    first, last, base = loaded("bart/large"), loaded("bart/large-no-dropout"), loaded("bart/base")
    assert last.run == first.run
    assert last.optimizer == first.optimizer
    assert [*base.data.mix] == ["corpora/books-and-wikipedia-bart"]
    assert base.optimizer.model_copy(update={"decay_steps": 500_000}) == first.optimizer


@pytest.mark.parametrize("name", ["t5/baseline", "t5-v1.1/small", "t5-v1.1/xxl", "mt5/small", "mt5/xxl"])
def test_t5_of_spans_alone(name: str) -> None:
    assert isinstance(loaded(name).built_objective, SpanCorruption)
    assert not loaded(name).data.size_limits
    assert len(loaded(name).data.mix) == 1


@pytest.mark.parametrize(
    ("size", "examples"),
    [("small", 710_000), ("base", 2_620_000), ("large", 8_660_000), ("3b", 33_500_000), ("11b", 133_000_000)],
)
def test_t5_multitask_mixture(size: str, examples: int) -> None:
    """arXiv:1910.10683, section 3.7: tasks in proportion to their examples. C4 counts as `examples`, and two of the
    translations as a million."""
    data = loaded(f"t5/{size}").data
    assert isinstance(loaded(f"t5/{size}").built_objective, TextToText)
    assert data.size_limits == {"corpora/c4": examples, "corpora/wmt-en-de": 10**6, "corpora/wmt-en-fr": 10**6}
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
def test_published_vocabulary_exceeds_the_tokenizer(name: str, rows: int) -> None:
    """The tokenizers have 17,964, 32,100 and 250,100 tokens, which would be the default."""
    assert UncheckedConfig.read(name).values["model"]["vocabulary"] == rows


@pytest.mark.parametrize(
    ("size", "share", "rate"), [("small", 1 / 4, 0.15), ("base", 1 / 3, 0.15), ("large", 1 / 4, 0.25)]
)
def test_electra_generator(size: str, share: float, rate: float) -> None:
    """arXiv:2003.10555, tables 6 and 7."""
    config = loaded(f"electra/{size}")
    model, task = resolve_model(config), config.built_objective
    generator, discriminator = model.size_of("generator"), model.size_of("discriminator")
    assert generator.layers == discriminator.layers
    assert generator.width == discriminator.width * share
    assert generator.key_width == 64
    assert generator.ffn == 4 * generator.width
    assert (task.tasks[0].objective if isinstance(task, Composed) else task).rate == rate


def test_unilm_is_cased() -> None:
    assert [*loaded("unilm/base").data.mix] == [*loaded("spanbert/base").data.mix]


def test_ernie_batch() -> None:
    """The released code: 8,192 tokens on each of 8 GPUs."""
    config = loaded("ernie/base")
    assert config.train.batch * config.data.sequence == 8 * 8_192


@pytest.mark.parametrize(
    ("step", "units"), [(0, "tokens"), (333_333, "words"), (666_667, "entities"), (999_999, "entities")]
)
def test_ernie_stages(step: int, units: str) -> None:
    """arXiv:1904.09223, section 3.2: masks of characters, then of phrases, then of entities."""
    texts, dialogues = (task.objective for task in loaded("ernie/base").built_objective.tasks if task.share.at(step))
    assert isinstance(texts, MaskedLMWithQuestion)
    assert texts.question == "next-sentence"
    assert dialogues.question == "dialogue"
    assert texts.masked.hide == "independent"
    assert texts.masked.units == units
    assert texts.masked.rate == 0.15
    assert texts.masked.mask_token_prob == 0.8
    assert texts.masked.random_token_prob == 0.1


FOUR_TASKS = [[20, 10, 10, 10], [0, 30, 10, 10], [0, 0, 40, 10], [0, 0, 0, 50]]
FIVE_TASKS = [[10, 10, 10, 10, 10], [0, 20, 10, 10, 10], [0, 0, 30, 10, 10], [0, 0, 0, 40, 10], [0, 0, 0, 0, 50]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base", FOUR_TASKS),
        ("large", FOUR_TASKS),
        ("base-discourse", FIVE_TASKS),
        ("large-discourse", FIVE_TASKS),
        ("base-chinese", FIVE_TASKS),
    ],
)
def test_ernie_2_stages(name: str, expected: list[list[int]]) -> None:
    """arXiv:1907.12412, table 1: thousands of steps of each task in each stage, 50 per task; five tasks are divided
    like four. 5.1.3: 393,216 tokens a step, and a warm-up for each task."""
    config = loaded(f"ernie-2/{name}")
    assert config.train.batch * config.data.sequence == 393_216
    borders = [*accumulate((1000 * sum(stage) for stage in zip(*expected, strict=True)), initial=0)]
    assert config.train.steps == borders[-1]
    assert [*config.optimizer.restarts] == borders[1:-1]
    steps = [[0.0] * len(expected) for _ in expected]
    for stage, (first, stop) in enumerate(pairwise(borders)):
        shares = [(task.task_id, task.share.at(first)) for task in config.built_objective.tasks]
        assert [(task.task_id, task.share.at(stop - 1)) for task in config.built_objective.tasks] == shares
        for task_id, share in shares:
            steps[task_id][stage] += share / sum(share for _, share in shares) * (stop - first) / 1000
    assert [round(value, 6) for task in steps for value in task] == [value for task in expected for value in task]


@pytest.mark.parametrize("phase", ["", "-512"])
@pytest.mark.parametrize("name", ["bert/large-whole-word", "bert/base-chinese-whole-word"])
def test_whole_word_masking_is_the_only_difference(name: str, phase: str) -> None:
    config, base = loaded(f"{name}{phase}"), loaded(f"{name.removesuffix('-whole-word')}{phase}")
    assert config.objective == "masked-lm-whole-word-next-sentence"
    assert config.run == f"runs/{name.replace('/', '-')}"
    assert config.model_copy(update={"objective": base.objective, "run": base.run}) == base


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_gpt2_learning_rate_is_that_of_gpt3(size: str) -> None:
    assert loaded(f"gpt2/{size}").optimizer.lr == loaded(f"gpt3/{size}").optimizer.lr


@pytest.mark.parametrize("size", ["base", "large"])
def test_longformer_positions(size: str) -> None:
    assert resolve_model(loaded(f"longformer/{size}")).positions == 4098


@pytest.mark.parametrize("size", ["base", "large"])
def test_led_is_trained_as_longformer(size: str) -> None:
    """arXiv:2004.05150, sections 5 and 7."""
    config, spec = loaded(f"led/{size}"), resolve_model(loaded(f"led/{size}"))
    assert config.optimizer == loaded(f"longformer/{size}").optimizer
    assert spec.family.first_block.attention.window == 1024
    assert spec.context_of("decoder") == 1024


@pytest.mark.parametrize("size", ["base", "large"])
def test_led_summarization_steps(size: str) -> None:
    """scripts/summarization.py of allenai/longformer: 5 epochs of 203,037 articles."""
    assert loaded(f"led/{size}-summarization").train.steps == 5 * 203_037 // 16


@pytest.mark.parametrize(
    ("name", "billions", "ramp", "warmup", "decay"),
    [
        ("modernbert/base", 1719, 50, 3, 1e-5),
        ("modernbert/base-phases@1", 250, 0, 0, 1e-5),
        ("modernbert/base-phases@2", 50, 0, 0, 1e-5),
        ("modernbert/large", 900, 10, 2, 1e-5),
        ("modernbert/large-phases@1", 800, 10, 0, 1e-6),
        ("modernbert/large-phases@2", 250, 0, 0, 1e-5),
        ("modernbert/large-phases@3", 50, 0, 0, 1e-6),
        ("ettin/17m", 1700, 125, 4, 3e-4),
        ("ettin/32m", 1700, 100, 4, 3e-4),
        ("ettin/68m", 1700, 75, 3, 3e-4),
        ("ettin/150m", 1700, 50, 3, 1e-5),
        ("ettin/150m-phases@1", 250, 0, 0, 1e-5),
        ("ettin/150m-phases@2", 50, 0, 0, 1e-5),
        ("ettin/400m", 1700, 10, 2, 1e-5),
        ("ettin/1b", 1700, 3, 2, 5e-5),
        ("ettin-decoder/1b", 1700, 3, 2, 5e-5),
        ("mmbert/small", 2300, 100, 4, 8e-5),
        ("mmbert/base", 2300, 60, 3, 8e-5),
        ("mmbert/base-phases@1", 600, 0, 0, 8e-5),
        ("mmbert/base-phases@2", 100, 0, 0, 8e-5),
    ],
)
def test_modernbert_tokens_ramp_warmup_and_decay(
    name: str, billions: float, ramp: float, warmup: float, decay: float
) -> None:
    """Billions of tokens; the weight decay of a step at the peak rate."""
    config = loaded(name)
    tokens, batches, start = config.data.sequence, config.batch_schedule, config.train.phase_start
    samples = batches.num_trained(phase_end(config, start)) - batches.num_trained(start)
    assert samples * tokens == pytest.approx(billions * 1e9, rel=1e-4)
    assert batches.samples * tokens == pytest.approx(ramp * 1e9, rel=1e-6)
    assert config.optimizer.warmup_steps * config.train.batch * tokens == pytest.approx(warmup * 1e9, rel=2e-3)
    assert config.optimizer.lr * config.optimizer.weight_decay == pytest.approx(decay, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "peak", "begin", "end"),
    [
        ("modernbert/base-phases@2", 3e-4, 1.0, 0.001),
        ("modernbert/large-phases@3", 5e-5, 1.0, 0.001),
        ("ettin/150m-phases@1", 8e-4, 1.0, 0.5),
        ("ettin/150m-phases@2", 4e-4, 1.0, 0.04),
        ("mmbert/base-phases@2", 8e-4, 1.0, 0.02),
    ],
)
def test_rate_falls_within_the_phase(name: str, peak: float, begin: float, end: float) -> None:
    """The 1-sqrt decay of a phase begins with its first step and ends with its last."""
    config = loaded(name)
    steps = (config.train.phase_start, phase_end(config, config.train.phase_start))
    assert [learning_rate_at(config, step) for step in steps] == pytest.approx([peak * begin, peak * end])


def test_xlnet_corpora() -> None:
    """arXiv:1906.08237, section 3.1: 32.89 billion subwords of five corpora."""
    mix = loaded("xlnet/large").data.mix
    assert len(mix) == 5
    assert sum(mix.values()) == pytest.approx(32.89)


@pytest.mark.parametrize("size", ["small", "medium", "original", "original-5.5b"])
def test_elmo_epochs(size: str) -> None:
    """bilm-tf: ten epochs of 768,648,884 words."""
    assert loaded(f"elmo/{size}").train.steps * 3 * 128 * 20 == pytest.approx(10 * 768_648_884, rel=1e-4)


def test_pattern_key_of_another_pattern_is_rejected() -> None:
    with pytest.raises(UserError, match=r"model\.attention\.window is no option of the attention of bigbird/base"):
        load_config("bigbird/base", ["model.attention.window=64"])


def test_distilbert_epochs_and_warmup() -> None:
    """arXiv:1910.01108, section 3, and the released script: 3 epochs, warm-up over 5%."""
    config = loaded("distilbert/base")
    assert config.train.steps * 4096 * 512 == pytest.approx(3 * 4.3e9, rel=0.01)
    assert config.optimizer.warmup_steps == pytest.approx(0.05 * config.train.steps, abs=1)


@pytest.mark.parametrize("size", ["4x312", "6x768"])
def test_tinybert_epochs_and_warmup(size: str) -> None:
    """arXiv:1909.10351, section 4.2, and the released script: 3 epochs, warm-up over 10%."""
    config = loaded(f"tinybert/{size}")
    assert config.train.steps * 256 * 128 == pytest.approx(3 * 3.3e9, rel=0.01)
    assert config.optimizer.warmup_steps == config.train.steps // 10


def test_fasttext_crawl_parameters() -> None:
    """Two tables of 2,000,000 words, and a table of n-grams, 300 wide."""
    assert resolve_spec(loaded("fasttext/crawl")).parameters == (2 * 2_000_000 + 2_000_000) * 300
