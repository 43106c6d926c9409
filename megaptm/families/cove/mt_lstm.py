"""Export of CoVe's encoder with the names of torch's LSTM, as in the released code (salesforce/cove)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.cove.spec import BidirectionalLSTMSpec
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.spec import ModelSpec
from megaptm.storage import write_atomically
from megaptm.tokenizers import load_tokenizer

ENCODER, VECTORS, WORDS = "mt-lstm.safetensors", "vectors.safetensors", "vocabulary.txt"
TORCH_NAMES = {"input": "ih", "state": "hh"}


def to_mt_lstm(weights: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Return the weights of CoVe's encoder by names of torch's LSTM: `weight_ih_l0`, `bias_hh_l1_reverse` and so on."""
    return {
        f"{kind}_{torch_name}_l{layer}{suffix}": weights[f"encoder.{layer}.recurrent.{direction}.{name}.{kind}"]
        for layer in range(spec.size_of("encoder").layers)
        for direction, suffix in (("ahead", ""), ("back", "_reverse"))
        for name, torch_name in TORCH_NAMES.items()
        for kind in ("weight", "bias")
    }


def export_cove(checkpoint: RunCheckpoint, folder: Path) -> None:
    """Export CoVe: write the encoder as a torch LSTM, its word vectors, and a word list with one word per line."""
    spec = checkpoint.spec
    if not isinstance(spec.family.first_block.layer, BidirectionalLSTMSpec):
        raise UserError(f"{spec.name} is not a CoVe: export it with `megaptm export hf`.")
    weights = {name: tensor.float().contiguous() for name, tensor in checkpoint.weights().items()}
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    words = [tokenizer.name(id_) for id_ in range(spec.vocabulary)]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / WORDS, "".join(f"{word}\n" for word in words).encode())
    write_atomically(folder / VECTORS, save({"vectors": weights["embed.token.weight"][: spec.vocabulary].contiguous()}))
    write_atomically(folder / ENCODER, save(to_mt_lstm(weights, spec)))
