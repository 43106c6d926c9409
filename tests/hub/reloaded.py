"""What a model that `transformers` has reloaded from an export says of held-out rows, one document at a time."""

# B rows, S places of a document

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
from megaptm.bricks.pattern import SparseBlocks
from megaptm.layers.lsh import EVALUATION, rotations
from megaptm.losses.token import cumulative_shares, pick
from megaptm.spec import Family, ModelSpec
from tests.parity.reference import inputs_with_queries, labels_everywhere

Batch = dict[str, Tensor]
MOST = 32
"""Documents in a batch."""
PAIR_HEADS = {"next-sentence": "next_sentence", "sentence-order": "sentence_order"}
"""Second heads of their classes -> the field with their answers."""


def reload(folder: Path, *, passed_over: str = "-") -> PreTrainedModel:
    """By the class that the folder names, which must find every parameter, and no other but `passed_over...`."""
    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    # BigBird's, which no pre-training has.
    assert all(key.startswith("bert.pooler.") for key in info["missing_keys"]), info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all(key.startswith(passed_over) for key in info["unexpected_keys"]), info["unexpected_keys"]
    return drawing_ours(model).eval()


def drawing_ours(theirs: PreTrainedModel) -> PreTrainedModel:
    """The same model; if it is a BigBird, one that sees the blocks that are drawn here, where theirs draws others in
    train mode, and in eval mode none. If it is a Reformer, one that hashes by our rotations, and adds the bias that it
    has: transformers 5 does not."""

    def blocks(
        self: BigBirdBlockSparseAttention, *, from_seq_length: int, from_block_size: int, **_: Any
    ) -> list[np.ndarray]:
        """For each head and each block but the first and the last, those drawn."""
        number, heads = from_seq_length // from_block_size, range(self.num_attention_heads)
        pattern = SparseBlocks(from_block_size, self.num_random_blocks, layer=self.seed, heads=heads)
        table = pattern.table(from_seq_length)
        drawn = [
            [sorted({*np.flatnonzero(table[head, row])} - {0, number - 1, row - 1, row, row + 1}) for row in rows]
            for head in heads
            for rows in [range(1, number - 1)]
        ]
        return [np.array(one) for one in drawn]

    def buckets(self: LSHSelfAttention, *args: Any, **kwargs: Any) -> Tensor:
        factors = [self.num_buckets] if isinstance(self.num_buckets, int) else self.num_buckets
        shape = (self.attention_head_size, self.num_hashes, sum(factors) // 2)
        drawn = rotations(EVALUATION, self.layer_idx, range(self.num_attention_heads), shape)
        with patch.object(torch, "randn", lambda *_, dtype, **__: drawn.to(dtype)):
            return type(self)._hash_vectors(self, *args, **kwargs)

    for module in theirs.modules():
        if isinstance(module, BigBirdBlockSparseAttention):
            module._bigbird_block_rand_mask_with_head = MethodType(blocks, module)
        if isinstance(module, LSHSelfAttention):
            module._hash_vectors = MethodType(buckets, module)
        if isinstance(module, ReformerOnlyLMHead):
            module.decoder.bias = module.bias
    return theirs


def documents_of(family: Family, batch: Batch) -> Iterator[Batch]:
    """The documents of a batch by themselves, so many of equal length at once, without masks or padding.

    `labels` and `draws` are of each place; positions begin at 0, which is where those of every document begin.
    """
    prefixes = [*family.prefixes.values()]
    placed = {name: batch[name] for name in batch if batch[name].dim() == 2 and _is_placed(name, family, batch)}
    rowwise = {name: batch[name] for name in batch if batch[name].dim() == 1}
    if "labels" in batch:
        placed["labels"] = labels_everywhere(batch)
    if "uniforms" in batch:
        placed["uniforms"] = _draws_everywhere(batch)
    alike: dict[tuple[int, ...], list[Batch]] = defaultdict(list)
    for row in range(len(batch["tokens"])):
        numbers = {prefix: _numbers(batch, prefix)[row] for prefix in prefixes}
        for number in range(1, 1 + int(numbers[prefixes[0]].max())):
            where = {prefix: numbers[prefix] == number for prefix in prefixes}
            document = {name: field[row][where[_prefix(name, prefixes)]] for name, field in placed.items()}
            document |= {name: field[row] for name, field in rowwise.items()}
            alike[tuple(int(where[prefix].sum()) for prefix in prefixes)].append(document)
    for documents in alike.values():
        for at in range(0, len(documents), MOST):
            some = documents[at : at + MOST]
            yield {name: torch.stack([document[name] for document in some]) for name in some[0]}


def _numbers(batch: Batch, prefix: str) -> Tensor:
    return batch.get(f"{prefix}document_ids", torch.ones_like(batch[f"{prefix}tokens"]))


def _prefix(name: str, prefixes: list[str]) -> str:
    """Of the stream along which a field is laid; what is asked is asked of the last."""
    return prefixes[-1] if name == "labels" else next((one for one in prefixes if one and name.startswith(one)), "")


def _is_placed(name: str, family: Family, batch: Batch) -> bool:
    stems = ("tokens", "segments", "replaced", "global_tokens")
    return name in {f"{prefix}{stem}" for prefix in family.prefixes.values() for stem in stems}


def _draws_everywhere(batch: Batch) -> Tensor:
    """[B, S], from a number for each place asked about."""
    draws = torch.zeros(batch["tokens"].shape)
    rows, slots = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
    draws[rows, batch["masked_positions"][rows, slots]] = batch["uniforms"][rows, slots].float()
    return draws


def inputs_of(documents: Batch) -> Batch:
    """By their names."""
    names = {
        "tokens": "input_ids",
        "segments": "token_type_ids",
        "global_tokens": "global_attention_mask",
        "decoder_tokens": "decoder_input_ids",
    }
    inputs = {theirs: documents[ours] for ours, theirs in names.items() if ours in documents}
    if "task_ids" in documents:
        inputs["task_type_ids"] = documents["task_ids"][:, None].expand_as(documents["tokens"])
    return inputs


@torch.inference_mode()
def losses_of(theirs: PreTrainedModel, family: Family, batches: list[Batch]) -> dict[str, float]:
    """Nats for each answer, of the heads that their class has."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for documents in (some for batch in batches for some in documents_of(family, batch)):
        out = theirs(**inputs_of(documents))
        answers = {family.heads[0]: (out[0].flatten(0, 1), documents["labels"].flatten())}
        for number, head in enumerate(family.heads[1:], 1):
            if head in PAIR_HEADS and PAIR_HEADS[head] in documents:
                answers[head] = (out[number], documents[PAIR_HEADS[head]])
        for head, (logits, labels) in answers.items():
            sums[head][0] += float(F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
            sums[head][1] += int((labels != IGNORED).sum())
    return {head: total / count for head, (total, count) in sums.items()}


@torch.inference_mode()
def losses_of_rows_that_go_on(theirs: PreTrainedModel, spec: ModelSpec, batches: list[Batch]) -> dict[str, float]:
    """XLNet's: each batch is read after the one before, whose first halves are remembered. Theirs reads the second half
    of a batch from the end, so rows stand in another order there."""
    half, total, asked, mems = batches[0]["tokens"].shape[1] // 2, 0.0, 0, None
    theirs.transformer.mem_len, theirs.transformer.reuse_len = spec.size.memory, half
    theirs.transformer.bi_data = True
    for batch in batches:
        assert int(batch["backward"].sum()) == len(batch["backward"]) / 2
        rows = batch["backward"].argsort(stable=True)
        ordered = {name: field[rows] for name, field in batch.items()}
        ordered["document_ids"] = torch.ones_like(ordered["tokens"])
        inputs = inputs_with_queries(spec.name, ordered)
        del inputs["attention_mask"]
        said = theirs(**inputs, mems=mems, use_mems=True)
        mems, labels = said.mems, ordered["labels"]
        total += float(
            F.cross_entropy(said.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        asked += int((labels != IGNORED).sum())
    return {spec.family.heads[0]: total / asked}


@torch.inference_mode()
def joint_losses_of(
    generator: PreTrainedModel, discriminator: PreTrainedModel, family: Family, batches: list[Batch]
) -> dict[str, float]:
    """ELECTRA's two: the second model reads what is drawn from the first, by the batch's own numbers."""
    total = asked = 0.0
    for documents in (some for batch in batches for some in documents_of(family, batch)):
        inputs, labels = inputs_of(documents), documents["labels"]
        hidden = labels != IGNORED
        said = generator(**inputs).logits[hidden]
        inputs["input_ids"] = inputs["input_ids"].clone()
        inputs["input_ids"][hidden] = pick(
            cumulative_shares(said, said.amax(-1, keepdim=True)), documents["uniforms"][hidden]
        )
        replaced = (hidden & (inputs["input_ids"] != labels)).float()
        judged = documents["replaced"] != IGNORED
        logits = discriminator(**inputs).logits
        total += float(F.binary_cross_entropy_with_logits(logits[judged], replaced[judged], reduction="sum"))
        asked += int(judged.sum())
    return {**losses_of(generator, family, batches), "replaced-token": total / asked}
