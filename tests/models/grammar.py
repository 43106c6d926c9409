"""Families that no paper has: each says one thing that the grammar of tables can say and the catalogue does not yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2
from megaptm.families.longformer.spec import WindowSpec
from megaptm.families.t5 import T5
from megaptm.spec import (
    AttentionSpec,
    BandedSpec,
    Block,
    Family,
    FFNSpec,
    ModelSpec,
    NormSpec,
    PatternSpec,
    Size,
    change,
)
from tests.models import exits, pairs

assert (exits.ExitBrick.name, pairs.PairsBrick.name) == ("exit", "pairs")  # importing them makes them known


class Variant(NamedTuple):
    base: str
    """The family whose batches it takes."""
    family: Family
    size: dict[str, Any]


def bert(**words: Any) -> Family:
    return change(BERT, stacks={"encoder": change(BERT.last_block, **words)})


def gpt(**words: Any) -> Family:
    return change(GPT2, stacks={"decoder": change(GPT2.last_block, **words)})


TOWERS = {
    "encoder": Block(position="learned", norm=NormSpec(position="post")),
    "decoder": Block(visibility="causal", position="rope", ffn=FFNSpec(activation="swiglu")),
}
# BigBird's ETC: tokens that a batch marks, in the place of the first and the last block.
MARKED_BLOCKS = change(
    CATALOGUE["bigbird"].last_block, attention={"edge_blocks": False, "block_size": 2, "num_random_blocks": 1}
)
BOTH = ("attention", "ffn")
WINDOWS = tuple(WindowSpec(window=(2, 3, 5)[n % 3], dilation=1 + n % 2) for n in range(6))
VARIANTS = {
    "all layers are one": Variant("bert", bert(sharing={"sublayers": BOTH}), {}),
    "layers share attention, in two groups": Variant(
        "bert", bert(sharing={"sublayers": ("attention",), "groups": 2}), {}
    ),
    "two layers in turn are all": Variant("bert", bert(sharing={"sublayers": BOTH, "cycle": 2}), {}),
    "a decoder's layers share all": Variant(
        "t5",
        change(
            T5,
            stacks={
                **T5.stacks,
                "decoder": change(T5.last_block, sharing={"sublayers": ("attention", "cross", "ffn")}),
            },
        ),
        {},
    ),
    "feed-forwards in turn": Variant("gpt2", gpt(ffn={"activation": ("gelu", "swiglu")}), {}),
    "narrow tables of an encoder": Variant("bert", BERT, {"embedding": 16}),
    "narrow tables of a decoder": Variant("gpt2", GPT2, {"embedding": 16}),
    "narrow tables, one for the output": Variant("gpt2", change(GPT2, tied=False), {"embedding": 16}),
    "a shallower and narrower decoder": Variant(
        "t5", T5, {"stacks": {"decoder": Size(layers=2, width=16, heads=2, ffn=96)}, "layers": 2}
    ),
    "a head that reads the encoder": Variant(
        "t5", change(T5, heads=("lm", "sentence-order"), reads={"sentence-order": "encoder"}), {}
    ),
    "one norm before parallel sub-layers": Variant("gpt2", gpt(norm={"position": "parallel"}), {}),
    "parallel sub-layers that layers share": Variant(
        "gpt2", gpt(norm={"position": "parallel"}, sharing={"sublayers": BOTH}), {}
    ),
    "norms without a shift": Variant("gpt2", gpt(norm={"kind": "layer-no-shift"}), {}),
    "norms without parameters": Variant("bert", bert(norm={"kind": "layer-fixed"}), {}),
    "two towers, compared over all rows": Variant(
        "t5",
        change(T5, stacks=TOWERS, heads=("lm", "pairs"), reads={"pairs": ("encoder", "decoder")}, init="normal"),
        {"stacks": {"encoder": Size(layers=2, width=16, heads=2, ffn=32)}},
    ),
    "an n-gram that its text finds": Variant("bert", change(BERT, heads=("mlm", "infomax")), {}),
    "a loss inside a stack": Variant("gpt2", change(GPT2, heads=("lm", "exit"), reads={"exit": "decoder.1"}), {}),
    "queries and keys turned by place": Variant("gpt2", gpt(position="rope", visibility="causal"), {}),
    "queries that share heads of keys": Variant("gpt2", gpt(position="rope"), {"kv_heads": 2}),
    "one head of keys, and a normalizer near one": Variant(
        "bert", change(bert(attention=(BandedSpec(), AttentionSpec())), z_loss=1e-2), {"kv_heads": 1, "band": 3}
    ),
    "windows of a decoder, wider and dilated from layer to layer": Variant("gpt2", gpt(attention=WINDOWS), {}),
    "blocks, and tokens that see all": Variant(
        "bigbird", change(CATALOGUE["bigbird"], stacks={"encoder": MARKED_BLOCKS}), {}
    ),
    "a pattern of one's own": Variant(
        "bert", bert(attention=PatternSpec(pattern="tests.models.strided:NEAR_OR_FIRST")), {}
    ),
    "no bias in attention": Variant("bert", bert(attention={"bias": False}), {}),
}


def variant(spec: ModelSpec, name: str) -> ModelSpec:
    """A spec of the variant's base, as the variant."""
    _, family, size = VARIANTS[name]
    return replace(spec, family=family, size=change(spec.size, **size))
