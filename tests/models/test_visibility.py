"""LEAK: what a position must not see cannot change what it says; and packing documents changes nothing they say."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from megaptm.bricks import HEADS
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.layers.mask import self_mask
from megaptm.models import Model, build_model, fill
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import SampleContext
from megaptm.spec import VISIBILITIES, change
from tests.data.corpora import tiny_special
from tests.models.tiny import FAMILIES, VOCABULARY, last_prefix, tiny_batch, tiny_model, tiny_spec
from tests.objectives.samples import random_slice

CAUSAL = [
    *{family.last_block: name for name, family in reversed(CATALOGUE.items()) if family.last_block.causal}.values()
]
"""One family of each decoder: LED's is BART's."""
SEEN = {
    "full": lambda query, key: True,
    "causal": lambda query, key: key <= query,
    "ordered": lambda query, key: key >= query,
}


def says(model: Model, family: str, batch: dict[str, Tensor]) -> Tensor:
    """Logits [B, S, V]."""
    with torch.no_grad():
        return model.logits(batch)[CATALOGUE[family].heads[0]]


def changed(batch: dict[str, Tensor], field: str, places: Tensor) -> dict[str, Tensor]:
    """The batch with another token at each place, a boolean [B, S]."""
    tokens = batch[field]
    return {**batch, field: torch.where(places, tokens % (VOCABULARY - 1) + 1, tokens)}


def test_nobody_infers_what_a_word_means_from_its_letters() -> None:
    """A new word would pass for one that lets all be seen: `Block.causal` and `Block.ordered` are asked."""
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


@pytest.mark.parametrize("word", VISIBILITIES)
def test_each_word_says_who_is_seen(word: str) -> None:
    """A word that is not in `SEEN` fails here; one that is not in the table is refused."""
    batch = {"tokens": torch.zeros(1, 5, dtype=torch.int64), "order": torch.arange(5).flip(0)[None]}
    dense = self_mask(batch, "", word).dense.expand(1, 1, 5, 5)[0, 0]
    assert dense.tolist() == [[SEEN[word](query, key) for key in range(5)] for query in range(5)]
    with pytest.raises(UserError, match="'prefix', which is unknown; use one of full, causal, ordered"):
        self_mask(batch, "", "prefix")


@pytest.mark.parametrize("document_numbers", [True, False])
@pytest.mark.parametrize("family", CAUSAL)
def test_the_future_is_hidden_from_a_decoder(family: str, document_numbers: bool) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    if not document_numbers:
        batch = {name: value for name, value in batch.items() if not name.endswith("document_ids")}
    field = f"{last_prefix(family)}tokens"
    before = says(model, family, batch)
    for place in range(1, batch[field].shape[1]):
        here = (torch.arange(batch[field].shape[1]) == place).expand_as(batch[field])
        after = says(model, family, changed(batch, field, here))
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-6)
        assert (after[0, place] - before[0, place]).abs().max() > 1e-3, "the change itself is seen"


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_hidden(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    before = says(model, family, batch)
    after = says(model, family, changed(batch, "tokens", batch["document_ids"] == 0))
    real = batch[f"{last_prefix(family)}document_ids"] > 0
    torch.testing.assert_close(after[real], before[real], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_gives_finite_numbers_and_no_gradient(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    for prefix in CATALOGUE[family].prefixes.values():
        batch[f"{prefix}document_ids"][2] = 0  # a row of nothing but padding
    for head in CATALOGUE[family].heads:
        batch[HEADS[head].answers][2] = -100
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: object, embedded_SBD: Tensor) -> None:
        embedded_SBD.retain_grad()
        seen.append(embedded_SBD)

    assert model.embed is not None
    model.embed.token.register_forward_hook(keep)
    sum(loss for loss, _ in model(batch).losses.values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    grad = seen[0].grad
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
    before = says(model, family, batch)
    numbers = batch[f"{last_prefix(family)}document_ids"]
    for document, other in ((1, 2), (2, 1)):
        perturbed = batch
        for prefix in prefixes:
            perturbed = changed(perturbed, f"{prefix}tokens", batch[f"{prefix}document_ids"] == other)
        after = says(model, family, perturbed)
        mine = numbers == document
        torch.testing.assert_close(after[mine], before[mine], rtol=0, atol=1e-6)
        assert (after[~mine] - before[~mine]).abs().max() > 1e-3


def test_cross_attention_sees_the_encoder_of_its_own_document_only() -> None:
    model, batch = tiny_model("t5"), tiny_batch("t5")
    batch["document_ids"] = (torch.arange(12) >= 5).long().expand(3, -1) + 1
    batch["decoder_document_ids"] = (torch.arange(7) >= 3).long().expand(3, -1) + 1
    before = says(model, "t5", batch)
    after = says(model, "t5", changed(batch, "tokens", batch["document_ids"] == 2))
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-6)
    assert (after[:, 3:] - before[:, 3:]).abs().amax((0, 2)).min() > 1e-4


def test_full_attention_sees_both_ways() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert", rows=1)
    before = says(model, "bert", batch)
    here = (torch.arange(12) == 6)[None]
    after = says(model, "bert", changed(batch, "tokens", here))
    assert (after - before).abs().amax((0, 2)).min() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_one_document_without_padding_needs_no_numbers(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    assert batch["document_ids"].all()
    bare = {name: value for name, value in batch.items() if not name.endswith("document_ids")}
    torch.testing.assert_close(says(model, family, bare), says(model, family, batch), rtol=0, atol=2e-6)


def test_numbers_for_one_stream_of_two_are_refused() -> None:
    batch = tiny_batch("t5")
    del batch["decoder_document_ids"]
    with pytest.raises(UserError, match="both or neither"):
        tiny_model("t5")(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_loss_equals_unpacked_loss(family: str) -> None:
    model = tiny_model(family)
    lengths, targets = (5, 4, 8), (3, 2, 4)
    apart, packed = _apart_and_packed(family, lengths, targets)
    one, other = model(apart).losses, model(packed).losses
    for name, (loss, count) in one.items():
        torch.testing.assert_close(other[name][0], loss, rtol=1e-5, atol=0)
        assert other[name][1] == count > 0
    gradients = [
        torch.autograd.grad(losses[CATALOGUE[family].heads[0]][0], model.embed.token.weight) for losses in (one, other)
    ]
    torch.testing.assert_close(gradients[1][0], gradients[0][0], rtol=1e-4, atol=1e-5)


def _apart_and_packed(
    family: str, lengths: tuple[int, ...], targets: tuple[int, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same documents one a padded row, and all in one row with padding after."""
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
        if "segment" in table.inputs and not prefix:
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
            row = torch.cat(values)
            packed[field] = torch.nn.functional.pad(row, (0, 2), value=filler)[None]
    return apart, packed


