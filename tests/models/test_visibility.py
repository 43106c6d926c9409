"""Attention masks: a position cannot influence positions that must not attend to it, and packing documents changes no
output."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.layers.mask import self_mask
from megaptm.models.head_costs import HEADS
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import SampleContext
from megaptm.spec import VISIBILITIES, change
from tests.data.corpora import tiny_special
from tests.models.tiny import FAMILIES, VOCABULARY, last_prefix, tiny_batch, tiny_model, tiny_spec
from tests.objectives.samples import random_slice

CAUSAL = [
    *{family.last_block: name for name, family in reversed([*CATALOGUE.items()]) if family.last_block.causal}.values()
]
"""One family for each kind of decoder block. LED's is BART's."""
ATTENDS = {
    "full": lambda query, key: True,
    "causal": lambda query, key: key <= query,
    "ordered": lambda query, key: key >= query,
}


def logits_of(model: Model, family: str, batch: dict[str, Tensor]) -> Tensor:
    """Return logits [B, S, V] of the first head."""
    with torch.no_grad():
        return model.logits(batch)[CATALOGUE[family].heads[0]]


def changed(batch: dict[str, Tensor], field: str, mask: Tensor) -> dict[str, Tensor]:
    """Return the batch with another token at each position of a mask, bool [B, S]."""
    tokens = batch[field]
    return {**batch, field: torch.where(mask, tokens % (VOCABULARY - 1) + 1, tokens)}


def test_visibility_is_never_compared_with_strings() -> None:
    """A comparison would treat a new visibility as full; code asks `Block.causal` and `Block.ordered` instead."""
    root = Path(__file__).parents[2]
    compared = [
        f"{path.relative_to(root)}:{node.lineno}"
        for folder in ("megaptm", "benchmarks")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Attribute) and side.attr == "visibility"
    ]
    assert compared == []


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_mask_of_each_visibility(visibility: str) -> None:
    """A visibility that is not in `ATTENDS` fails here; an unknown one is rejected."""
    batch = {"tokens": torch.zeros(1, 5, dtype=torch.int64), "order": torch.arange(5).flip(0)[None]}
    dense = self_mask(batch, "", visibility).dense.expand(1, 1, 5, 5)[0, 0]
    assert dense.tolist() == [[ATTENDS[visibility](query, key) for key in range(5)] for query in range(5)]
    with pytest.raises(UserError, match="'prefix', which is unknown; use one of full, causal, ordered"):
        self_mask(batch, "", "prefix")


@pytest.mark.parametrize("document_ids", [True, False])
@pytest.mark.parametrize("family", CAUSAL)
def test_decoder_does_not_attend_to_the_future(family: str, document_ids: bool) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    if not document_ids:
        batch = {name: value for name, value in batch.items() if not name.endswith("document_ids")}
    field = f"{last_prefix(family)}tokens"
    before = logits_of(model, family, batch)
    for position in range(1, batch[field].shape[1]):
        here = (torch.arange(batch[field].shape[1]) == position).expand_as(batch[field])
        after = logits_of(model, family, changed(batch, field, here))
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-6)
        assert (after[0, position] - before[0, position]).abs().max() > 1e-3, "the position attends to itself"


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_hidden(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    before = logits_of(model, family, batch)
    after = logits_of(model, family, changed(batch, "tokens", batch["document_ids"] == 0))
    real = batch[f"{last_prefix(family)}document_ids"] > 0
    torch.testing.assert_close(after[real], before[real], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_finite_and_has_no_gradient(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    for prefix in CATALOGUE[family].prefixes.values():
        batch[f"{prefix}document_ids"][2] = 0  # a sample of padding only
    for head in CATALOGUE[family].heads:
        batch[HEADS[head].label_field][2] = -100
    embeddings: list[Tensor] = []

    def keep(module: nn.Module, args: object, embedded_SBD: Tensor) -> None:
        embedded_SBD.retain_grad()
        embeddings.append(embedded_SBD)

    assert model.embed is not None
    table = "encoder_token" if CATALOGUE[family].separate_tables else "token"
    model.embed.get_submodule(table).register_forward_hook(keep)
    sum(loss for loss, _ in model(batch).losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    grad = embeddings[0].grad
    assert grad is not None
    padding = batch["document_ids"].t() == 0
    assert grad[padding].abs().max() == 0
    assert grad[~padding].abs().max() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_other_documents_are_hidden(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    prefixes = CATALOGUE[family].prefixes.values()
    for prefix in prefixes:
        length = batch[f"{prefix}tokens"].shape[1]
        batch[f"{prefix}document_ids"] = (torch.arange(length) >= length // 2).long().expand(3, -1) + 1
    before = logits_of(model, family, batch)
    document_ids = batch[f"{last_prefix(family)}document_ids"]
    for document, other in ((1, 2), (2, 1)):
        perturbed = batch
        for prefix in prefixes:
            perturbed = changed(perturbed, f"{prefix}tokens", batch[f"{prefix}document_ids"] == other)
        after = logits_of(model, family, perturbed)
        own = document_ids == document
        torch.testing.assert_close(after[own], before[own], rtol=0, atol=1e-6)
        assert (after[~own] - before[~own]).abs().max() > 1e-3


def test_cross_attention_stays_within_documents() -> None:
    model, batch = tiny_model("t5"), tiny_batch("t5")
    batch["document_ids"] = (torch.arange(12) >= 5).long().expand(3, -1) + 1
    batch["decoder_document_ids"] = (torch.arange(7) >= 3).long().expand(3, -1) + 1
    before = logits_of(model, "t5", batch)
    after = logits_of(model, "t5", changed(batch, "tokens", batch["document_ids"] == 2))
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-6)
    assert (after[:, 3:] - before[:, 3:]).abs().amax((0, 2)).min() > 1e-4


def test_full_attention_is_bidirectional() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert", rows=1)
    before = logits_of(model, "bert", batch)
    here = (torch.arange(12) == 6)[None]
    after = logits_of(model, "bert", changed(batch, "tokens", here))
    assert (after - before).abs().amax((0, 2)).min() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_single_document_needs_no_document_ids(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    assert batch["document_ids"].all()
    bare = {name: value for name, value in batch.items() if not name.endswith("document_ids")}
    torch.testing.assert_close(logits_of(model, family, bare), logits_of(model, family, batch), rtol=0, atol=2e-6)


def test_document_ids_of_one_stream_are_rejected() -> None:
    batch = tiny_batch("t5")
    del batch["decoder_document_ids"]
    with pytest.raises(UserError, match="both or neither"):
        tiny_model("t5")(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_loss_equals_unpacked_loss(family: str) -> None:
    model = tiny_model(family)
    lengths, targets = (5, 4, 8), (3, 2, 4)
    apart, packed = _apart_and_packed(family, lengths, targets)
    apart_losses, packed_losses = model(apart).losses, model(packed).losses
    for name, (loss, count) in apart_losses.items():
        torch.testing.assert_close(packed_losses[name][0], loss, rtol=1e-5, atol=0)
        assert packed_losses[name][1] == count > 0
    gradients = [
        torch.autograd.grad(losses[CATALOGUE[family].heads[0]][0], model.embed.token.weight)
        for losses in (apart_losses, packed_losses)
    ]
    torch.testing.assert_close(gradients[1][0], gradients[0][0], rtol=1e-4, atol=1e-5)


def _apart_and_packed(
    family: str, lengths: tuple[int, ...], targets: tuple[int, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the same documents twice: one per padded sample, and packed in one sample with padding."""
    generator = torch.Generator().manual_seed(3)
    table = CATALOGUE[family]
    prefixes = dict(zip(dict.fromkeys(table.prefixes.values()), (lengths, targets), strict=False))
    apart: dict[str, Tensor] = {}
    packed: dict[str, Tensor] = {}
    for prefix, sizes in prefixes.items():
        documents = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in sizes]
        columns = {
            f"{prefix}tokens": documents,
            f"{prefix}document_ids": [torch.ones(n, dtype=torch.long) for n in sizes],
            f"{prefix}positions": [torch.arange(n) for n in sizes],
        }
        if table.segments and not prefix:
            columns["segments"] = [(torch.arange(n) > n // 2).long() % table.segments for n in sizes]
        if any(block.visibility == "ordered" for block in table.stacks.values()):
            columns["order"] = [torch.arange(n) for n in sizes]
        if prefix == last_prefix(family):
            labels = [torch.randint(1, VOCABULARY, (n,), generator=generator) for n in sizes]
            columns["labels"] = [label.index_fill(0, torch.tensor([0]), -100) for label in labels]
        for field, values in columns.items():
            filler = -100 if field == "labels" else 0
            apart[field] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=filler)
            if field.endswith("document_ids"):
                values = [value * number for number, value in enumerate(values, 1)]
            joined = torch.cat(values)
            packed[field] = torch.nn.functional.pad(joined, (0, 2), value=filler)[None]
    return apart, packed


@pytest.mark.parametrize("family", [name for name, table in CATALOGUE.items() if "decoder_" in table.prefixes.values()])
def test_packed_span_corruption_equals_single_document(family: str) -> None:
    special = tiny_special()
    task = OBJECTIVES["span-corruption"]
    model = Model(replace(tiny_spec(family), vocabulary=special.size))
    init_weights(model, seed=7)
    sample = task.make_sample(
        [random_slice(9), random_slice(13)], SampleContext(special, np.random.default_rng(0), 24, True)
    )
    batch = {name: torch.from_numpy(array)[None] for name, array in sample.items()}
    second = {
        f"{prefix}tokens": batch[f"{prefix}tokens"][batch[f"{prefix}document_ids"] == 2][None]
        for prefix in ("", "decoder_")
    }
    behind = logits_of(model.eval(), family, batch)[batch["decoder_document_ids"] == 2]
    assert len(behind) > 2
    torch.testing.assert_close(behind, logits_of(model, family, second)[0], rtol=0, atol=1e-5)


def test_attention_order_is_respected() -> None:
    """Orders: a bidirectional prefix, and a permutation."""
    family = change(CATALOGUE["gpt2"], stacks={"decoder": change(CATALOGUE["gpt2"].last_block, visibility="ordered")})
    spec = replace(tiny_spec("gpt2"), family=family)
    model = Model(spec)
    init_weights(model, seed=1)
    model.eval()
    batch = tiny_batch("gpt2")
    num_samples, sequence = batch["tokens"].shape
    orders = torch.arange(sequence).expand(num_samples, -1).clone()
    orders[0, :5] = 0
    orders[1] = torch.randperm(sequence, generator=torch.Generator().manual_seed(0))
    batch |= {"order": orders, "document_ids": torch.ones_like(batch["document_ids"])}
    before = logits_of(model, "gpt2", batch)
    for position in range(sequence):
        here = (torch.arange(sequence) == position).expand(num_samples, -1)
        moved = (logits_of(model, "gpt2", changed(batch, "tokens", here)) - before).abs().amax(-1) > 1e-6
        assert moved.equal(orders >= orders[:, position : position + 1])


def test_ordered_model_requires_an_order() -> None:
    family = change(CATALOGUE["gpt2"], stacks={"decoder": change(CATALOGUE["gpt2"].last_block, visibility="ordered")})
    with pytest.raises(UserError, match="has no order"):
        Model(replace(tiny_spec("gpt2"), family=family)).logits(tiny_batch("gpt2"))
