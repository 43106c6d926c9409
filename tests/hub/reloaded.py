"""Losses of models that `transformers` loads from an export, computed document by document."""

# B samples, S positions of a document

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.reformer.modeling_reformer import LSHSelfAttention, ReformerOnlyLMHead

from megaptm.batch import IGNORED
from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.families.reformer.attention import EVALUATION, hash_rotations
from megaptm.losses.token import cumulative_shares, pick_token
from megaptm.spec import Family, ModelSpec
from tests.parity.reference import convert_inputs_with_queries, scatter_labels

Batch = dict[str, Tensor]
MAX_DOCUMENTS = 32
"""Largest number of documents in a batch."""
PAIR_HEADS = {"next-sentence": "next_sentence", "sentence-order": "sentence_order"}
"""Second head of a Hugging Face class -> field with its labels."""


def reload(folder: Path, *, ignored_prefix: str = "-") -> PreTrainedModel:
    """Load the class that the folder names. It must find every parameter, and no other but those with a prefix."""
    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    # BigBird's pooler is not pre-trained.
    assert all(key.startswith("bert.pooler.") for key in info["missing_keys"]), info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all(key.startswith(ignored_prefix) for key in info["unexpected_keys"]), info["unexpected_keys"]
    return use_own_random_values(model).eval()


