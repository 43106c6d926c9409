"""Our ALBERT against `transformers.AlbertForPreTraining`, however its layers are grouped; sharing adds up gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megaptm.errors import UserError
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.models import Model, build_model, fill
from megaptm.spec import ModelSpec, change
from tests.models.tiny import mean_losses, tiny_batch, tiny_spec
from tests.parity.reference import (
    assert_close,
    labels_everywhere,
    random_reference,
    reference_of,
    through_a_saved_folder,
)

GROUPS = {"one layer": (1, 1), "two groups": (2, 1), "each its own": (4, 1), "two in turn": (1, 2), "both": (2, 2)}


def grouped(groups: int, cycle: int, *, layers: int = 4, **sharing: object) -> ModelSpec:
    spec = tiny_spec("albert", layers=layers)
    block = change(spec.family.last_block, sharing={"groups": groups, "cycle": cycle, **sharing})
    return replace(spec, family=change(spec.family, stacks={"encoder": block}))


def model_of(spec: ModelSpec) -> Model:
    model = build_model(spec)
    fill(model, seed=7)
    return model.eval()


@pytest.mark.parametrize(("groups", "cycle"), GROUPS.values(), ids=GROUPS)
def test_both_heads_and_every_gradient(groups: int, cycle: int) -> None:
    model, batch = model_of(grouped(groups, cycle)), tiny_batch("albert")
    theirs, real = reference_of(model), batch["document_ids"] > 0
    out = theirs(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        attention_mask=real.long(),
        labels=labels_everywhere(batch),
        sentence_order_label=batch["sentence_order"],
    )
    logits = model.logits(batch)
    assert_close(logits["mlm"][real], out.prediction_logits[real])
    assert_close(logits["sentence-order"], out.sop_logits)
    loss = mean_losses(model(batch).losses)
    assert_close(loss, out.loss)
    loss.backward()
    out.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    parameters = dict(theirs.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, gradients).items():
        assert_close(gradient, parameters[name].grad)


@pytest.mark.parametrize(("groups", "cycle"), GROUPS.values(), ids=GROUPS)
def test_a_model_of_theirs_comes_in_with_its_groups(groups: int, cycle: int, tmp_path: Path) -> None:
    spec = grouped(groups, cycle)
    theirs, batch = random_reference(spec), tiny_batch("albert", rows=1)
    ours = through_a_saved_folder(theirs, tmp_path)
    assert ours.spec.family.stacks == spec.family.stacks
    assert ours.spec.size == spec.size
    out = theirs(input_ids=batch["tokens"], token_type_ids=batch["segments"])
    assert_close(ours.logits(batch)["sentence-order"], out.sop_logits)


def test_the_gradient_of_what_layers_share_is_the_sum_of_what_each_would_have() -> None:
    shared, apart = model_of(grouped(1, 1)), model_of(grouped(1, 1, sublayers=()))
    one = dict(shared.named_parameters())
    with torch.no_grad():
        for name, parameter in apart.named_parameters():
            layer = name.split(".")[1] if name.startswith("encoder.") else ""
            parameter.copy_(one[name.replace(f"encoder.{layer}.", "encoder.shared.0.") if layer else name])
    batch = tiny_batch("albert")
    for model in (shared, apart):
        mean_losses(model(batch).losses).backward()
    each = dict(apart.named_parameters())
    for name, parameter in one.items():
        copies = (
            [each[name.replace("shared.0.", f"{layer}.")] for layer in range(4)] if "shared" in name else [each[name]]
        )
        assert parameter.grad is not None
        assert_close(parameter.grad, torch.stack([copy.grad for copy in copies if copy.grad is not None]).sum(0))


def test_groups_that_they_could_not_say_are_refused() -> None:
    with pytest.raises(UserError, match="multiple of 3 groups x 1 layers per group, but has 4"):
        find_counterpart(grouped(3, 1))
    with pytest.raises(UserError, match="albert has no counterpart"):
        find_counterpart(grouped(1, 1, sublayers=("attention",)))
