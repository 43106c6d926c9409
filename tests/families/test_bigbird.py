"""BigBird where rows are long enough for its blocks: it says what Hugging Face's says with the same blocks, and hides
what they hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.bricks.pattern import SparseBlocks
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.models import Model, build_model
from megaptm.spec import change
from tests.hub.reloaded import drawing_ours
from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import labels_everywhere, reference_of

BLOCK, DRAWN, LENGTH = 4, 1, 64


def long_model(**options: Any) -> Model:
    """A tiny one with as many positions."""
    tiny = tiny_model("bigbird")
    family = tiny.spec.family
    block = change(family.last_block, attention={"block_size": BLOCK, "num_random_blocks": DRAWN, **options})
    model = build_model(replace(tiny.spec, context=LENGTH, family=change(family, stacks={"encoder": block})))
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + name.endswith("norm.weight"))
    return model.eval()


def test_logits_and_every_gradient_with_the_same_blocks() -> None:
    model, batch = long_model(), tiny_batch("bigbird", sequence=LENGTH)
    theirs = drawing_ours(reference_of(model))
    mask = (batch["document_ids"] > 0).long()
    logits = theirs(input_ids=batch["tokens"], token_type_ids=batch["segments"], attention_mask=mask)[0]
    expected = F.cross_entropy(logits.flatten(0, 1), labels_everywhere(batch).flatten())
    loss, count = model(batch).losses["mlm"]
    (loss / count).backward()
    expected.backward()
    real = mask > 0
    assert (model.logits(batch)["mlm"][real] - logits[real]).abs().max() < 1e-5
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    their_parameters = dict(theirs.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, ours).items():
        assert (gradient - their_parameters[name].grad).abs().max() < 1e-5, name


def test_a_seed_draws_other_blocks() -> None:
    batch = tiny_batch("bigbird", sequence=LENGTH)
    one, other = long_model(), long_model(seed=5)
    assert [layer.attention.attend.pattern.seed for name, layer in other.encoder.items() if name.isdigit()] == [5, 5]
    with torch.no_grad():
        assert (one.logits(batch)["mlm"] - other.logits(batch)["mlm"]).abs().max() > 1e-3


def moved(model: Model, batch: dict[str, Tensor], place: int) -> Tensor:
    """Which positions of the first row say something else once another token is at a place."""
    tokens = batch["tokens"].clone()
    tokens[:, place] = tokens[:, place] % 100 + 1
    with torch.no_grad():
        before, after = (model.logits({**batch, "tokens": one})["mlm"][0] for one in (batch["tokens"], tokens))
    return (after - before).abs().amax(-1) > 1e-6


def test_one_layer_sees_the_blocks_of_its_table_and_no_others() -> None:
    """Of any head."""
    model = long_model()
    del model.encoder["1"]
    model.encoder.numbers = range(1)
    batch = {"tokens": torch.arange(1, LENGTH + 1)[None] % 100, "segments": torch.zeros(1, LENGTH, dtype=torch.long)}
    table = torch.from_numpy(SparseBlocks(BLOCK, DRAWN, heads=range(4)).table(LENGTH)).any(0)
    assert not table.all()
    for place in range(0, LENGTH, 3):
        assert moved(model, batch, place).equal(table[:, place // BLOCK].repeat_interleave(BLOCK))


def test_global_tokens_in_the_place_of_blocks_see_and_are_seen_by_all() -> None:
    """The paper's ETC: without blocks that see all."""
    model = long_model(edge_blocks=False)
    del model.encoder["1"]
    model.encoder.numbers = range(1)
    marks = torch.zeros(1, LENGTH, dtype=torch.long)
    marks[0, 1] = 1
    batch = {"tokens": torch.arange(1, LENGTH + 1)[None] % 100, "segments": marks * 0, "global_tokens": marks}
    assert moved(model, batch, 1).all()
    assert not moved(model, batch, 0).all()
    assert all(moved(model, batch, place)[1] for place in range(0, LENGTH, 5))
    assert not all(moved(model, batch, place)[2] for place in range(0, LENGTH, 5))
