"""Variants of families: each uses one option of the tables that no family of the catalogue uses yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from megaptm.families import CATALOGUE, FOLDERS
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2
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

assert (exits.ExitCosts.name, pairs.PairsCosts.name) == ("exit", "pairs")  # the imports register the heads


class Variant(NamedTuple):
    base: str
    """Family whose batches fit the variant."""
    family: Family
    size: dict[str, Any]


def bert(**options: Any) -> Family:
    return change(BERT, stacks={"encoder": change(BERT.last_block, **options)})


def gpt(**options: Any) -> Family:
    return change(GPT2, stacks={"decoder": change(GPT2.last_block, **options)})


TOWERS = {
    "encoder": Block(position="learned", norm=NormSpec(position="post")),
    "decoder": Block(visibility="causal", position="rope", ffn=FFNSpec(activation="swiglu")),
}
BOTH = ("attention", "ffn")
VARIANTS = {
    "shared-layers": Variant("bert", bert(sharing={"sublayers": BOTH}), {}),
    "shared-attention-2-groups": Variant("bert", bert(sharing={"sublayers": ("attention",), "groups": 2}), {}),
    "shared-cycle-2": Variant("bert", bert(sharing={"sublayers": BOTH, "cycle": 2}), {}),
    "shared-decoder-layers": Variant(
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
    "alternating-ffn": Variant("gpt2", gpt(ffn={"activation": ("gelu", "swiglu")}), {}),
    "factorized-embedding-encoder": Variant("bert", BERT, {"embedding": 16}),
    "factorized-embedding-decoder": Variant("gpt2", GPT2, {"embedding": 16}),
    "factorized-embedding-untied": Variant("gpt2", change(GPT2, output={"tied": False}), {"embedding": 16}),
    "smaller-decoder": Variant(
        "t5", T5, {"stacks": {"decoder": Size(layers=2, width=16, heads=2, ffn=96)}, "layers": 2}
    ),
    "head-on-encoder": Variant(
        "t5", change(T5, heads=("lm", "sentence-order"), reads={"sentence-order": "encoder"}), {}
    ),
    "parallel-sublayers": Variant("gpt2", gpt(norm={"position": "parallel"}), {}),
    "parallel-shared-sublayers": Variant("gpt2", gpt(norm={"position": "parallel"}, sharing={"sublayers": BOTH}), {}),
    "norm-without-shift": Variant("gpt2", gpt(norm={"kind": "layer-no-shift"}), {}),
    "norm-without-parameters": Variant("bert", bert(norm={"kind": "layer-fixed"}), {}),
    "two-towers-contrast": Variant(
        "t5",
        change(
            T5, stacks=TOWERS, heads=("lm", "pairs"), reads={"pairs": ("encoder", "decoder")}, init={"rule": "normal"}
        ),
        {"stacks": {"encoder": Size(layers=2, width=16, heads=2, ffn=32)}},
    ),
    "early-exit": Variant("gpt2", change(GPT2, heads=("lm", "exit"), reads={"exit": "decoder.1"}), {}),
    "rope": Variant("gpt2", gpt(position="rope", visibility="causal"), {}),
    "grouped-queries": Variant("gpt2", gpt(position="rope"), {"kv_heads": 2}),
    "banded-multi-query-z-loss": Variant(
        "bert",
        change(bert(attention=(BandedSpec(), AttentionSpec())), loss={"z_loss": 1e-2}),
        {"kv_heads": 1, "band": 3},
    ),
    "custom-pattern": Variant("bert", bert(attention=PatternSpec(pattern="tests.models.strided:NEAR_OR_FIRST")), {}),
    "attention-without-bias": Variant("bert", bert(attention={"bias": False}), {}),
}

if "infoword" in FOLDERS:
    VARIANTS["infomax"] = Variant("bert", change(BERT, heads=("mlm", "infomax")), {})
if "longformer" in FOLDERS:
    from megaptm.families.longformer.spec import WindowSpec

    WINDOWS = tuple(WindowSpec(window=(2, 3, 5)[n % 3], dilation=1 + n % 2) for n in range(6))
    VARIANTS["dilated-windows"] = Variant("gpt2", gpt(attention=WINDOWS), {})
if "bigbird" in FOLDERS:
    BIGBIRD = CATALOGUE["bigbird"]
    # ETC: global tokens marked by the batch, instead of the first and the last block.
    ETC = {"edge_blocks": False, "block_size": 2, "num_random_blocks": 1}
    VARIANTS["blocks-global-tokens"] = Variant(
        "bigbird", change(BIGBIRD, stacks={"encoder": change(BIGBIRD.last_block, attention=ETC)}), {}
    )


def variant(spec: ModelSpec, name: str) -> ModelSpec:
    """Return a variant's spec, made from a spec of its base."""
    _, family, size = VARIANTS[name]
    return replace(spec, family=family, size=change(spec.size, **size))
