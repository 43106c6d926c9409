"""Hugging Face counterparts of families, with a module for each architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from megaptm.errors import UserError
from megaptm.hub.counterparts import bigbird, deberta, electra, led, longformer, regions
from megaptm.hub.counterparts.albert import ALBERT
from megaptm.hub.counterparts.bart import BART
from megaptm.hub.counterparts.bert import BERT
from megaptm.hub.counterparts.clip import CLIP
from megaptm.hub.counterparts.counterpart import FFN_OF_WIDTH, OF_EARLIER_RELEASES, Counterpart
from megaptm.hub.counterparts.distilbert import DISTILBERT, TINYBERT
from megaptm.hub.counterparts.ernie import ERNIE, ERNIE_2
from megaptm.hub.counterparts.gpt1 import GPT1
from megaptm.hub.counterparts.gpt2 import GPT2
from megaptm.hub.counterparts.macbert import MACBERT
from megaptm.hub.counterparts.palm import PALM
from megaptm.hub.counterparts.reformer import REFORMER
from megaptm.hub.counterparts.roberta import ROBERTA
from megaptm.hub.counterparts.spanbert import SPANBERT
from megaptm.hub.counterparts.t5 import MT5, T5, T5_V1_1
from megaptm.hub.counterparts.transformer import TRANSFORMER
from megaptm.hub.counterparts.unilm import UNILM
from megaptm.hub.counterparts.vit import VIT
from megaptm.hub.counterparts.xlnet import XLNET
from megaptm.spec import PATTERN_NUMBERS, Block, Family, ModelSpec, Size, change

COUNTERPARTS = (
    GPT1,
    GPT2,
    BERT,
    BART,
    ROBERTA,
    ALBERT,
    SPANBERT,
    MACBERT,
    deberta.DEBERTA,
    deberta.DEBERTA_V2,
    deberta.DISCRIMINATOR,
    deberta.GENERATOR,
    ERNIE,
    ERNIE_2,
    PALM,
    electra.DISCRIMINATOR,
    electra.GENERATOR,
    T5,
    T5_V1_1,
    MT5,
    XLNET,
    UNILM,
    DISTILBERT,
    TINYBERT,
    TRANSFORMER,
    REFORMER,
    VIT,
    CLIP,
    longformer.LONGFORMER,
    longformer.FROM_ROBERTA,
    led.LED,
    led.FROM_BART,
    bigbird.BIGBIRD,
    bigbird.FROM_ROBERTA,
    regions.UNITER,
    regions.UNIMO,
)
# Fields that sizes or training recipes may change within one architecture.
FREE = (
    *("name", "paper", "vocabulary", "tokenizer", "specials", "context", "tasks", "z_loss", "label_smoothing", "init"),
    *("init_std", "dropout", "objectives", "sizes", "pixel_mean", "pixel_std"),
)

# The same for blocks.
LEFT_OUT: dict[str, Any] = {"norm_eps": 0.0, "groups": 1, "cycle": 1, "last_layer": "once"}
LEFT_OUT |= {name: Block.__dataclass_fields__[name].default for name in PATTERN_NUMBERS}
DRAWN_BY = {"blocks_seed"}
"""Seeds of random choices. The class of `transformers` makes these choices in its own way, so any value can be
exported."""
BY_LAYER = {"local", "lsh"}
"""Attention names that config.json lists by layer, so that the mix is a number of the config."""

__all__ = [
    "COUNTERPARTS",
    "FFN_OF_WIDTH",
    "OF_EARLIER_RELEASES",
    "Counterpart",
    "check_sharing",
    "counterpart_of",
    "counterparts_named",
    "is_first_of_its_type",
    "models_of",
]


def counterpart_of(spec: ModelSpec) -> Counterpart:
    """Return the Hugging Face architecture that computes the same as this model. Raise UserError if there is none."""
    counterpart = _of_shape(spec.family)
    if counterpart is None:
        known = _known("family", exported=True)
        raise UserError(
            f"{spec.name} has no counterpart at Hugging Face; those that have: {known}. Use "
            "it by `megaptm.load(RUN)` in Python, or say which of their models it is (docs/add-a-family.md, section 5)."
        )
    check_sharing(counterpart, spec)
    _check_patterns(counterpart, spec)
    sizes = {stack: spec.size_of(stack) for stack in spec.family.stacks}
    for size in sizes.values():
        _check_size(counterpart, size)
    _check_stacks(counterpart, sizes)
    return counterpart


def models_of(family: Family) -> tuple[str, ...]:
    """Return the class in `transformers` that computes the same; one per stack if stacks are separate models there;
    empty if there is none."""
    parts = [family.alone(stack) for stack in reversed(family.stacks)] if family.drawn else [family]
    found = [_of_shape(part) for part in parts]
    return tuple(one.model for one in found if one) if all(found) else ()


def _of_shape(family: Family) -> Counterpart | None:
    # Families of equal shape have separate models there: prefer the family's own.
    same = (one for one in COUNTERPARTS if not one.import_only)
    for counterpart in sorted(same, key=lambda one: one.family != family.name):
        if _shape(_with_heads_of(counterpart, family), counterpart) == _shape(counterpart.table, counterpart):
            return counterpart
    return None


def _check_size(counterpart: Counterpart, size: Size) -> None:
    """Raise UserError if config.json derives a number of a stack from another one, and the model has another value."""
    said = {name.rpartition(".")[2] for name in counterpart.numbers.values()}
    if "head_width" not in said and size.heads * size.key_width != size.width:
        raise UserError(
            f"{counterpart.model} has attention as wide as the model; {size.heads} heads of {size.key_width} are not "
            f"{size.width} wide, so this size cannot be exported."
        )
    if "ffn" not in said and size.ffn != FFN_OF_WIDTH * size.width:
        raise UserError(
            f"{counterpart.model} has a feed-forward {FFN_OF_WIDTH} times as wide as the model; {size.ffn} is not "
            f"{FFN_OF_WIDTH} x {size.width}, so this size cannot be exported."
        )
    if "kv_heads" not in said and size.key_heads != size.heads:
        raise UserError(
            f"{counterpart.model} has as many heads of keys and values as of queries; {size.key_heads} are not "
            f"{size.heads}, so this size cannot be exported."
        )


def _check_patterns(counterpart: Counterpart, spec: ModelSpec) -> None:
    """Raise UserError if config.json has no field for a number of the attention pattern, and the model has another
    value than the counterpart."""
    said = {name.removeprefix("local_").removeprefix("lsh_") for name in counterpart.numbers.values()} | DRAWN_BY
    for name in (one for one in PATTERN_NUMBERS if one not in said):
        for block, own in zip(spec.family.stacks.values(), counterpart.table.stacks.values(), strict=True):
            if {*PATTERN_NUMBERS[name]} & {*block.words} and (found := getattr(block, name)) != getattr(own, name):
                raise UserError(
                    f"{counterpart.model} has no model.{name} ({found}) but {getattr(own, name)}, so this model cannot "
                    "be exported: use it by `megaptm.load(RUN)` in Python."
                )


def _check_stacks(counterpart: Counterpart, sizes: Mapping[str, Size]) -> None:
    """Raise UserError if stacks differ in a number for which config.json has only one field."""
    (first, size), *others = sizes.items()
    said = {*counterpart.numbers.values()}
    for stack, other in others:
        for name in ("layers", "width", "heads", "ffn", *({"head_width"} & said)):
            one, two = ((getattr(found, "key_width" if name == "head_width" else name)) for found in (size, other))
            if one != two and f"{stack}.{name}" not in said:
                raise UserError(
                    f"model.stacks.{stack}.{name} ({two}): {counterpart.model} has one {name} for all stacks, and that "
                    f"of the {first} is {one}; make them equal, or this size cannot be exported."
                )


def check_sharing(counterpart: Counterpart, spec: ModelSpec) -> None:
    """Raise UserError if config.json cannot express which layers share parameters: it needs equal groups of whole
    cycles."""
    block = spec.family.first_block
    if "groups" in counterpart.numbers.values() and spec.size.layers % (block.groups * block.cycle):
        raise UserError(
            f"{counterpart.model} cuts its layers into equal groups of whole rounds; {spec.size.layers} layers are no "
            f"{block.groups} groups of rounds of {block.cycle}, so this model is neither exported nor imported."
        )


def counterparts_named(model_type: object, family: object = None) -> tuple[Counterpart, ...]:
    """Return the counterparts of a `model_type`, optionally only those of one family."""
    found = tuple(counterpart for counterpart in COUNTERPARTS if counterpart.name == model_type)
    if not found:
        raise UserError(f"A model of type {model_type!r} cannot be imported; these can: {_known('name')}.")
    if chosen := tuple(counterpart for counterpart in found if family in (None, counterpart.family)):
        return chosen
    families = ", ".join(dict.fromkeys(counterpart.family for counterpart in found))
    raise UserError(f"model.family ({family}): a model of type {model_type!r} can be imported as {families}.")


def is_first_of_its_type(counterpart: Counterpart) -> bool:
    """Whether a config without a family is read as this counterpart's family."""
    return counterparts_named(counterpart.name)[0].family == counterpart.family


def _with_heads_of(counterpart: Counterpart, family: Family) -> Family:
    """Return the family without heads that an objective added; these are not exported."""
    return change(family, heads=tuple(head for head in family.heads if head in counterpart.table.heads))


def _known(what: str, *, exported: bool = False) -> str:
    those = (counterpart for counterpart in COUNTERPARTS if not (exported and counterpart.import_only))
    return ", ".join(dict.fromkeys(getattr(counterpart, what) for counterpart in those))


def _shape(family: Family, counterpart: Counterpart) -> dict[str, Any]:
    """Return everything that determines the computation, except numbers of the config and mask decoders, which are used
    only in pre-training."""
    left_out = LEFT_OUT | ({"attention_dropout": True} if "attention_dropout" in counterpart.numbers.values() else {})
    table = {f.name: getattr(family, f.name) for f in fields(family) if f.name not in FREE}
    stacks = {name: change(block, **left_out) for name, block in family.stacks.items()}
    mixed = {name: change(block, attention="mixed") for name, block in stacks.items() if {*block.words} <= BY_LAYER}
    return {**table, "stacks": stacks | mixed}
