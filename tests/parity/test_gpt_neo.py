"""Dense and banded layers in turn: with GPT-Neo's other words, a table says what GPT-Neo computes."""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers

from megaptm.families.gpt import GPT3_BANDED
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, export_weights, pair
from megaptm.models import build_model
from megaptm.spec import change
from tests.models.tiny import VOCABULARY as WORDS
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import gradient_of_table

# GPT-Neo does not divide scores, and of attention's maps only the last has a bias, which is zero here.
NEO = change(
    GPT3_BANDED, stacks={"decoder": change(GPT3_BANDED.last_block, attention={"scale": "none", "bias": False})}
)
LAYER = "transformer.h.{n}"
ATTENTION = f"{LAYER}.attn.attention"
ROWS = (
    TensorRule("embed.token.weight", ("transformer.wte.weight",), VOCABULARY),
    TensorRule("embed.position.weight", ("transformer.wpe.weight",)),
    *pair("decoder.{n}.attention_norm", f"{LAYER}.ln_1"),
    TensorRule("decoder.{n}.attention.qkv.weight", tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"), QKV),
    TensorRule("decoder.{n}.attention.output.weight", (f"{ATTENTION}.out_proj.weight",)),
    *pair("decoder.{n}.ffn_norm", f"{LAYER}.ln_2"),
    *pair("decoder.{n}.ffn.up", f"{LAYER}.mlp.c_fc"),
    *pair("decoder.{n}.ffn.down", f"{LAYER}.mlp.c_proj"),
    *pair("decoder.final", "transformer.ln_f"),
)


def differences() -> tuple[float, float]:
    """The largest of logits and loss, and of the token table's gradient."""
    spec = replace(tiny_spec("gpt3-banded", layers=4), family=NEO)
    ours = build_model(spec).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in ours.parameters():
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
    theirs = transformers.GPTNeoForCausalLM(config).eval()
    weights = {name: parameter.detach() for name, parameter in ours.named_parameters()}
    missing, unexpected = theirs.load_state_dict(export_weights(ROWS, spec, weights), strict=False)
    theirs.tie_weights()
    assert not unexpected
    assert all(name.endswith("out_proj.bias") or name == "lm_head.weight" for name in missing)
    assert not any(theirs.get_parameter(name).any() for name in missing if name.endswith("bias"))

    tokens = tiny_batch("gpt3-banded")["tokens"]
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1).index_fill(1, torch.tensor([11]), -100)}
    said = theirs(input_ids=tokens, labels=tokens)
    loss, count = ours(batch).losses["lm"]
    logits = (ours.logits(batch)["lm"] - said.logits).abs().max()
    mine = gradient_of_table(loss / count, ours.embed.token.weight)
    gradient = (mine[:WORDS] - gradient_of_table(said.loss, theirs.transformer.wte.weight)).abs().max()
    return torch.maximum(logits, (loss / count - said.loss).abs()).item(), gradient.item()


def test_logits_and_gradient() -> None:
    assert max(differences()) <= 1e-5
