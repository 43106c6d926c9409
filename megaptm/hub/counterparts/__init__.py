"""Which model of Hugging Face's each family is: a module for each architecture."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from megaptm.errors import UserError
from megaptm.hub.counterparts.albert import ALBERT
from megaptm.hub.counterparts.bert import BERT
from megaptm.hub.counterparts.counterpart import FFN_OF_WIDTH, Counterpart
from megaptm.hub.counterparts.deberta import DEBERTA, DEBERTA_V2, DEBERTA_V3
from megaptm.hub.counterparts.electra import DISCRIMINATOR, GENERATOR
from megaptm.hub.counterparts.ernie import ERNIE, ERNIE_2
from megaptm.hub.counterparts.gpt1 import GPT1
from megaptm.hub.counterparts.gpt2 import GPT2
from megaptm.hub.counterparts.macbert import MACBERT
from megaptm.hub.counterparts.palm import PALM
from megaptm.hub.counterparts.roberta import ROBERTA
from megaptm.hub.counterparts.spanbert import SPANBERT
from megaptm.hub.counterparts.t5 import MT5, T5, T5_V1_1
from megaptm.spec import Family, ModelSpec, change

COUNTERPARTS = (
    GPT1,
    GPT2,
    BERT,
    ROBERTA,
    ALBERT,
    SPANBERT,
    MACBERT,
    DEBERTA,
    DEBERTA_V2,
    DEBERTA_V3,
    ERNIE,
    ERNIE_2,
    PALM,
    DISCRIMINATOR,
    GENERATOR,
    T5,
    T5_V1_1,
    MT5,
)
# What a table of sizes or a training recipe may change without making it another architecture.
FREE = ("name", "paper", "vocabulary", "tokenizer", "context", "z_loss", "init", "dropout", "objectives", "sizes")

# The same of blocks.
LEFT_OUT: dict[str, Any] = {"norm_eps": 0.0, "groups": 1, "cycle": 1, "last_layer": "once"}

__all__ = [
    "COUNTERPARTS",
    "FFN_OF_WIDTH",
    "Counterpart",
    "check_sharing",
    "counterpart_of",
    "counterparts_named",
    "is_first_of_its_type",
]


def counterpart_of(spec: ModelSpec) -> Counterpart:
    """The architecture at Hugging Face that computes what this model computes; an error if none does."""
    # Families of one shape have models of their own there: the family's comes first.
    for counterpart in sorted(COUNTERPARTS, key=lambda one: one.family != spec.name):
        if _shape(_with_heads_of(counterpart, spec.family)) == _shape(counterpart.table):
            if "head_width" not in counterpart.numbers.values() and spec.size.heads * spec.size.key_width != (
                spec.size.width
            ):
                raise UserError(
                    f"{counterpart.model} has attention as wide as the model; {spec.size.heads} heads of "
                    f"{spec.size.key_width} are not {spec.size.width} wide, so this size cannot be exported."
                )
            check_sharing(counterpart, spec)
            if "ffn" not in counterpart.numbers.values() and spec.size.ffn != FFN_OF_WIDTH * spec.size.width:
                raise UserError(
                    f"{counterpart.model} has a feed-forward {FFN_OF_WIDTH} times as wide as the model; "
                    f"{spec.size.ffn} is not {FFN_OF_WIDTH} x {spec.size.width}, so this size cannot be exported."
                )
            if "kv_heads" not in counterpart.numbers.values() and spec.size.key_heads != spec.size.heads:
                raise UserError(
                    f"{counterpart.model} has as many heads of keys and values as of queries; {spec.size.key_heads} "
                    f"are not {spec.size.heads}, so this size cannot be exported."
                )
            return counterpart
    raise UserError(f"{spec.name} has no counterpart at Hugging Face; the blocks of {_known('family')} have.")


def check_sharing(counterpart: Counterpart, spec: ModelSpec) -> None:
    """An error where theirs could not say which layers share: its groups are as long as each other, in whole rounds."""
    block = spec.family.first_block
    if "groups" in counterpart.numbers.values() and spec.size.layers % (block.groups * block.cycle):
        raise UserError(
            f"{counterpart.model} cuts its layers into equal groups of whole rounds; {spec.size.layers} layers are no "
            f"{block.groups} groups of rounds of {block.cycle}, so this model is neither exported nor imported."
        )


def counterparts_named(model_type: object, family: object = None) -> tuple[Counterpart, ...]:
    """Those of their config's `model_type`; of a family alone where one is named."""
    found = tuple(counterpart for counterpart in COUNTERPARTS if counterpart.name == model_type)
    if not found:
        raise UserError(f"A model of type {model_type!r} cannot be imported; these can: {_known('name')}.")
    if chosen := tuple(counterpart for counterpart in found if family in (None, counterpart.family)):
        return chosen
    families = ", ".join(dict.fromkeys(counterpart.family for counterpart in found))
    raise UserError(f"model.family ({family}): a model of type {model_type!r} can be imported as {families}.")


def is_first_of_its_type(counterpart: Counterpart) -> bool:
    """Whether it is what their config is taken for where nobody says which family it is of."""
    return counterparts_named(counterpart.name)[0].family == counterpart.family


def _with_heads_of(counterpart: Counterpart, family: Family) -> Family:
    """Without heads that an objective has added: those stay behind when a model is exported."""
    return change(family, heads=tuple(head for head in family.heads if head in counterpart.table.heads))


def _known(what: str) -> str:
    return ", ".join(dict.fromkeys(getattr(counterpart, what) for counterpart in COUNTERPARTS))


def _shape(family: Family) -> dict[str, Any]:
    """Everything that decides what the model computes, but for what is a number of the config; and mask decoders are
    left behind: they serve pre-training."""
    table = {f.name: getattr(family, f.name) for f in fields(family) if f.name not in FREE}
    return {**table, "stacks": {name: change(block, **LEFT_OUT) for name, block in family.stacks.items()}}
