"""Two assumptions of Reformer (arXiv:2001.04451, section 2): sharing queries and keys costs no quality, and few keys
have most of the attention weight, so that a position only needs to find these.

Measured on 2026-11-25 at d424b500, after 200 steps of 8 sequences of 128 bytes, with seeds 1 and 2:

| | seed 1 | seed 2 |
|---|---|---|
| validation loss with separate keys, nats per byte | 2.357 | 2.364 |
| validation loss with shared keys | 2.399 | 2.401 |
| attention weight of the 8 largest of 64 to 127 scores | 0.24 | 0.19 |

The attention weight is 0.11 before training, and would be 0.09 for equal scores. Thus, in such a small model, sharing
costs a fiftieth of the loss, and attention concentrates on few keys only as a tendency.
"""

# S sequence, B batch, H heads, K head width

from __future__ import annotations

import argparse
import ast
import inspect
import typing
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.families.reformer.attention import HashedAttend
from megaptm.families.reformer.spec import LSHSpec
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import AttentionSpec, ModelSpec, Size, change

LENGTH, BATCH, STEPS, LAYERS = 128, 8, 200, 2
SEEDS = (1, 2)
NUM_LARGEST = 8
ATTENTION = {
    "dot": AttentionSpec(bias=False),
    "lsh": LSHSpec(bias=False, chunk_length=LENGTH, num_buckets=2),
}


def untrained_model(attention: str, seed: int) -> Model:
    """Return a small Reformer of bytes. A sequence is one chunk, so that hashing excludes no keys."""
    table = CATALOGUE["reformer"]
    block = change(table.last_block, attention=ATTENTION[attention], position="learned")
    family = change(table, stacks={"decoder": block})
    size = Size(layers=LAYERS, width=64, heads=4, ffn=256)
    model = Model(ModelSpec(family=family, size=size, vocabulary=256, context=LENGTH, dropout=0.0))
    init_weights(model, seed=seed)
    return model


def source_bytes(*modules: object) -> Tensor:
    """Return the source code of modules as int64 [bytes]."""
    source = "".join(inspect.getsource(module) for module in modules)  # type: ignore[arg-type]
    return torch.frombuffer(bytearray(source.encode()), dtype=torch.uint8).long()


def sample_batches(text: Tensor, num_batches: int, seed: int) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_batches):
        starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=generator)
        sequences = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield {"tokens": sequences[:, :-1], "labels": sequences[:, 1:]}


def validation_loss(model: Model) -> float:
    loss_sum, num_labels = 0.0, 0.0
    with torch.no_grad():
        for batch in sample_batches(source_bytes(ast), 16, seed=0):
            loss, count = model(batch).losses["lm"]
            loss_sum, num_labels = loss_sum + float(loss), num_labels + float(count)
    return loss_sum / num_labels


def trained_model(attention: str, seed: int) -> Model:
    model = untrained_model(attention, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for batch in sample_batches(source_bytes(argparse, typing), STEPS, seed):
        loss, count = model(batch).losses["lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    return model.eval()


def largest_attention_weight(model: Model) -> float:
    """Return the mean attention weight of the `NUM_LARGEST` largest scores of positions with 64 keys or more."""
    queries: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, HashedAttend):
            module.register_forward_pre_hook(lambda module, inputs: queries.append(inputs[0]))
    with torch.no_grad():
        model.logits(next(sample_batches(source_bytes(ast), 1, seed=0)))
    assert len(queries) == LAYERS
    means = []
    for q_SBHK in queries:
        scores = torch.einsum("sbhk,tbhk->bhst", q_SBHK, F.normalize(q_SBHK, dim=-1))
        past = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)
        weights = scores.masked_fill(~past, float("-inf"))[:, :, 64:].softmax(-1)
        means.append(weights.topk(NUM_LARGEST, -1).values.sum(-1).mean())
    return float(torch.stack(means).mean())


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_shared_keys_cost_little_and_attention_concentrates(seed: int) -> None:
    separate, shared = (trained_model(attention, seed) for attention in ("dot", "lsh"))
    assert validation_loss(shared) < validation_loss(separate) + 0.1
    untrained = untrained_model("lsh", SEEDS[0]).eval()
    assert largest_attention_weight(shared) > 1.5 * largest_attention_weight(untrained)
