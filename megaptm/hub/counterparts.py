"""Which model of Hugging Face each family is, and which field of its config is which of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.tables import BERT_ROWS, GPT2_ROWS, T5_ROWS, TensorRule
from megaptm.spec import Family, ModelSpec, Size, change

# Of layers, heads, widths and ids: no model has more, and the number of elements of any tensor stays below 2^63.
MOST = 1 << 20
# What a table of sizes or a training recipe may change without making it another architecture.
FREE = ("name", "paper", "vocabulary", "tokenizer", "context", "init", "dropout", "objectives", "sizes")


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """One architecture, by their name and by ours."""

    family: str
    model: str
    """Class in `transformers`; its `config_class` is the config's."""
    numbers: dict[str, str]
    """Their field -> ours. Several of theirs may be one of ours (dropouts); they must then agree."""
    fixed: dict[str, Any]
    """Fields to which the architecture leaves one value."""
    rows: tuple[TensorRule, ...]
    tied: dict[str, str] = field(default_factory=dict)
    """Their parameters that are other names of parameters in `rows`: the other name -> the one in `rows`."""
    prefix: str = ""
    """What the names of the bare model, saved without its heads (`BertModel`), begin with inside `model`."""
    special: dict[str, int | None] = field(default_factory=dict)
    """Special ids where no tokenizer says otherwise."""


