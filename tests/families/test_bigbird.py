"""BigBird on sequences that are long enough for its block pattern."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.models.model import Model
from megaptm.spec import change
from tests.hub.reloaded import use_own_random_values
from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import make_reference, scatter_labels

BLOCK, NUM_RANDOM_BLOCKS, LENGTH = 4, 1, 64


def build_long_model(**options: Any) -> Model:
    """Return a tiny model with 64 positions and large random weights."""
    tiny = tiny_model("bigbird")
    family = tiny.spec.family
    block = change(
        family.last_block, attention={"block_size": BLOCK, "num_random_blocks": NUM_RANDOM_BLOCKS, **options}
    )
    model = Model(replace(tiny.spec, context=LENGTH, family=change(family, stacks={"encoder": block})))
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + name.endswith("norm.weight"))
    return model.eval()


def test_logits_and_gradients_match_hugging_face() -> None:
    model, batch = build_long_model(), tiny_batch("bigbird", sequence=LENGTH)
    reference = use_own_random_values(make_reference(model))
    mask = (batch["document_ids"] > 0).long()
    logits = reference(input_ids=batch["tokens"], token_type_ids=batch["segments"], attention_mask=mask)[0]
    expected = F.cross_entropy(logits.flatten(0, 1), scatter_labels(batch).flatten())
    loss, count = model(batch).losses["mlm"]
    (loss / count).backward()
    expected.backward()
    real = mask > 0
    assert (model.logits(batch)["mlm"][real] - logits[real]).abs().max() < 1e-5
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    reference_parameters = dict(reference.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, gradients).items():
        assert (gradient - reference_parameters[name].grad).abs().max() < 1e-5, name


def test_seed_changes_random_blocks() -> None:
    batch = tiny_batch("bigbird", sequence=LENGTH)
    default, reseeded = build_long_model(), build_long_model(seed=5)
    assert [layer.attention.attend.pattern.seed for name, layer in reseeded.encoder.items() if name.isdigit()] == [5, 5]
    with torch.no_grad():
        assert (default.logits(batch)["mlm"] - reseeded.logits(batch)["mlm"]).abs().max() > 1e-3


def changed_positions(model: Model, batch: dict[str, Tensor], position: int) -> Tensor:
    """Return the positions of the first sample whose logits change with the token at a position."""
    tokens = batch["tokens"].clone()
    tokens[:, position] = tokens[:, position] % 100 + 1
    with torch.no_grad():
        before, after = (model.logits({**batch, "tokens": ids})["mlm"][0] for ids in (batch["tokens"], tokens))
    return (after - before).abs().amax(-1) > 1e-6


def test_layer_attends_to_the_blocks_of_its_table() -> None:
    """The table of blocks is that of all heads together."""
    model = build_long_model()
    del model.encoder["1"]
    model.encoder.layer_numbers = range(1)
    batch = {"tokens": torch.arange(1, LENGTH + 1)[None] % 100, "segments": torch.zeros(1, LENGTH, dtype=torch.long)}
    table = torch.from_numpy(SparseBlocks(BLOCK, NUM_RANDOM_BLOCKS, heads=range(4)).table(LENGTH)).any(0)
    assert not table.all()
    for position in range(0, LENGTH, 3):
        assert changed_positions(model, batch, position).equal(table[:, position // BLOCK].repeat_interleave(BLOCK))


def test_global_tokens_without_edge_blocks() -> None:
    """Global tokens without edge blocks (BigBird-ETC) attend to all positions and are attended to by all."""
    model = build_long_model(edge_blocks=False)
    del model.encoder["1"]
    model.encoder.layer_numbers = range(1)
    marks = torch.zeros(1, LENGTH, dtype=torch.long)
    marks[0, 1] = 1
    batch = {"tokens": torch.arange(1, LENGTH + 1)[None] % 100, "segments": marks * 0, "global_tokens": marks}
    assert changed_positions(model, batch, 1).all()
    assert not changed_positions(model, batch, 0).all()
    assert all(changed_positions(model, batch, position)[1] for position in range(0, LENGTH, 5))
    assert not all(changed_positions(model, batch, position)[2] for position in range(0, LENGTH, 5))
