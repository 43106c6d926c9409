"""Hugging Face model with the weights of a megaptm model, and comparison of the two on one batch."""

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
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, change
from tests.models.tiny import VOCABULARY, last_prefix, tiny_batch, tiny_model


def make_reference(model: Model) -> PreTrainedModel:
    """Return the Hugging Face model with copies of the weights, in eval mode and fp32, with eager attention."""
    counterpart = find_counterpart(model.spec)
    config = hugging_face_config(model.spec, **small_ids(counterpart))
    config._attn_implementation = "eager"
    reference = getattr(transformers, counterpart.model)(config)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    exported = export_weights(counterpart.rules, model.spec, weights) | make_zero_parameters(model.spec)
    missing, unexpected = reference.load_state_dict(exported, strict=False)
    assert not unexpected
    assert {name for name in missing if not name.startswith(counterpart.unused_prefixes)} <= set(counterpart.tied)
    return tie_reference(reference, counterpart).eval()


def small_ids(counterpart: Counterpart) -> dict[str, int | None]:
    """Return the special ids that are 0, and None for those that the tiny vocabulary lacks."""
    ids = {name: id_ for name, id_ in counterpart.special_ids.items() if id_ is not None}
    return {name: 0 if id_ == 0 else None for name, id_ in ids.items() if id_ == 0 or id_ >= VOCABULARY}


def tie_reference(reference: PreTrainedModel, counterpart: Counterpart) -> PreTrainedModel:
    """Tie exactly the parameters that the counterpart names. The class itself may tie more."""
    present = {f"{path}.{leaf}" for path, module in reference.named_modules() for leaf in module._parameters}
    by_config = "tied" in counterpart.fields.values()
    if by_config and not reference.config.tie_word_embeddings:
        return reference
    tied = {name: source for name, source in counterpart.tied.items() if {name, source} <= present}
    for name, source in tied.items():
        module, _, last = name.rpartition(".")
        setattr(reference.get_submodule(module), last, reference.get_parameter(source))
    reference._tied_weights_keys = {**(reference._tied_weights_keys or {}), **tied}
    return reference


def make_zero_parameters(spec: ModelSpec) -> dict[str, Tensor]:
    """Return zeros for the parameters that only the Hugging Face model has."""
    return {name: torch.zeros(shape) for name, shape in find_counterpart(spec).zero_parameters(spec).items()}


def build_with_weights(spec: ModelSpec, weights: dict[str, Tensor]) -> Model:
    """Build a model with these weights. A head that the reference lacks is initialized at random."""
    model = Model(spec)
    init_weights(model, seed=7)
    parameters = dict(model.named_parameters())
    assert {name for name in parameters if not name.startswith("head.")} <= weights.keys() <= parameters.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return model.eval()


def convert_inputs(family: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the batch under the argument names of Hugging Face models."""
    names = {
        "tokens": "input_ids",
        "segments": "token_type_ids",
        "global_tokens": "global_attention_mask",
        "decoder_tokens": "decoder_input_ids",
    }
    inputs = {hf_name: batch[name] for name, hf_name in names.items() if name in batch}
    if "task_ids" in batch:
        inputs["task_type_ids"] = batch["task_ids"][:, None].expand_as(batch["tokens"])
    for prefix in CATALOGUE[family].prefixes.values():
        inputs[f"{prefix}attention_mask"] = (batch[f"{prefix}document_ids"] > 0).long()
    if "order" in batch and CATALOGUE[family].has_queries:
        # In the content stream of transformers, a position always attends to itself.
        order = batch["order"]
        inputs["perm_mask"] = (order[:, None, :] > order[:, :, None]).float()
    return inputs


def convert_inputs_with_queries(family: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs with a query at each target position.

    transformers uses one mask for both streams, so it must mask each target position for itself.
    """
    inputs, length = convert_inputs(family, batch), batch["order"].shape[1]
    targets = F.one_hot(batch["masked_positions"], length)
    diagonal = torch.diag_embed(targets.amax(1)).float()
    mapping = targets * (batch["labels"] != -100)[:, :, None]
    return inputs | {"perm_mask": torch.maximum(inputs["perm_mask"], diagonal), "target_mapping": mapping.float()}


def scatter_labels(batch: dict[str, Tensor]) -> Tensor:
    """Return a label for each position: the batch may have labels for its target positions only."""
    if "masked_positions" not in batch:
        return batch["labels"]
    labels = torch.full_like(batch["tokens"], -100)
    samples, slots = (batch["labels"] != -100).nonzero(as_tuple=True)
    labels[samples, batch["masked_positions"][samples, slots]] = batch["labels"][samples, slots]
    return labels


def replace_mask_decoder(model: Model) -> Model:
    """Return a model with the same weights whose last layer is an ordinary one, as in transformers' DeBERTa."""
    stacks = {name: block.for_encoding for name, block in model.spec.family.stacks.items()}
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if "place_table" not in name}
    return build_with_weights(replace(model.spec, family=change(model.spec.family, stacks=stacks)), weights)