COUNTERPARTS = (
    Counterpart(
        family="gpt2",
        model="GPT2LMHeadModel",
        numbers={
            "n_layer": "layers",
            "n_embd": "width",
            "n_head": "heads",
            "n_inner": "ffn",
            "vocab_size": "vocabulary",
            "n_positions": "context",
            "layer_norm_epsilon": "norm_eps",
            "resid_pdrop": "dropout",
            "embd_pdrop": "dropout",
            "attn_pdrop": "dropout",
        },
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
        rows=GPT2_ROWS,
        tied={"lm_head.weight": "transformer.wte.weight"},
        prefix="transformer.",
        special={"bos_token_id": 50256, "eos_token_id": 50256},
    ),
    Counterpart(
        family="bert",
        model="BertForPreTraining",
        numbers={
            "num_hidden_layers": "layers",
            "hidden_size": "width",
            "num_attention_heads": "heads",
            "intermediate_size": "ffn",
            "vocab_size": "vocabulary",
            "max_position_embeddings": "context",
            "layer_norm_eps": "norm_eps",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "dropout",
        },
        fixed={
            "hidden_act": "gelu",
            "type_vocab_size": 2,
            "is_decoder": False,
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
        rows=BERT_ROWS,
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        prefix="bert.",
        special={"pad_token_id": 0},
    ),
    Counterpart(
        family="t5",
        model="T5ForConditionalGeneration",
        numbers={
            "num_layers": "layers",
            "num_decoder_layers": "layers",
            "d_model": "width",
            "num_heads": "heads",
            "d_kv": "head_width",
            "d_ff": "ffn",
            "vocab_size": "vocabulary",
            "layer_norm_epsilon": "norm_eps",
            "dropout_rate": "dropout",
        },
        fixed={
            "feed_forward_proj": "relu",
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "scale_decoder_outputs": True,
        },
        rows=T5_ROWS,
        tied=dict.fromkeys(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
        ),
        special={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    ),
)


def counterpart_of(spec: ModelSpec) -> Counterpart:
    """The architecture at Hugging Face that computes what this model computes; an error if none does."""
    for counterpart in COUNTERPARTS:
        family = CATALOGUE[counterpart.family]
        if _shape(spec.family) == _shape(family):
            if "head_width" not in counterpart.numbers.values() and spec.size.heads * spec.size.key_width != (
                spec.size.width
            ):
                raise UserError(
                    f"{counterpart.model} has attention as wide as the model; {spec.size.heads} heads of "
                    f"{spec.size.key_width} are not {spec.size.width} wide, so this size cannot be exported."
                )
            return counterpart
    known = ", ".join(counterpart.family for counterpart in COUNTERPARTS)
    raise UserError(f"{spec.name} has no counterpart at Hugging Face; the blocks of {known} have.")


def counterpart_named(model_type: object) -> Counterpart:
    """By their config's `model_type`, which is our family's name."""
    for counterpart in COUNTERPARTS:
        if counterpart.family == model_type:
            return counterpart
    known = ", ".join(counterpart.family for counterpart in COUNTERPARTS)
    raise UserError(f"A model of type {model_type!r} cannot be imported; these can: {known}.")


def config_values(counterpart: Counterpart, spec: ModelSpec) -> dict[str, Any]:
    """The fields of their config that describe this model."""
    ours = {
        "layers": spec.size.layers,
        "width": spec.size.width,
        "heads": spec.size.heads,
        "head_width": spec.size.key_width,
        "ffn": spec.size.ffn,
        "vocabulary": spec.vocabulary,
        "context": spec.context,
        "norm_eps": spec.family.first_block.norm_eps,
        "dropout": spec.dropout,
    }
    return {**{theirs: ours[name] for theirs, name in counterpart.numbers.items()}, **counterpart.fixed}


def checked_number(counterpart: Counterpart, theirs: str, value: Any) -> Any:
    """The value of one of `numbers`; an error where no model can have it."""
    if value is None and theirs == "n_inner":
        return value
    match counterpart.numbers[theirs]:
        case "dropout":
            wanted, good = "a number from 0 to below 1", _is_number(value) and 0 <= value < 1
        case "norm_eps":
            wanted, good = "a small positive number", _is_number(value) and 0 < value < 1
        case _:
            wanted, good = f"a whole number from 1 to {MOST:,}", type(value) is int and 1 <= value <= MOST
    if not good:
        raise UserError(f"{counterpart.model} config: {theirs} is {str(value)[:40]!r}; it must be {wanted}.")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def spec_of(counterpart: Counterpart, config: Mapping[str, Any]) -> ModelSpec:
    """The model that their config describes; an error that names the field we could not honour."""
    for name, value in counterpart.fixed.items():
        if config.get(name) != value:
            raise UserError(
                f"{counterpart.model} config: {name} is {config.get(name)!r}; only {value!r} can be imported."
            )
    ours: dict[str, Any] = {}
    for theirs, name in counterpart.numbers.items():
        value = checked_number(counterpart, theirs, config[theirs])
        if theirs == "n_inner" and value is None:
            value = 4 * config["n_embd"]
        if ours.setdefault(name, value) != value:
            raise UserError(
                f"{counterpart.model} config: {theirs} ({value}) differs from its siblings ({ours[name]}), "
                f"for which {counterpart.family} has one number, {name}; make them equal."
            )
    if "head_width" not in ours and ours["width"] % ours["heads"]:
        raise UserError(
            f"{counterpart.model} config: {ours['heads']} heads do not divide a width of {ours['width']}; restore it."
        )
    family = CATALOGUE[counterpart.family]
    eps = ours["norm_eps"]
    stacks = {name: change(block, norm_eps=eps) for name, block in family.stacks.items()}
    return ModelSpec(
        family=replace(family, stacks=stacks),
        size=Size(
            layers=ours["layers"],
            width=ours["width"],
            heads=ours["heads"],
            ffn=ours["ffn"],
            head_width=ours.get("head_width"),
        ),
        vocabulary=ours["vocabulary"],
        context=ours.get("context", family.context),
        dropout=ours["dropout"],
    )


def _shape(family: Family) -> dict[str, Any]:
    """Everything that decides what the model computes; the norms' epsilon is a number of the config."""
    table = {f.name: getattr(family, f.name) for f in fields(family) if f.name not in FREE}
    return {**table, "stacks": {name: change(block, norm_eps=0.0) for name, block in family.stacks.items()}}
