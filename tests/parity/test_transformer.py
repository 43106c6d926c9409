"""The Transformer, besides Hugging Face's Marian (`test_families`): torch's own, with our places at its input."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.hub.tensor_rules import KV, QKV, TensorRule, export_weights, pair
from megaptm.layers.positions import sinusoid
from megaptm.models import Model
from megaptm.spec import ModelSpec
from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import assert_close


def fused(ours: str, theirs: str) -> tuple[TensorRule, ...]:
    """Rows of a self-attention, whose three maps are one in theirs as well, in another order."""
    parts = tuple(f"{theirs}.{name}" for name in "qkv")
    return (
        TensorRule(f"{ours}.qkv.weight", parts, QKV),
        TensorRule(f"{ours}.output.weight", (f"{theirs}.out_proj.weight",)),
    )


def stack_rows(stack: str, *, last_norm: int) -> tuple[TensorRule, ...]:
    ours, layer = f"{stack}.{{n}}", f"{stack}.layers.{{n}}"
    return (
        *fused(f"{ours}.attention", f"{layer}.self_attn"),
        *pair(f"{ours}.attention_norm", f"{layer}.norm1"),
        *pair(f"{ours}.ffn.up", f"{layer}.linear1"),
        *pair(f"{ours}.ffn.down", f"{layer}.linear2"),
        *pair(f"{ours}.ffn_norm", f"{layer}.norm{last_norm}"),
    )


CROSS = "decoder.layers.{n}.multihead_attn"
ROWS = (
    *stack_rows("encoder", last_norm=2),
    *stack_rows("decoder", last_norm=3),
    TensorRule("decoder.{n}.cross.query.weight", (f"{CROSS}.q",)),
    TensorRule("decoder.{n}.cross.kv.weight", (f"{CROSS}.k", f"{CROSS}.v"), KV),
    TensorRule("decoder.{n}.cross.output.weight", (f"{CROSS}.out_proj.weight",)),
    *pair("decoder.{n}.cross_norm", "decoder.layers.{n}.norm2"),
)


def converted(spec: ModelSpec, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """By their names; queries', keys' and values' maps one above the other."""
    given = export_weights(ROWS, spec, {name: one for name, one in ours.items() if not name.startswith("embed.")})
    for name in [name for name in given if name.endswith(".q")]:
        attention = name.removesuffix(".q")
        given[f"{attention}.in_proj_weight"] = torch.cat([given.pop(f"{attention}.{part}") for part in "qkv"])
    return given


def torchs_own(model: Model) -> nn.Transformer:
    """With our weights, without a norm after the last layer; the paper's attention has biases in no place."""
    size = model.spec.size
    shape = {"d_model": size.width, "nhead": size.heads, "dim_feedforward": size.ffn, "dropout": 0.0}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape, batch_first=True), size.layers, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape, batch_first=True), size.layers)
    theirs = nn.Transformer(size.width, size.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    given = converted(model.spec, {name: one.detach() for name, one in model.named_parameters()})
    missing, unexpected = theirs.load_state_dict(given, strict=False)
    assert not unexpected
    assert all(name.endswith(("in_proj_bias", "out_proj.bias")) for name in missing)
    for name in missing:
        nn.init.zeros_(theirs.get_parameter(name))
    return theirs.train()  # in eval mode it may take another path, which has no gradients


def test_torchs_own_transformer_says_the_same_with_the_same_gradients() -> None:
    model, batch = tiny_model("transformer"), tiny_batch("transformer")
    theirs, table = torchs_own(model), model.get_parameter("embed.token.weight").detach().clone().requires_grad_()

    def read(tokens: Tensor) -> Tensor:
        width = model.spec.width
        places = sinusoid(torch.arange(tokens.shape[1])[:, None], width=width)[:, 0].float()
        return table[tokens] * math.sqrt(width) + places

    padded, decoder_padded = (batch[f"{prefix}document_ids"] == 0 for prefix in ("", "decoder_"))
    length = batch["decoder_tokens"].shape[1]
    said = theirs(
        read(batch["tokens"]),
        read(batch["decoder_tokens"]),
        tgt_mask=torch.ones(length, length).triu(1).bool(),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
        tgt_key_padding_mask=decoder_padded,
    )
    logits = (said @ table.t())[..., : model.spec.vocabulary]
    ours = model.logits(batch)["lm"]
    assert_close(ours[~decoder_padded], logits[~decoder_padded])

    loss, count = model(batch).losses["lm"]
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    assert_close(loss / count, expected)
    (loss / count).backward()
    expected.backward()
    gradients = {name: one.grad for name, one in model.named_parameters()}
    assert_close(gradients.pop("embed.token.weight"), table.grad)
    for name, gradient in converted(model.spec, gradients).items():
        assert_close(gradient, theirs.get_parameter(name).grad)
