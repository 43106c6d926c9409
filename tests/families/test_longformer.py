"""Longformer: import from RoBERTa (also for BigBird), windows, and global tokens."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face
from megaptm.layers import sparse
from megaptm.layers.sparse import global_positions
from megaptm.layers.stack import Stack
from megaptm.parallel.global_tokens import GlobalTokensHook
from megaptm.spec import published_spec
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import build_with_weights, convert_inputs, make_random_reference


def test_longformer_import_from_roberta() -> None:
    """Logits equal RoBERTa's on its positions. Further positions repeat the table, and global projections are
    copies."""
    reference, batch = make_random_reference(tiny_spec("roberta")), tiny_batch("roberta", sequence=24)
    imported = from_hugging_face(reference, family="longformer")
    model = build_with_weights(imported.spec, imported.weights)
    assert (imported.spec.name, imported.spec.context, imported.absent) == ("longformer", 4096, {})
    is_token = batch["document_ids"] > 0
    logits = reference(**convert_inputs("roberta", batch)).logits
    assert (model.logits(batch)["mlm"] - logits)[is_token].abs().max() <= 1e-5
    table = imported.weights["embed.position.weight"]
    assert len(table) == 4098
    assert all(
        table[2 + start :][: min(24, 4096 - start)].equal(table[2:26][: 4096 - start]) for start in range(0, 4096, 24)
    )
    for kind in ("weight", "bias"):
        projection = imported.weights[f"encoder.1.attention.qkv.{kind}"]
        assert imported.weights[f"encoder.1.attention.global_qkv.{kind}"].equal(projection)
    # Because of these copies, a global token changes nothing yet.
    marks = torch.zeros_like(batch["tokens"])
    marks[:, 0] = 1
    assert (model.logits(batch | {"global_tokens": marks})["mlm"] - logits)[is_token].abs().max() <= 1e-5


def test_bigbird_import_from_roberta() -> None:
    """Logits are close but not equal: activation and epsilon of norms differ."""
    reference, batch = make_random_reference(tiny_spec("roberta")), tiny_batch("roberta", sequence=24)
    imported = from_hugging_face(reference, family="bigbird")
    model = build_with_weights(imported.spec, imported.weights)
    assert (imported.spec.name, imported.spec.context, imported.absent) == ("bigbird", 4096, {})
    is_token = batch["document_ids"] > 0
    logits = reference(**convert_inputs("roberta", batch)).logits
    assert (model.logits(batch)["mlm"] - logits)[is_token].abs().max() < 0.01 * logits[is_token].std()
    assert imported.weights["embed.position.weight"][24:48].equal(imported.weights["embed.position.weight"][:24])


def test_window_per_layer() -> None:
    """Windows of 4 and 6 positions in the two layers of the tiny model reach 5 positions to each side."""
    model = tiny_model("longformer")
    assert [model.encoder[n].attention.attend.pattern.before for n in "01"] == [2, 3]
    batch = {"tokens": torch.arange(1, 25)[None], "segments": torch.zeros(1, 24, dtype=torch.long)}
    changed = batch | {"tokens": batch["tokens"].index_fill(1, torch.tensor([12]), 50)}
    with torch.no_grad():
        differ = (model.logits(changed)["mlm"] - model.logits(batch)["mlm"]).abs().amax((0, 2)) > 1e-6
    assert differ.nonzero().flatten().tolist() == [*range(7, 18)]


def test_published_window() -> None:
    block = published_spec(CATALOGUE["longformer"], "base").family.last_block
    assert (block.attention.window, block.attention.dilation) == (512, 1)


@pytest.mark.parametrize("marked", [True, False])
def test_global_projections_train_only_with_global_tokens(marked: bool) -> None:
    model, batch = tiny_model("longformer"), tiny_batch("longformer")
    if not marked:
        del batch["global_tokens"]
    loss, _ = model(batch).losses["mlm"]
    loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if "global_qkv" in name]
    assert len(gradients) == 4
    assert all((gradient is not None) == marked for gradient in gradients)


@pytest.mark.parametrize("recompute", [False, True])
def test_precomputed_global_positions_change_nothing(recompute: bool) -> None:
    """The engine computes the positions on the host, so that layers need no synchronization with the GPU."""
    model, batch = tiny_model("longformer"), tiny_batch("longformer")
    batch["global_tokens"][0, [0, 3, 5]] = 1
    if recompute:
        for module in model.modules():
            if isinstance(module, Stack):
                for number in module.layer_numbers:
                    module[str(number)].run = partial(checkpoint, use_reentrant=False)
    prepared = GlobalTokensHook().prepare_batch(batch)
    assert prepared["global_positions"].shape == (len(batch["tokens"]), 4)  # of three global tokens
    expected = model(batch).losses["mlm"][0]
    with patch.object(sparse, "global_positions", side_effect=AssertionError("counted again")):
        loss = model(prepared).losses["mlm"][0]
    assert torch.equal(loss, expected)
    loss.backward()


def test_number_of_global_positions_is_rounded_up() -> None:
    """A GPU kernel is compiled for each size, so there are few sizes."""
    marks = torch.arange(100) < torch.arange(101)[:, None]
    widths = [global_positions(row[None]).shape[1] for row in marks]
    assert {*widths} == {0, 1, 2, 4, 8, 16, 32, 64, 100}
    assert all(width >= num_marked for num_marked, width in enumerate(widths))
