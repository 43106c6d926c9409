"""Longformer and BigBird begin from a RoBERTa; Longformer's windows by layer; who trains the maps of what sees all."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face
from megaptm.layers import sparse
from megaptm.layers.layer import Stack
from megaptm.layers.sparse import marked_places
from megaptm.parallel.global_tokens import GlobalTokensHook
from megaptm.spec import published
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import inputs_of, model_of, random_reference


def test_a_longformer_begins_as_its_roberta() -> None:
    """Of rows as long as RoBERTa's it says the same; later places are the same ones again, and what sees all begins
    with the maps of all tokens."""
    theirs, batch = random_reference(tiny_spec("roberta")), tiny_batch("roberta", sequence=24)
    found = from_hugging_face(theirs, family="longformer")
    model = model_of(found.spec, found.weights)
    assert (found.spec.name, found.spec.context, found.absent) == ("longformer", 4096, {})
    real = batch["document_ids"] > 0
    said = theirs(**inputs_of("roberta", batch)).logits
    assert (model.logits(batch)["mlm"] - said)[real].abs().max() <= 1e-5
    table = found.weights["embed.position.weight"]
    assert len(table) == 4098
    assert all(
        table[2 + start :][: min(24, 4096 - start)].equal(table[2:26][: 4096 - start]) for start in range(0, 4096, 24)
    )
    for kind in ("weight", "bias"):
        ours = found.weights[f"encoder.1.attention.qkv.{kind}"]
        assert found.weights[f"encoder.1.attention.global_qkv.{kind}"].equal(ours)
    # So a token that sees all says at first what it says anyway.
    marks = torch.zeros_like(batch["tokens"])
    marks[:, 0] = 1
    assert (model.logits(batch | {"global_tokens": marks})["mlm"] - said)[real].abs().max() <= 1e-5


def test_a_bigbird_begins_from_a_roberta() -> None:
    """It is not quite the same: its feed-forward's function and what its norms add are others."""
    theirs, batch = random_reference(tiny_spec("roberta")), tiny_batch("roberta", sequence=24)
    found = from_hugging_face(theirs, family="bigbird")
    model = model_of(found.spec, found.weights)
    assert (found.spec.name, found.spec.context, found.absent) == ("bigbird", 4096, {})
    real = batch["document_ids"] > 0
    said = theirs(**inputs_of("roberta", batch)).logits
    assert (model.logits(batch)["mlm"] - said)[real].abs().max() < 0.01 * said[real].std()
    assert found.weights["embed.position.weight"][24:48].equal(found.weights["embed.position.weight"][:24])


def test_each_layer_has_its_window() -> None:
    """Of the tiny model four places in its first layer, and six in its second: together five to a side."""
    model = tiny_model("longformer")
    assert [model.encoder[n].attention.attend.pattern.before for n in "01"] == [2, 3]
    batch = {"tokens": torch.arange(1, 25)[None], "segments": torch.zeros(1, 24, dtype=torch.long)}
    moved = batch | {"tokens": batch["tokens"].index_fill(1, torch.tensor([12]), 50)}
    with torch.no_grad():
        differ = (model.logits(moved)["mlm"] - model.logits(batch)["mlm"]).abs().amax((0, 2)) > 1e-6
    assert differ.nonzero().flatten().tolist() == [*range(7, 18)]


def test_published_windows_are_those_of_the_paper() -> None:
    block = published(CATALOGUE["longformer"], "base").family.last_block
    assert (block.attention.window, block.attention.dilation) == (512, 1)


@pytest.mark.parametrize("marked", [True, False])
def test_maps_of_what_sees_all_get_gradients_only_where_something_does(marked: bool) -> None:
    model, batch = tiny_model("longformer"), tiny_batch("longformer")
    if not marked:
        del batch["global_tokens"]
    loss, _ = model(batch).losses["mlm"]
    loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if "global_qkv" in name]
    assert len(gradients) == 4
    assert all((gradient is not None) == marked for gradient in gradients)


@pytest.mark.parametrize("recompute", [False, True])
def test_places_that_the_host_has_counted_are_those_that_layers_would_count(recompute: bool) -> None:
    """As an engine gives them, so that layers ask nothing of a GPU; other rows have fewer."""
    model, batch = tiny_model("longformer"), tiny_batch("longformer")
    batch["global_tokens"][0, [0, 3, 5]] = 1
    if recompute:
        for module in model.modules():
            if isinstance(module, Stack):
                module.run_layer = partial(checkpoint, use_reentrant=False)
    told = GlobalTokensHook().prepare_batch(batch)
    assert told["marked_places"].shape == (len(batch["tokens"]), 4)  # of three
    alone, given = model(batch).losses["mlm"][0], None
    with patch.object(sparse, "marked_places", side_effect=AssertionError("counted again")):
        given = model(told).losses["mlm"][0]
    assert torch.equal(given, alone)
    given.backward()


def test_rows_are_of_few_numbers_of_marked_places() -> None:
    """For each of which a GPU's kernel is compiled."""
    marks = torch.arange(100) < torch.arange(101)[:, None]
    widths = [marked_places(row[None]).shape[1] for row in marks]
    assert {*widths} == {0, 1, 2, 4, 8, 16, 32, 64, 100}
    assert all(width >= number for number, width in enumerate(widths))
