"""Rotary position embeddings against `transformers.LlamaForCausalLM`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from megaptm.errors import UserError
from megaptm.families.gpt import GPT2
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, TensorRule, export_weights
from megaptm.layers.positions import rotary_embedding
from megaptm.models.model import Model
from megaptm.spec import AttentionSpec, Block, FFNSpec, NormSpec, RopeParameters, change
from tests.models.tiny import VOCABULARY as WORDS
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import assert_close, table_gradient

LLAMA = change(
    GPT2,
    output={"tied": False},
    stacks={
        "decoder": Block(
            visibility="causal",
            position="rope",
            norm=NormSpec(kind="rms", eps=1e-6),
            ffn=FFNSpec(activation="swiglu", bias=False),
            attention=AttentionSpec(bias=False, rope_base=500.0),
        )
    },
)
LAYER = "model.layers.{n}"
ATTENTION = f"{LAYER}.self_attn"
RULES = (
    TensorRule("embed.token.weight", ("model.embed_tokens.weight",), VOCABULARY),
    TensorRule("head.lm.table.weight", ("lm_head.weight",), VOCABULARY),
    TensorRule("decoder.{n}.attention_norm.weight", (f"{LAYER}.input_layernorm.weight",)),
    TensorRule("decoder.{n}.attention.output.weight", (f"{ATTENTION}.o_proj.weight",)),
    TensorRule("decoder.{n}.ffn_norm.weight", (f"{LAYER}.post_attention_layernorm.weight",)),
    TensorRule(
        "decoder.{n}.ffn.up.weight", (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"), GATE_AND_VALUE
    ),
    TensorRule("decoder.{n}.ffn.down.weight", (f"{LAYER}.mlp.down_proj.weight",)),
    TensorRule("decoder.final.weight", ("model.norm.weight",)),
)
QKV_RULES = (
    TensorRule("decoder.{n}.attention.qkv.weight", tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"), QKV),
)
GROUPED_QUERY_RULES = (
    TensorRule("decoder.{n}.attention.query.weight", (f"{ATTENTION}.q_proj.weight",)),
    TensorRule("decoder.{n}.attention.kv.weight", tuple(f"{ATTENTION}.{name}_proj.weight" for name in "kv"), KV),
)


def build_pair(kv_heads: int | None = None) -> tuple[Model, transformers.PreTrainedModel]:
    """Return a model and Hugging Face's with the same random weights."""
    spec = tiny_spec("gpt2")
    spec = replace(spec, family=LLAMA, size=change(spec.size, kv_heads=kv_heads))
    model = Model(spec)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + (parameter.dim() == 1))
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=spec.width,
        intermediate_size=spec.size.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.size.heads,
        num_key_value_heads=kv_heads,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation="eager",
    )
    reference = transformers.LlamaForCausalLM(config)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    rules = (*RULES, *(GROUPED_QUERY_RULES if kv_heads else QKV_RULES))
    reference.load_state_dict(export_weights(rules, spec, weights), strict=True)
    return model.eval(), reference.eval()


@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@pytest.mark.parametrize(
    "positions", [None, [3, 9, 4, 5, 6, 7, 20, 21, 22, 23, 24, 40]], ids=["default positions", "given positions"]
)
def test_logits_and_gradient_equal_llama(positions: list[int] | None, kv_heads: int | None) -> None:
    model, reference = build_pair(kv_heads)
    batch = {name: tiny_batch("gpt2")[name] for name in ("tokens", "labels")}
    batch["labels"] = batch["tokens"].roll(-1, 1)
    batch["labels"][:, -1] = -100
    options = {}
    if positions is not None:
        batch["positions"] = torch.tensor(positions).expand(3, -1)
        options["position_ids"] = batch["positions"]
    expected = reference(input_ids=batch["tokens"], labels=batch["tokens"], **options)
    loss, count = model(batch).losses["lm"]
    assert_close(model.logits(batch)["lm"], expected.logits)
    assert_close(loss / count, expected.loss)
    gradient = table_gradient(loss / count, model.embed.token.weight)
    assert_close(gradient[:WORDS], table_gradient(expected.loss, reference.model.embed_tokens.weight))


@pytest.mark.parametrize(
    ("numbers", "parameters"),
    [
        (RopeParameters(1e6, 1.0, None), {"rope_type": "default"}),
        (RopeParameters(1e6, 8.0, None), {"rope_type": "linear", "factor": 8.0}),
        (
            RopeParameters(5e5, 32.0, 8192),
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
    ],
    ids=["base", "linear", "by wavelength"],
)
def test_rotation_equals_transformers(numbers: RopeParameters, parameters: dict[str, object]) -> None:
    config = transformers.LlamaConfig(head_dim=128, rope_parameters={"rope_theta": numbers.base, **parameters})
    positions = torch.tensor([[0, 1, 17, 41]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(()), positions)
    turned = rotary_embedding(positions, features=128, rope=numbers)[:, :, 0, 0]
    assert_close(turned, torch.stack([cos[0, :, :64], sin[0, :, :64]]).float())


def test_logits_depend_on_distances_only() -> None:
    """Therefore packed documents can use the positions of their sequence."""
    model, batch = build_pair()[0], {"tokens": tiny_batch("gpt2")["tokens"]}
    shifted = {**batch, "positions": torch.arange(12).expand(3, -1) + 100}
    torch.testing.assert_close(model.logits(shifted)["lm"], model.logits(batch)["lm"], rtol=0, atol=1e-4)


def test_distant_positions_are_accurate_in_bfloat16() -> None:
    model = build_pair()[0].bfloat16()
    tokens = tiny_batch("gpt2")["tokens"]
    last = {}
    for start in (0, 4096):
        positions = torch.arange(12).expand(3, -1) + start
        last[start] = model.logits({"tokens": tokens, "positions": positions})["lm"].float()
    assert (last[4096] - last[0]).abs().mean() < 0.05 * last[0].abs().mean()


def test_kv_heads_that_do_not_divide_heads_are_rejected() -> None:
    with pytest.raises(UserError, match=r"4 heads, which kv_heads \(3\) must divide"):
        build_pair(kv_heads=3)


def test_odd_head_width_is_rejected() -> None:
    spec = replace(tiny_spec("gpt2"), family=LLAMA)
    with pytest.raises(UserError, match="rope, which rotates pairs of features, but heads have 5"):
        Model(replace(spec, size=change(spec.size, head_width=5)))


def test_model_without_rope_ignores_positions() -> None:
    model, batch = tiny_model("t5"), tiny_batch("t5")
    with_positions = {**batch, "positions": torch.full_like(batch["tokens"], 7)}
    assert_close(model.logits(batch)["lm"], model.logits(with_positions)["lm"])
