"""Rules for configs of word vectors: tables have no layers, and only data parallelism divides them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megaptm.config.schema import Config, Layout, OptimizerConfig, SpikeConfig
from megaptm.families.word_vectors import FAMILIES, LANES, WordFamily

COMMON_KEYS = ("family", "size", "vocabulary")
"""Keys of `model` that all families of word vectors use."""
OTHER_PARALLELISM_KEYS = (
    "tensor",
    "context",
    "pipeline",
    "virtual",
    "layers_per_stage",
    "sequence_parallel",
    "distributed_optimizer",
    "full_sharding",
    "recompute",
    "recompute_every",
)
SCHEDULE_KEYS = (
    "name",
    "lr",
    "warmup_steps",
    "warmup_shape",
    "max_warmup_ratio",
    "stable_steps",
    "decay",
    "power",
    "min_lr_ratio",
    "decay_steps",
    "step_unit",
)
"""Keys of `optimizer` that all families of word vectors use."""
ADAGRAD_KEYS = ("name", "lr", "initial_accumulator")
"""Keys of `optimizer` for Adagrad, whose learning rates decrease by themselves."""
NETWORK_KEYS = (*SCHEDULE_KEYS, "weight_decay", "weight_decay_on", "clip")
"""Keys of `optimizer` for a neural network."""
TEXT_KEYS = {"data": ("size_exponent", "dupe_factor"), "train": ("ramp", "phase_start", "skip_batches")}
"""Config keys about reading text, which do not apply to objectives that count all pairs first."""


def word_vector_errors(config: Config, family: WordFamily) -> Iterator[str]:
    """Yield an error for each broken rule of a config of word vectors."""
    yield from word_model_errors(config.model, family)
    yield from _layout_errors(config, family)
    yield from _optimizer_errors(config, family)
    yield from _pair_errors(config)
    if config.train.precision != "fp32":
        yield (
            f"train.precision ({config.train.precision}) must be fp32 for {config.model.family}, whose vectors are "
            "trained in fp32 only; set it."
        )
    if config.train.spikes != SpikeConfig():
        yield f"train.spikes is not used by {config.model.family}, which has no layers; remove it."
    for key in ("norms_every", "attention_logits_every"):
        if getattr(config.train, key) is not None:
            yield f"train.{key} is not used by {config.model.family}, which has no layers; remove it."


def word_model_errors(model: Any, family: WordFamily) -> Iterator[str]:
    """Yield errors of `model` keys that word vectors do not use, and of invalid n-gram lengths."""
    for key, value in model:
        if key in (*COMMON_KEYS, *family.size_fields) or value in (None, {}):
            continue
        readers = [other.name for other in FAMILIES if key in other.size_fields]
        if readers:
            yield f"model.{key} is not used by {model.family}: remove it, or use {' or '.join(readers)}."
        else:
            yield f"model.{key} is not used by {model.family}, which has no layers; remove it."
    if family.model == "next-word" and model.hidden == 0 and model.direct is False:
        yield (
            f"model.hidden (0) and model.direct (false) leave {family.name} no path from its words to the output: set "
            "one."
        )
    if family.model == "ranking" and model.hidden == 0:
        yield f"model.hidden (0) must be 1 or more for {family.name}: hidden units read its window."
    if "ngrams" in family.size_fields and model.ngrams is not None and model.ngrams[0] > model.ngrams[1]:
        yield f"model.ngrams ({model.ngrams[0]}, {model.ngrams[1]}) must be the minimum and then the maximum."


def _layout_errors(config: Config, family: WordFamily) -> Iterator[str]:
    layout, name = config.layout, config.model.family
    usual, network = Layout(), family.is_network
    why = "which each data rank holds in full" if network else "whose tables are divided among data ranks"
    for key in OTHER_PARALLELISM_KEYS:
        if getattr(layout, key) != getattr(usual, key):
            yield f"layout.{key} ({getattr(layout, key)}) is not used by {name}, {why}: use only layout.data."
    if layout.microbatch != 1:
        yield (
            f"layout.microbatch ({layout.microbatch}) must be 1 for {name}, which trains on one sequence at a time: "
            "raise data.sequence instead."
        )
    if layout.data > LANES and not network:
        yield (
            f"layout.data ({layout.data}) must not exceed {LANES} for {name}: its tables are divided into {LANES} "
            "parts."
        )


def _pair_errors(config: Config) -> Iterator[str]:
    if config.built_objective.unit != "pairs":
        return
    family = config.model.family
    for section, keys in TEXT_KEYS.items():
        for key in keys:
            if getattr(getattr(config, section), key):
                yield f"{section}.{key} is not used by {family}, which reads counted pairs; remove it."
    if not config.data.document_mask:
        yield f"data.document_mask must be true for {family}, which counts pairs within a document: remove it."


def _optimizer_errors(config: Config, family: WordFamily) -> Iterator[str]:
    optimizer = config.optimizer
    pairs = family.model == "pairs"
    known: tuple[str, ...]
    rule, known, why = "sgd", SCHEDULE_KEYS, "whose vectors are updated by the gradient alone"
    if pairs:
        rule, known, why = "adagrad", ADAGRAD_KEYS, "whose elements have a learning rate each"
    elif family.is_network:
        known, why = NETWORK_KEYS, "which is updated by the gradient alone"
    if optimizer.name != rule:
        yield f"optimizer.name ({optimizer.name}) must be {rule} for {family.name}, as published: set it."
    usual = OptimizerConfig(lr=1.0)
    for key in OptimizerConfig.model_fields:
        if key not in known and getattr(optimizer, key) != getattr(usual, key):
            yield f"optimizer.{key} is not used by {family.name}, {why}; remove it."
    if pairs and not optimizer.initial_accumulator:
        yield (
            f"optimizer.initial_accumulator (0.0) must be above 0 for {family.name}, which divides by its square root: "
            "set it to 1, as published."
        )
