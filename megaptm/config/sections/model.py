"""Section `model`: the model, and its differences from the published one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict, create_model, field_validator

from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.section import Count, Fraction, Section


class Shape(Section):
    """Shape of a stack of layers."""

    # Limits the number of layers, which are iterated over: a plan for this many takes a second.
    layers: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Number of layers of each stack. Default: from `size`."""
    width: Count | None = None
    """Width of the residual stream. Default: from `size`."""
    heads: Count | None = None
    """Number of attention heads. Default: from `size`."""
    ffn: Count | None = None
    """Inner width of the feed-forward, or width of a recurrent layer's cell. Default: from `size`."""
    head_width: Count | None = None
    """Width of one head. Default: from `size`, or width / heads."""
    kv_heads: Count | None = None
    """Number of heads of keys and values, each shared by several query heads. Default: from `size`, or `heads`."""
    band: Count | None = None
    """Banded attention: positions attended to on each side. Default: from `size`, or 256."""
    memory: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Relative attention: length of the recurrence cache, in positions before the sequence. Recurrent families: 1 to
    keep the state between steps, or 0. Default: from `size`, or 0."""
    context: Count | None = None
    """Longest sequence with learned positions, if it differs from other stacks. Default: from `size`."""


class GeneralModelConfig(Shape):
    """Model: a family, one of its sizes, and differences from the published one."""

    family: str
    """Name in the catalogue (`megaptm families`), or your own `Family`: package.module:NAME."""
    size: str
    """Row of the family's table of sizes, or `custom`, which requires layers, width, heads and ffn."""
    vocabulary: Count | None = None
    """Vocabulary size; at least the number of ids of the corpus's tokenizer. Default: from the corpus
    or, without a corpus, from the paper."""
    context: Count | None = None
    """Longest sequence with learned positions. Default: from `size`."""
    tied: bool | None = None
    """Whether the output projection of next-token heads is the token table. Default: from `size`."""
    causal: bool | None = None
    """Whether positions attend only to those before them, and the head predicts the next token. Otherwise they attend
    to both sides, and the head predicts masked tokens. For families with one stack. Default: from `family`."""
    dropout: Fraction | None = None
    """Dropout rate everywhere in the model. Default: from the paper."""
    z_loss: Annotated[float, Field(ge=0.0)] | None = None
    """Weight of the z-loss, the squared logarithm of the softmax's normalizer, in a token's loss. Default: from
    the paper."""
    label_smoothing: Fraction | None = None
    """Label smoothing in training: share of the probability spread over all tokens. Default: from the paper."""
    init_std: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Standard deviation of normal initial weights, if the family uses one for all. Default: from the paper, 0.02.
    Narrow models learn faster with about 1 / sqrt(width)."""
    mup_base_width: Count | None = None
    """Maximal update parametrization (muP): width for which optimizer.lr and the initial values were chosen. The values
    for model.width are derived from them, so that the best learning rate of a narrow model fits a wide one. Heads and
    ffn must grow with the width. Default: no muP."""
    embedding: Count | None = None
    """Width of the token table, if it differs from the residual stream. Default: from `size`."""
    word_vectors: str | None = None
    """Text file of word vectors, one per line (text formats of GloVe and word2vec). They initialize the words of the
    vocabulary that the file has. Default: all words are initialized alike."""
    negatives: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    """Sampled softmax in training: number of negative words per step, sampled by rank (ELMo: 8,192); 0 for the full
    softmax. Default: from the paper."""
    stacks: dict[str, Shape] = {}
    """Stack (encoder, decoder) -> its values that differ from the above."""
    share: Annotated[tuple[Literal["attention", "cross", "ffn"], ...], Strict(False)] | None = None
    """Sublayers whose weights are shared among layers: any of attention, cross, ffn, or []. Default: from
    `family`."""
    groups: Count | None = None
    """Number of consecutive groups of layers; weights are shared within a group. Default: from `family`."""
    cycle: Count | None = None
    """Number of distinct layers in a group, which are repeated in turn. Default: from `family`."""
    attention: dict[str, Any] = {}
    """Options of the family's kinds of attention: option -> value, or a list of values that layers use in turn. All
    kinds have `dropout` (whether attention weights have the model's dropout, or a rate of their own) and `scale_width`
    (head width whose square root divides scores, if it is not that of the heads). Kinds with rotary positions have
    `rope_base`, `rope_factor` (that stretches wavelengths for longer texts) and `rope_original_context` (null: all
    wavelengths are stretched; else those above this length). Further options depend on the kind: `window`
    (sliding windows), also `dilation` (Longformer, LED); `block_size`, `num_random_blocks`, `seed` and `edge_blocks`
    (BigBird); `chunk_length`, `num_hashes` and `num_buckets` (Reformer). Default: from `family`."""

    @field_validator("size", mode="before")
    @classmethod
    def _convert_size(cls, value: Any) -> Any:
        """Convert a number to a string: YAML reads `175` as a number. An unknown size is reported by other code."""
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _keys_of_families() -> list[type[Section]]:
    """Return the classes with keys of families. Raise `UserError` if a key is defined twice."""
    classes: list[type[Section]] = []
    owners: dict[str, type[Section]] = dict.fromkeys(GeneralModelConfig.model_fields, GeneralModelConfig)
    for keys in contributions("config", "MODEL_KEYS"):
        for key in keys.model_fields:
            if (owner := owners.setdefault(key, keys)) is not keys:
                raise UserError(
                    f"model.{key} is a key of both {owner.__module__}.{owner.__qualname__} and "
                    f"{keys.__module__}.{keys.__qualname__}: rename one."
                )
        classes.append(keys)
    return classes


if TYPE_CHECKING:
    ModelConfig = GeneralModelConfig
else:
    # The keys of families follow the general ones: pydantic collects fields from the last base class on.
    ModelConfig = create_model(
        "ModelConfig",
        __base__=(*_keys_of_families(), GeneralModelConfig),
        __doc__=GeneralModelConfig.__doc__,
        __module__=__name__,
    )
