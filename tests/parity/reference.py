"""Hugging Face's model with the random weights of ours, and what the two say of the same batch."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from megaptm.hub.counterparts import counterpart_of
from megaptm.hub.huggingface import from_hugging_face, hugging_face_config
from megaptm.hub.tables import export_weights
from megaptm.models import Model, build_model
from megaptm.spec import ModelSpec


def reference_of(model: Model) -> PreTrainedModel:
    """Theirs in eval mode and fp32, with plain (eager) attention, holding copies of our weights."""
    counterpart = counterpart_of(model.spec)
    config = hugging_face_config(model.spec, **{k: v for k, v in counterpart.special.items() if v == 0})
    config._attn_implementation = "eager"
    theirs = getattr(transformers, counterpart.model)(config)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    missing, unexpected = theirs.load_state_dict(export_weights(counterpart.rows, model.spec, weights), strict=False)
    assert not unexpected
    assert set(missing) <= set(counterpart.tied)
    theirs.tie_weights()
    return theirs.eval()


def model_of(spec: ModelSpec, weights: dict[str, Tensor]) -> Model:
    model = build_model(spec)
    model.load_state_dict(weights, strict=True)
    return model.eval()


def gradient_of_table(loss: Tensor, table: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, table)
    return gradient


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    """PARITY: largest absolute difference 1e-5."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-5


def random_reference(spec: ModelSpec) -> PreTrainedModel:
    """Theirs with a random initialization of their own, moved so that no bias is 0 and no norm 1."""
    torch.manual_seed(5)
    config = hugging_face_config(spec)
    config._attn_implementation = "eager"
    theirs = getattr(transformers, counterpart_of(spec).model)(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return theirs.eval()


def through_a_saved_folder(theirs: PreTrainedModel, folder: Path) -> Model:
    theirs.save_pretrained(folder)
    found = from_hugging_face(folder)
    return model_of(found.spec, found.weights)
