"""Rules for configs of word vectors: tables have no layers, and only data parallelism divides them."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config.schema import Config, Layout, ModelConfig, OptimizerConfig
from megaptm.families import WORDS, find_family
from megaptm.families.words import LANES, WordFamily

OF_ALL = ("family", "size", "vocabulary")
"""Keys of `model` that all of them use."""
ALONE = ("tensor", "pipeline", "virtual", "sequence_parallel", "distributed_optimizer", "recompute")
OF_RATE = (
    "name",
    "lr",
    "warmup_steps",
    "warmup_share",
    "stable_steps",
    "decay",
    "power",
    "final",
    "decay_steps",
    "counts",
)
"""Keys of `optimizer` that all of them use."""
OF_ADAPTIVE = ("name", "lr", "initial_accumulator")
"""Keys of `optimizer` for Adagrad, whose learning rates decrease by themselves."""
OF_NETWORK = (*OF_RATE, "weight_decay", "weight_decay_on", "clip")
"""Keys of `optimizer` for a neural network."""
OF_TEXT = {"data": ("size_exponent", "dupe_factor"), "train": ("ramp", "after", "skip")}
"""Keys of reading text, which do not apply to objectives that count all pairs first."""


def word_rules(config: Config) -> Iterator[str]:
    """Yield every broken rule."""
    yield from word_shape(config.model)
    yield from _layout(config)
    yield from _optimizer(config)
    yield from _pairs(config)
    if config.train.precision != "fp32":
        yield (
            f"train.precision ({config.train.precision}) must be fp32 for {config.model.family}, whose numbers are "
            "moved where they are kept: set it."
        )


def word_shape(model: ModelConfig) -> Iterator[str]:
    """Yield errors of `model` keys that the tables do not use, and of invalid n-gram lengths."""
    family = find_family(model.family)
    assert isinstance(family, WordFamily)
    for key, value in model:
        if key in (*OF_ALL, *family.numbers) or value in (None, {}):
            continue
        readers = [name for name, other in WORDS.items() if key in other.numbers]
        if readers:
            yield f"model.{key} means nothing to {model.family}: remove it, or use {' or '.join(readers)}."
        else:
            yield f"model.{key} means nothing to {model.family}, which has no layers; remove it."
    if family.model == "next-word" and model.hidden == 0 and model.direct is False:
        yield f"model.hidden (0) and model.direct (false) leave {family.name} nothing to say a word from: give one."
    if family.model == "ranking" and model.hidden == 0:
        yield f"model.hidden (0) must be 1 or more for {family.name}, whose window has nothing else to be read by."
    if "ngrams" in family.numbers and model.ngrams is not None and model.ngrams[0] > model.ngrams[1]:
        yield f"model.ngrams ({model.ngrams[0]}, {model.ngrams[1]}) must be the shorter and then the longer."


def _layout(config: Config) -> Iterator[str]:
    layout, family = config.layout, config.model.family
    usual, network = Layout(), _family(config).network
    why = "which each data rank has whole" if network else "whose tables data ranks divide among them"
    for key in ALONE:
        if getattr(layout, key) != getattr(usual, key):
            yield f"layout.{key} ({getattr(layout, key)}) means nothing to {family}, {why}: use layout.data alone."
    if layout.microbatch != 1:
        yield (
            f"layout.microbatch ({layout.microbatch}) must be 1 for {family}, which learns row by row: make rows "
            "longer with data.sequence."
        )
    if layout.data > LANES and not network:
        yield f"layout.data ({layout.data}) must not exceed {LANES} for {family}: its tables are divided by {LANES}."


def _pairs(config: Config) -> Iterator[str]:
    if config.built_objective.unit != "pairs":
        return
    family = config.model.family
    for section, keys in OF_TEXT.items():
        for key in keys:
            if getattr(getattr(config, section), key):
                yield f"{section}.{key} means nothing to {family}, which reads pairs that were counted; remove it."
    if not config.data.document_mask:
        yield f"data.document_mask must be true for {family}, which counts pairs within a document: leave it out."


def _optimizer(config: Config) -> Iterator[str]:
    optimizer, family = config.optimizer, _family(config)
    pairs = family.model == "pairs"
    known: tuple[str, ...]
    rule, known, why = "sgd", OF_RATE, "whose vectors move by the gradient alone"
    if pairs:
        rule, known, why = "adagrad", OF_ADAPTIVE, "each of whose numbers has a rate of its own"
    elif family.network:
        known, why = OF_NETWORK, "which moves by the gradient alone"
    if optimizer.name != rule:
        yield f"optimizer.name ({optimizer.name}) must be {rule} for {family.name}, as it was published: set it."
    usual = OptimizerConfig(lr=1.0)
    for key in OptimizerConfig.model_fields:
        if key not in known and getattr(optimizer, key) != getattr(usual, key):
            yield f"optimizer.{key} means nothing to {family.name}, {why}; remove it."
    if pairs and not optimizer.initial_accumulator:
        yield (
            f"optimizer.initial_accumulator (0.0) must be above 0 for {family.name}, which divides by its root: set "
            "it to 1, as published."
        )


def _family(config: Config) -> WordFamily:
    family = find_family(config.model.family)
    assert isinstance(family, WordFamily)
    return family