def differences(family: str) -> tuple[float, float]:
    """Compare a tiny model with Hugging Face's. Return the largest absolute difference of the logits and the loss of
    the first head, and of the gradient of any parameter."""
    model, batch = replace_mask_decoder(tiny_model(family)), tiny_batch(family)
    reference, head = make_reference(model), CATALOGUE[family].heads[0]
    # transformers' Reformer has a backward pass only in train mode and for sequences of maximum length.
    if CATALOGUE[family].first_block.residual.streams > 1:
        batch, reference = tiny_batch(family, sequence=model.spec.context), reference.train()
    real = batch[f"{last_prefix(family)}document_ids"] > 0
    expected_logits = reference(**convert_inputs(family, batch))[0]
    if CATALOGUE[family].has_queries:
        query_logits = reference(**convert_inputs_with_queries(family, batch))[0]
        expected_loss = F.cross_entropy(query_logits.flatten(0, 1), batch["labels"].flatten())
    else:
        expected_loss = F.cross_entropy(expected_logits.flatten(0, 1), scatter_labels(batch).flatten())
    loss, count = model(batch).losses[head]
    (loss / count).backward()
    expected_loss.backward()

    gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
    assert gradients["embed.token.weight"][model.spec.vocabulary :].abs().max() == 0
    reference_parameters = dict(reference.named_parameters())
    exported = export_weights(find_counterpart(model.spec).rules, model.spec, gradients)
    logit_difference = (model.logits(batch)[head][real] - expected_logits[real]).abs().max()
    loss_difference = (loss / count - expected_loss).abs()
    return torch.maximum(logit_difference, loss_difference).item(), max(
        (gradient - _gradient(reference_parameters[name])).abs().max().item() for name, gradient in exported.items()
    )


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def table_gradient(loss: Tensor, table: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, table)
    return gradient


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Assert an absolute difference of at most 1e-5."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-5


def make_random_reference(spec: ModelSpec) -> PreTrainedModel:
    """Return the Hugging Face model with random weights: its initialization plus noise, so that no bias is 0 and no
    norm 1."""
    torch.manual_seed(5)
    counterpart = find_counterpart(spec)
    config = hugging_face_config(spec, **small_ids(counterpart))
    config._attn_implementation = "eager"
    reference = tie_reference(getattr(transformers, counterpart.model)(config), counterpart)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
        if not spec.family.output.tied:
            # Otherwise T5's logits are so large that rounding errors exceed the tolerance.
            reference.get_output_embeddings().weight *= spec.width**-0.5
    reference.load_state_dict(make_zero_parameters(spec), strict=False)
    return reference.eval()


def save_and_import(reference: PreTrainedModel, folder: Path) -> Model:
    reference.save_pretrained(folder)
    imported = from_hugging_face(folder)
    return build_with_weights(imported.spec, imported.weights)