@pytest.mark.parametrize("family", [name for name, table in CATALOGUE.items() if "decoder_" in table.prefixes.values()])
def test_a_corrupted_document_is_read_the_same_alone_and_behind_another(family: str) -> None:
    special = tiny_special()
    task = OBJECTIVES["span-corruption"]
    model = build_model(replace(tiny_spec(family), vocabulary=special.size))
    fill(model, seed=7)
    made = task.make([random_slice(9), random_slice(13)], SampleContext(special, np.random.default_rng(0), 24, True))
    row = {name: torch.from_numpy(array)[None] for name, array in made.items()}
    second = {
        f"{prefix}tokens": row[f"{prefix}tokens"][row[f"{prefix}document_ids"] == 2][None]
        for prefix in ("", "decoder_")
    }
    behind = says(model.eval(), family, row)[row["decoder_document_ids"] == 2]
    assert len(behind) > 2
    torch.testing.assert_close(behind, says(model, family, second)[0], rtol=0, atol=1e-5)


def test_an_order_says_who_is_seen() -> None:
    """A prefix that sees itself whole, and a permutation; never more than the order allows."""
    family = change(CATALOGUE["gpt2"], stacks={"decoder": change(CATALOGUE["gpt2"].last_block, visibility="ordered")})
    spec = replace(tiny_spec("gpt2"), family=family)
    model = build_model(spec)
    fill(model, seed=1)
    model.eval()
    batch = tiny_batch("gpt2")
    rows, sequence = batch["tokens"].shape
    orders = torch.arange(sequence).expand(rows, -1).clone()
    orders[0, :5] = 0
    orders[1] = torch.randperm(sequence, generator=torch.Generator().manual_seed(0))
    batch |= {"order": orders, "document_ids": torch.ones_like(batch["document_ids"])}
    before = says(model, "gpt2", batch)
    for place in range(sequence):
        here = (torch.arange(sequence) == place).expand(rows, -1)
        moved = (says(model, "gpt2", changed(batch, "tokens", here)) - before).abs().amax(-1) > 1e-6
        assert moved.equal(orders >= orders[:, place : place + 1])


def test_an_ordered_model_asks_for_the_order() -> None:
    family = change(CATALOGUE["gpt2"], stacks={"decoder": change(CATALOGUE["gpt2"].last_block, visibility="ordered")})
    with pytest.raises(UserError, match="has no order"):
        build_model(replace(tiny_spec("gpt2"), family=family)).logits(tiny_batch("gpt2"))