def use_own_random_values(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, with megaptm's random blocks (BigBird) and rotations (Reformer). BigBird would sample other
    blocks in train mode and none in eval mode. Reformer also adds its output bias, which transformers 5 does not."""

    def blocks(
        self: BigBirdBlockSparseAttention, *, from_seq_length: int, from_block_size: int, **_: Any
    ) -> list[np.ndarray]:
        """Return the random blocks for each head, and each block but the first and the last."""
        num_blocks, heads = from_seq_length // from_block_size, range(self.num_attention_heads)
        pattern = SparseBlocks(from_block_size, self.num_random_blocks, layer=self.seed, heads=heads)
        table = pattern.table(from_seq_length)
        random_blocks = [
            [sorted({*np.flatnonzero(table[head, row])} - {0, num_blocks - 1, row - 1, row, row + 1}) for row in rows]
            for head in heads
            for rows in [range(1, num_blocks - 1)]
        ]
        return [np.array(head_blocks) for head_blocks in random_blocks]

    def buckets(self: LSHSelfAttention, *args: Any, **kwargs: Any) -> Tensor:
        factors = [self.num_buckets] if isinstance(self.num_buckets, int) else self.num_buckets
        shape = (self.attention_head_size, self.num_hashes, sum(factors) // 2)
        own_rotations = hash_rotations(EVALUATION, self.layer_idx, range(self.num_attention_heads), shape)
        with patch.object(torch, "randn", lambda *_, dtype, **__: own_rotations.to(dtype)):
            return type(self)._hash_vectors(self, *args, **kwargs)

    for module in model.modules():
        if isinstance(module, BigBirdBlockSparseAttention):
            module._bigbird_block_rand_mask_with_head = MethodType(blocks, module)
        if isinstance(module, LSHSelfAttention):
            module._hash_vectors = MethodType(buckets, module)
        if isinstance(module, ReformerOnlyLMHead):
            module.decoder.bias = module.bias
    return model


def split_documents(family: Family, batch: Batch) -> Iterator[Batch]:
    """Yield the documents of a batch as separate samples without masks or padding, batched by equal length. `labels`
    and `uniforms` are per position. Positions start at 0 in every document."""
    prefixes = [*family.prefixes.values()]
    per_token = {name: batch[name] for name in batch if batch[name].dim() == 2 and _is_per_token(name, family, batch)}
    per_sample = {name: batch[name] for name in batch if batch[name].dim() == 1}
    if "labels" in batch:
        per_token["labels"] = scatter_labels(batch)
    if "uniforms" in batch:
        per_token["uniforms"] = _uniforms_per_token(batch)
    by_lengths: dict[tuple[int, ...], list[Batch]] = defaultdict(list)
    for index in range(len(batch["tokens"])):
        document_ids = {prefix: _document_ids(batch, prefix)[index] for prefix in prefixes}
        for document_id in range(1, 1 + int(document_ids[prefixes[0]].max())):
            is_in_document = {prefix: document_ids[prefix] == document_id for prefix in prefixes}
            document = {
                name: field[index][is_in_document[_prefix(name, prefixes)]] for name, field in per_token.items()
            }
            document |= {name: field[index] for name, field in per_sample.items()}
            by_lengths[tuple(int(is_in_document[prefix].sum()) for prefix in prefixes)].append(document)
    for documents in by_lengths.values():
        for start in range(0, len(documents), MAX_DOCUMENTS):
            batch_documents = documents[start : start + MAX_DOCUMENTS]
            yield {name: torch.stack([document[name] for document in batch_documents]) for name in batch_documents[0]}


def _document_ids(batch: Batch, prefix: str) -> Tensor:
    return batch.get(f"{prefix}document_ids", torch.ones_like(batch[f"{prefix}tokens"]))


def _prefix(name: str, prefixes: list[str]) -> str:
    """Return the prefix of the stack that reads a field; labels belong to the last stack."""
    return (
        prefixes[-1]
        if name == "labels"
        else next((prefix for prefix in prefixes if prefix and name.startswith(prefix)), "")
    )


def _is_per_token(name: str, family: Family, batch: Batch) -> bool:
    stems = ("tokens", "segments", "replaced", "global_tokens")
    return name in {f"{prefix}{stem}" for prefix in family.prefixes.values() for stem in stems}


def _uniforms_per_token(batch: Batch) -> Tensor:
    """Return uniforms [B, S] from those of masked positions."""
    uniforms = torch.zeros(batch["tokens"].shape)
    rows, slots = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
    uniforms[rows, batch["masked_positions"][rows, slots]] = batch["uniforms"][rows, slots].float()
    return uniforms


def rename_inputs(documents: Batch) -> Batch:
    """Return the inputs by Hugging Face's names."""
    names = {
        "tokens": "input_ids",
        "segments": "token_type_ids",
        "global_tokens": "global_attention_mask",
        "decoder_tokens": "decoder_input_ids",
    }
    inputs = {hf_name: documents[name] for name, hf_name in names.items() if name in documents}
    if "task_ids" in documents:
        inputs["task_type_ids"] = documents["task_ids"][:, None].expand_as(documents["tokens"])
    return inputs


@torch.inference_mode()
def evaluate_losses(model: PreTrainedModel, family: Family, batches: list[Batch]) -> dict[str, float]:
    """Return the loss per label in nats, for the heads that the Hugging Face class has."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for documents in (group for batch in batches for group in split_documents(family, batch)):
        output = model(**rename_inputs(documents))
        predictions = {family.heads[0]: (output[0].flatten(0, 1), documents["labels"].flatten())}
        for index, head in enumerate(family.heads[1:], 1):
            if head in PAIR_HEADS and PAIR_HEADS[head] in documents:
                predictions[head] = (output[index], documents[PAIR_HEADS[head]])
        for head, (logits, labels) in predictions.items():
            sums[head][0] += float(F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
            sums[head][1] += int((labels != IGNORED).sum())
    return {head: total / count for head, (total, count) in sums.items()}


@torch.inference_mode()
def evaluate_recurrent_losses(model: PreTrainedModel, spec: ModelSpec, batches: list[Batch]) -> dict[str, float]:
    """Return XLNet's loss: each batch reads the cache of the one before, its first half. Hugging Face reads the second
    half of a batch backwards, so samples are reordered."""
    half, total, num_labels, mems = batches[0]["tokens"].shape[1] // 2, 0.0, 0, None
    model.transformer.mem_len, model.transformer.reuse_len = spec.size.memory, half
    model.transformer.bi_data = True
    for batch in batches:
        assert int(batch["backward"].sum()) == len(batch["backward"]) / 2
        rows = batch["backward"].argsort(stable=True)
        ordered = {name: field[rows] for name, field in batch.items()}
        ordered["document_ids"] = torch.ones_like(ordered["tokens"])
        inputs = convert_inputs_with_queries(spec.name, ordered)
        del inputs["attention_mask"]
        output = model(**inputs, mems=mems, use_mems=True)
        mems, labels = output.mems, ordered["labels"]
        total += float(
            F.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        num_labels += int((labels != IGNORED).sum())
    return {spec.family.heads[0]: total / num_labels}


@torch.inference_mode()
def evaluate_joint_losses(
    generator: PreTrainedModel, discriminator: PreTrainedModel, family: Family, batches: list[Batch]
) -> dict[str, float]:
    """Return ELECTRA's losses: the discriminator reads tokens sampled from the generator with the batch's uniforms."""
    total = num_labels = 0.0
    for documents in (group for batch in batches for group in split_documents(family, batch)):
        inputs, labels = rename_inputs(documents), documents["labels"]
        is_masked = labels != IGNORED
        generator_logits = generator(**inputs).logits[is_masked]
        inputs["input_ids"] = inputs["input_ids"].clone()
        inputs["input_ids"][is_masked] = pick_token(
            cumulative_shares(generator_logits, generator_logits.amax(-1, keepdim=True)),
            documents["uniforms"][is_masked],
        )
        replaced = (is_masked & (inputs["input_ids"] != labels)).float()
        has_label = documents["replaced"] != IGNORED
        logits = discriminator(**inputs).logits
        total += float(F.binary_cross_entropy_with_logits(logits[has_label], replaced[has_label], reduction="sum"))
        num_labels += int(has_label.sum())
    return {**evaluate_losses(generator, family, batches), "replaced-token": total / num_labels}
