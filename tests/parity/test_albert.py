"""ALBERT against `transformers.AlbertForPreTraining` by grouping of layers, and gradients of shared layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megaptm.errors import UserError
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, change
from tests.models.tiny import mean_losses, tiny_batch, tiny_spec
from tests.parity.reference import (
    assert_close,
    make_random_reference,
    make_reference,
    save_and_import,
    scatter_labels,
)

GROUPS = {
    "one shared layer": (1, 1),
    "two groups": (2, 1),
    "no sharing": (4, 1),
    "two alternating layers": (1, 2),
    "two groups of two": (2, 2),
}
"""Name -> number of groups, and layers per group."""


def grouped_spec(groups: int, cycle: int, *, layers: int = 4, **sharing: object) -> ModelSpec:
    spec = tiny_spec("albert", layers=layers)
    block = change(spec.family.last_block, sharing={"groups": groups, "cycle": cycle, **sharing})
    return replace(spec, family=change(spec.family, stacks={"encoder": block}))


def build_filled(spec: ModelSpec) -> Model:
    model = Model(spec)
    init_weights(model, seed=7)
    return model.eval()


@pytest.mark.parametrize(("groups", "cycle"), GROUPS.values(), ids=GROUPS)
def test_logits_loss_and_gradients_equal_hugging_face(groups: int, cycle: int) -> None:
    model, batch = build_filled(grouped_spec(groups, cycle)), tiny_batch("albert")
    reference, real = make_reference(model), batch["document_ids"] > 0
    out = reference(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        attention_mask=real.long(),
        labels=scatter_labels(batch),
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
    parameters = dict(reference.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, gradients).items():
        assert_close(gradient, parameters[name].grad)


@pytest.mark.parametrize(("groups", "cycle"), GROUPS.values(), ids=GROUPS)
def test_groups_are_imported(groups: int, cycle: int, tmp_path: Path) -> None:
    spec = grouped_spec(groups, cycle)
    reference, batch = make_random_reference(spec), tiny_batch("albert", rows=1)
    model = save_and_import(reference, tmp_path)
    assert model.spec.family.stacks == spec.family.stacks
    assert model.spec.size == spec.size
    out = reference(input_ids=batch["tokens"], token_type_ids=batch["segments"])
    assert_close(model.logits(batch)["sentence-order"], out.sop_logits)


def test_gradient_of_shared_layers_is_the_sum_over_layers() -> None:
    shared, separate = build_filled(grouped_spec(1, 1)), build_filled(grouped_spec(1, 1, sublayers=()))
    shared_parameters = dict(shared.named_parameters())
    with torch.no_grad():
        for name, parameter in separate.named_parameters():
            layer = name.split(".")[1] if name.startswith("encoder.") else ""
            parameter.copy_(
                shared_parameters[name.replace(f"encoder.{layer}.", "encoder.shared.0.") if layer else name]
            )
    batch = tiny_batch("albert")
    for model in (shared, separate):
        mean_losses(model(batch).losses).backward()
    parameters = dict(separate.named_parameters())
    for name, parameter in shared_parameters.items():
        names = [name.replace("shared.0.", f"{layer}.") for layer in range(4)] if "shared" in name else [name]
        copies = [parameters[copy] for copy in names]
        assert parameter.grad is not None
        assert_close(parameter.grad, torch.stack([copy.grad for copy in copies if copy.grad is not None]).sum(0))


def test_groups_without_hugging_face_config_are_rejected() -> None:
    with pytest.raises(UserError, match="multiple of 3 groups x 1 layers per group, but has 4"):
        find_counterpart(grouped_spec(3, 1))
    with pytest.raises(UserError, match="albert has no counterpart"):
        find_counterpart(grouped_spec(1, 1, sublayers=("attention",)))
