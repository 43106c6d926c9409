"""Hugging Face's model with the random weights of ours, and what the two say of the same batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from megaptm.families import CATALOGUE
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import from_hugging_face, hugging_face_config
from megaptm.hub.tensor_rules import export_weights
from megaptm.models import Model, build_model, fill
from megaptm.spec import ModelSpec, change
from tests.models.tiny import last_prefix, tiny_batch, tiny_model


def reference_of(model: Model) -> PreTrainedModel:
    """Theirs in eval mode and fp32, with plain (eager) attention, holding copies of our weights."""
    counterpart = find_counterpart(model.spec)
    config = hugging_face_config(model.spec, **{k: v for k, v in counterpart.special_ids.items() if v == 0})
    config._attn_implementation = "eager"
    theirs = getattr(transformers, counterpart.model)(config)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    given = export_weights(counterpart.rules, model.spec, weights) | zeros_of(model.spec)
    missing, unexpected = theirs.load_state_dict(given, strict=False)
    assert not unexpected
    assert {name for name in missing if not name.startswith(counterpart.unused_prefixes)} <= set(counterpart.tied)
    return tied_as_said(theirs, counterpart).eval()


def tied_as_said(theirs: PreTrainedModel, counterpart: Counterpart) -> PreTrainedModel:
    """With the parameters that are one, and no others: a config may say less than their class would tie."""
    present = {f"{path}.{leaf}" for path, module in theirs.named_modules() for leaf in module._parameters}
    tied = {name: source for name, source in counterpart.tied.items() if {name, source} <= present}
    for name, source in tied.items():
        module, _, last = name.rpartition(".")
        setattr(theirs.get_submodule(module), last, theirs.get_parameter(source))
    theirs._tied_weights_keys = {**(theirs._tied_weights_keys or {}), **tied}
    return theirs


def zeros_of(spec: ModelSpec) -> dict[str, Tensor]:
    """Their parameters that ours has not."""
    return {name: torch.zeros(shape) for name, shape in find_counterpart(spec).zero_parameters(spec).items()}


def model_of(spec: ModelSpec, weights: dict[str, Tensor]) -> Model:
    """With these weights; a head that theirs has not begins as a new one does."""
    model = build_model(spec)
    fill(model, seed=7)
    parameters = dict(model.named_parameters())
    assert {name for name in parameters if not name.startswith("head.")} <= weights.keys() <= parameters.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return model.eval()


def inputs_of(family: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same inputs by their names."""
    names = {
        "tokens": "input_ids",
        "segments": "token_type_ids",
        "global_tokens": "global_attention_mask",
        "decoder_tokens": "decoder_input_ids",
    }
    inputs = {theirs: batch[ours] for ours, theirs in names.items() if ours in batch}
    if "task_ids" in batch:
        inputs["task_type_ids"] = batch["task_ids"][:, None].expand_as(batch["tokens"])
    for prefix in CATALOGUE[family].prefixes.values():
        inputs[f"{prefix}attention_mask"] = (batch[f"{prefix}document_ids"] > 0).long()
    if "order" in batch and CATALOGUE[family].first_block.query_stream:
        # What their text sees of itself it sees whatever the mask says.
        order = batch["order"]
        unseen = order[:, None, :] > order[:, :, None]
        inputs["perm_mask"] = unseen.float()
    return inputs


def inputs_with_queries(family: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """And a query at each place that is asked about. One mask serves both streams there, in which no place is before
    itself."""
    inputs, length = inputs_of(family, batch), batch["order"].shape[1]
    places = F.one_hot(batch["masked_positions"], length)
    itself = torch.diag_embed(places.amax(1)).float()
    mapping = places * (batch["labels"] != -100)[:, :, None]
    return inputs | {"perm_mask": torch.maximum(inputs["perm_mask"], itself), "target_mapping": mapping.float()}


def labels_everywhere(batch: dict[str, Tensor]) -> Tensor:
    """A label for each place, where the batch may have places asked and a label for each."""
    if "masked_positions" not in batch:
        return batch["labels"]
    labels = torch.full_like(batch["tokens"], -100)
    rows, slots = (batch["labels"] != -100).nonzero(as_tuple=True)
    labels[rows, batch["masked_positions"][rows, slots]] = batch["labels"][rows, slots]
    return labels


def without_decoder(model: Model) -> Model:
    """The same weights, with a last layer that runs once."""
    stacks = {name: change(block, last_layer="once") for name, block in model.spec.family.stacks.items()}
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if "place_table" not in name}
    return model_of(replace(model.spec, family=change(model.spec.family, stacks=stacks)), weights)


def differences(family: str) -> tuple[float, float]:
    """PARITY of a tiny model: the largest absolute difference of its main head's logits and loss, and of the gradient
    of any parameter."""
    model, batch = without_decoder(tiny_model(family)), tiny_batch(family)
    theirs, head = reference_of(model), CATALOGUE[family].heads[0]
    if CATALOGUE[family].first_block.reversible:  # theirs has a backward pass in train mode alone, of its longest rows
        batch, theirs = tiny_batch(family, sequence=model.spec.context), theirs.train()
    real = batch[f"{last_prefix(family)}document_ids"] > 0
    logits = theirs(**inputs_of(family, batch))[0]
    if CATALOGUE[family].first_block.query_stream:
        said = theirs(**inputs_with_queries(family, batch))[0]
        expected = F.cross_entropy(said.flatten(0, 1), batch["labels"].flatten())
    else:
        expected = F.cross_entropy(logits.flatten(0, 1), labels_everywhere(batch).flatten())
    loss, count = model(batch).losses[head]
    (loss / count).backward()
    expected.backward()

    ours = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
    assert ours["embed.token.weight"][model.spec.vocabulary :].abs().max() == 0
    their_parameters = dict(theirs.named_parameters())
    converted = export_weights(find_counterpart(model.spec).rules, model.spec, ours)
    said = torch.stack([(model.logits(batch)[head][real] - logits[real]).abs().max(), (loss / count - expected).abs()])
    return said.max().item(), max(
        (gradient - _gradient(their_parameters[name])).abs().max().item() for name, gradient in converted.items()
    )


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


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
    counterpart = find_counterpart(spec)
    config = hugging_face_config(spec, **{k: v for k, v in counterpart.special_ids.items() if v == 0})
    config._attn_implementation = "eager"
    theirs = tied_as_said(getattr(transformers, counterpart.model)(config), counterpart)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
        if not spec.family.tied:
            # Else T5's logits are so large that rounding shows.
            theirs.get_output_embeddings().weight *= spec.width**-0.5
    theirs.load_state_dict(zeros_of(spec), strict=False)
    return theirs.eval()


def through_a_saved_folder(theirs: PreTrainedModel, folder: Path) -> Model:
    theirs.save_pretrained(folder)
    found = from_hugging_face(folder)
    return model_of(found.spec, found.weights)
