"""GPT-3's alternating dense and banded layers against GPT-Neo, with GPT-Neo's attention scale and biases."""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers

from megaptm.families.gpt import GPT3_BANDED
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, export_weights, weight_and_bias
from megaptm.models.model import Model
from megaptm.spec import change
from tests.models.tiny import VOCABULARY as WORDS
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import table_gradient

# GPT-Neo does not scale scores. Of the projections of attention only the last has a bias, which is zero here.
NEO = change(
    GPT3_BANDED, stacks={"decoder": change(GPT3_BANDED.last_block, attention={"scale": "none", "bias": False})}
)
LAYER = "transformer.h.{n}"
ATTENTION = f"{LAYER}.attn.attention"
RULES = (
    TensorRule("embed.token.weight", ("transformer.wte.weight",), VOCABULARY),
    TensorRule("embed.position.weight", ("transformer.wpe.weight",)),
    *weight_and_bias("decoder.{n}.attention_norm", f"{LAYER}.ln_1"),
    TensorRule("decoder.{n}.attention.qkv.weight", tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"), QKV),
    TensorRule("decoder.{n}.attention.output.weight", (f"{ATTENTION}.out_proj.weight",)),
    *weight_and_bias("decoder.{n}.ffn_norm", f"{LAYER}.ln_2"),
    *weight_and_bias("decoder.{n}.ffn.up", f"{LAYER}.mlp.c_fc"),
    *weight_and_bias("decoder.{n}.ffn.down", f"{LAYER}.mlp.c_proj"),
    *weight_and_bias("decoder.final", "transformer.ln_f"),
)


def differences() -> tuple[float, float]:
    """Return the largest absolute difference of logits and loss, and of the gradient of the token table."""
    spec = replace(tiny_spec("gpt3-banded", layers=4), family=NEO)
    model = Model(spec).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + (parameter.dim() == 1))
    config = transformers.GPTNeoConfig(
        vocab_size=WORDS,
        hidden_size=spec.width,
        intermediate_size=spec.size.ffn,
        num_layers=spec.layers,
        num_heads=spec.size.heads,
        max_position_embeddings=spec.context,
        window_size=spec.size.band,
        attention_types=[[["global", "local"], 2]],
        attn_implementation="eager",
    )
    reference = transformers.GPTNeoForCausalLM(config).eval()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    missing, unexpected = reference.load_state_dict(export_weights(RULES, spec, weights), strict=False)
    reference.tie_weights()
    assert not unexpected
    assert all(name.endswith("out_proj.bias") or name == "lm_head.weight" for name in missing)
    assert not any(reference.get_parameter(name).any() for name in missing if name.endswith("bias"))

    tokens = tiny_batch("gpt3-banded")["tokens"]
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1).index_fill(1, torch.tensor([11]), -100)}
    expected = reference(input_ids=tokens, labels=tokens)
    loss, count = model(batch).losses["lm"]
    logit_difference = (model.logits(batch)["lm"] - expected.logits).abs().max()
    loss_difference = (loss / count - expected.loss).abs()
    gradient = table_gradient(loss / count, model.embed.token.weight)[:WORDS]
    expected_gradient = table_gradient(expected.loss, reference.transformer.wte.weight)
    return torch.maximum(logit_difference, loss_difference).item(), (gradient - expected_gradient).abs().max().item()


def test_logits_and_gradient_equal_gpt_neo() -> None:
    assert max(differences()) <= 1e-5
