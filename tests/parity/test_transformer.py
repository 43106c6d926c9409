"""Transformer against `torch.nn.Transformer` with the same input embeddings (`test_families` compares with Marian)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.hub.tensor_rules import KV, QKV, TensorRule, export_weights, weight_and_bias
from megaptm.layers.positions import sinusoid
from megaptm.models.model import Model
from megaptm.spec import ModelSpec
from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import assert_close


def attention_rules(name: str, torch_name: str) -> tuple[TensorRule, ...]:
    """Return the rules of a self-attention. `export_parameters` joins its `.q`, `.k` and `.v`."""
    parts = tuple(f"{torch_name}.{part}" for part in "qkv")
    return (
        TensorRule(f"{name}.qkv.weight", parts, QKV),
        TensorRule(f"{name}.output.weight", (f"{torch_name}.out_proj.weight",)),
    )


def stack_rules(stack: str, *, last_norm: int) -> tuple[TensorRule, ...]:
    name, layer = f"{stack}.{{n}}", f"{stack}.layers.{{n}}"
    return (
        *attention_rules(f"{name}.attention", f"{layer}.self_attn"),
        *weight_and_bias(f"{name}.attention_norm", f"{layer}.norm1"),
        *weight_and_bias(f"{name}.ffn.up", f"{layer}.linear1"),
        *weight_and_bias(f"{name}.ffn.down", f"{layer}.linear2"),
        *weight_and_bias(f"{name}.ffn_norm", f"{layer}.norm{last_norm}"),
    )


CROSS = "decoder.layers.{n}.multihead_attn"
RULES = (
    *stack_rules("encoder", last_norm=2),
    *stack_rules("decoder", last_norm=3),
    TensorRule("decoder.{n}.cross.query.weight", (f"{CROSS}.q",)),
    TensorRule("decoder.{n}.cross.kv.weight", (f"{CROSS}.k", f"{CROSS}.v"), KV),
    TensorRule("decoder.{n}.cross.output.weight", (f"{CROSS}.out_proj.weight",)),
    *weight_and_bias("decoder.{n}.cross_norm", "decoder.layers.{n}.norm2"),
)


def export_parameters(spec: ModelSpec, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the stacks under torch's names, with concatenated query, key and value projections."""
    stacks = {name: tensor for name, tensor in tensors.items() if not name.startswith("embed.")}
    exported = export_weights(RULES, spec, stacks)
    for name in [name for name in exported if name.endswith(".q")]:
        attention = name.removesuffix(".q")
        exported[f"{attention}.in_proj_weight"] = torch.cat([exported.pop(f"{attention}.{part}") for part in "qkv"])
    return exported


def make_torch_transformer(model: Model) -> nn.Transformer:
    """Return torch's Transformer with the model's weights, without final norms. Its attention biases are zero, since
    the paper has none."""
    size = model.spec.size
    shape = {"d_model": size.width, "nhead": size.heads, "dim_feedforward": size.ffn, "dropout": 0.0}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape, batch_first=True), size.layers, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape, batch_first=True), size.layers)
    reference = nn.Transformer(size.width, size.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    missing, unexpected = reference.load_state_dict(export_parameters(model.spec, weights), strict=False)
    assert not unexpected
    assert all(name.endswith(("in_proj_bias", "out_proj.bias")) for name in missing)
    for name in missing:
        nn.init.zeros_(reference.get_parameter(name))
    return reference.train()  # its fast path in eval mode has no gradients


def test_logits_loss_and_gradients_equal_torch() -> None:
    model, batch = tiny_model("transformer"), tiny_batch("transformer")
    reference = make_torch_transformer(model)
    table = model.get_parameter("embed.token.weight").detach().clone().requires_grad_()

    def embed(tokens: Tensor) -> Tensor:
        width = model.spec.width
        positions = sinusoid(torch.arange(tokens.shape[1])[:, None], width=width)[:, 0].float()
        return table[tokens] * math.sqrt(width) + positions

    padded, decoder_padded = (batch[f"{prefix}document_ids"] == 0 for prefix in ("", "decoder_"))
    length = batch["decoder_tokens"].shape[1]
    hidden_states = reference(
        embed(batch["tokens"]),
        embed(batch["decoder_tokens"]),
        tgt_mask=torch.ones(length, length).triu(1).bool(),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
        tgt_key_padding_mask=decoder_padded,
    )
    expected_logits = (hidden_states @ table.t())[..., : model.spec.vocabulary]
    assert_close(model.logits(batch)["lm"][~decoder_padded], expected_logits[~decoder_padded])

    loss, count = model(batch).losses["lm"]
    expected_loss = F.cross_entropy(expected_logits.flatten(0, 1), batch["labels"].flatten())
    assert_close(loss / count, expected_loss)
    (loss / count).backward()
    expected_loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_close(gradients.pop("embed.token.weight"), table.grad)
    for name, gradient in export_parameters(model.spec, gradients).items():
        assert_close(gradient, reference.get_parameter(name).grad)
