"""ELMo against golden values of the released code: all layers over consecutive batches with recurrent state, and losses
and gradients of training steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.families.elmo import ELMO
from megaptm.families.elmo.bilm import from_bilm, to_bilm
from megaptm.families.elmo.every_layer import all_layer_outputs
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change

GOLDEN = Path(__file__).parents[1] / "golden"
DIRECTIONS = ("forwards", "backwards")
HEAD = "head.bidirectional-lm"
RENAMED = {
    r"rnn/multi_rnn_cell/cell_(\d)/lstm_cell": r"RNN/MultiRNNCell/Cell\1/LSTMCell",
    "/kernel$": "/W_0",
    "/projection/W_0$": "/W_P_0",
    "/bias$": "/B",
}


@cache
def golden(case: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(GOLDEN / f"elmo_{case}.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(str(arrays["options_json"]))


def make_spec(options: Mapping[str, Any]) -> ModelSpec:
    lstm, cnn = options["lstm"], options["char_cnn"]
    block = change(ELMO.last_block, layer={"cell_clip": lstm["cell_clip"], "projection_clip": lstm["proj_clip"]})
    size = Size(
        layers=lstm["n_layers"],
        width=lstm["projection_dim"],
        heads=1,
        ffn=lstm["dim"],
        memory=1,
        inputs={
            "filters": tuple(map(tuple, cnn["filters"])),
            "highway": cnn["n_highway"],
            "character_width": cnn["embedding"]["dim"],
        },
    )
    family = change(ELMO, loss={"negatives": 0}, stacks=dict.fromkeys(DIRECTIONS, block))
    return ModelSpec(family=family, size=size, vocabulary=options.get("n_tokens_vocab", 1), context=20, dropout=0.0)


def convert_tensors(arrays: Mapping[str, np.ndarray], prefix: str, spec: ModelSpec) -> dict[str, Tensor]:
    """Return the released weights or gradients under megaptm's names. `RENAMED` are other cell names in training."""
    tensors = {
        name.removeprefix(prefix): torch.from_numpy(array) for name, array in arrays.items() if name.startswith(prefix)
    }
    for old, new in RENAMED.items():
        tensors = {re.sub(old, new, name): tensor for name, tensor in tensors.items()}
    weights, pad = from_bilm(tensors, spec), spec.padded_vocabulary - spec.vocabulary
    if "softmax/W" in tensors:
        weights[f"{HEAD}.table.weight"] = F.pad(tensors["softmax/W"], (0, 0, 0, pad))
        weights[f"{HEAD}.vocabulary.bias"] = F.pad(tensors["softmax/b"], (0, pad))
    return weights


def build_released(arrays: Mapping[str, np.ndarray], spec: ModelSpec) -> Model:
    """Build a model with the released weights. A head that the file lacks is zero."""
    model = Model(spec)
    head = {f"{HEAD}.table.weight": torch.zeros(128, spec.size.width), f"{HEAD}.vocabulary.bias": torch.zeros(128)}
    model.load_state_dict(head | convert_tensors(arrays, "weight/", spec))
    return model


def check_states(arrays: Mapping[str, np.ndarray], prefix: str, caches: Mapping[str, StackRecurrenceCache]) -> None:
    for stack, released_name in zip(DIRECTIONS, ("forward", "backward"), strict=True):
        for layer, state_1BF in caches[stack].states.items():
            expected = np.concatenate([arrays[f"{prefix}/{released_name}/{layer}/{part}"] for part in "hc"], -1)
            assert_close(state_1BF[0], expected)


def assert_close(actual: Tensor, expected: np.ndarray, *, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.from_numpy(np.asarray(expected)), rtol=rtol, atol=1e-5)


def test_layers_and_states_of_consecutive_batches_equal_released_code() -> None:
    """Texts have different lengths, the last batch is smaller, and both clips have an effect."""
    arrays, options = golden("inference")
    model = build_released(arrays, make_spec(options)).eval()
    caches = model.empty_caches(4)
    for index in range(3):
        characters = torch.from_numpy(arrays[f"batch/{index}/char_ids"])
        lengths = (characters > 0).any(-1).sum(-1)
        size = len(lengths)
        batch_caches = {
            stack: StackRecurrenceCache(
                {layer: state[:, :size] for layer, state in stack_cache.states.items()}, stack_cache.filled[:size]
            )
            for stack, stack_cache in caches.items()
        }
        with torch.no_grad():
            layers = all_layer_outputs(model, characters, lengths, caches=batch_caches)
        for sample, length in enumerate(lengths.tolist()):  # the released code omits the first and last position
            expected = arrays[f"batch/{index}/layers"][sample, :, : length - 2]
            assert_close(layers[:, sample, 1 : length - 1], expected)
        for stack, stack_cache in batch_caches.items():  # samples that the batch lacks keep their state
            for layer, state in stack_cache.after_sequence().states.items():
                caches[stack].states[layer][:, :size] = state
            caches[stack].filled[:size] = 1
        check_states(arrays, f"batch/{index}/state_after", caches)


def run_training_steps() -> tuple[Model, list[Tensor], list[dict[str, StackRecurrenceCache]]]:
    arrays, options = golden("training")
    model = build_released(arrays, make_spec(options))
    caches, losses, states = model.empty_caches(2), [], []
    for step in range(3):
        batch = {}
        inputs = (torch.from_numpy(arrays[f"step/{step}/{name}"]) for name in ("char_ids", "targets"))
        for prefix, characters, labels in zip(("", "backwards_"), *inputs, strict=True):
            # Character ids of the training code do not include padding.
            fields = {"tokens": labels.long(), "characters": characters + 1, "labels": labels.long()}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        total, count = model(batch, caches=caches).losses["bidirectional-lm"]
        losses.append(total / count)
        caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
        states.append(caches)
    return model, losses, states


def differences() -> tuple[float, float]:
    """Return the largest absolute difference of losses, and of gradients of the second step."""
    arrays, options = golden("training")
    model, losses, _ = run_training_steps()
    loss_differences = [abs(loss.item() - float(arrays[f"step/{step}/total_loss"])) for step, loss in enumerate(losses)]
    (losses[1] * options["unroll_steps"]).backward()
    expected = convert_tensors(arrays, "step/1/grad/", model.spec)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return max(loss_differences), max(
        (gradients[name] - gradient).abs().max().item() for name, gradient in expected.items()
    )


def test_losses_states_and_gradients_of_training_equal_released_code() -> None:
    arrays, options = golden("training")
    model, losses, states = run_training_steps()
    for step in range(3):
        assert_close(losses[step], arrays[f"step/{step}/total_loss"])
        check_states(arrays, f"step/{step}/state", states[step])
    # The released gradient is that of the loss times the number of unrolled steps.
    (losses[1] * options["unroll_steps"]).backward()
    expected = convert_tensors(arrays, "step/1/grad/", model.spec)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(gradients[name], gradient.numpy(), rtol=1e-4)


def test_released_file_is_imported_and_exported() -> None:
    arrays, options = golden("inference")
    released = {
        name.removeprefix("weight/"): torch.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith("weight/")
    }
    spec = make_spec(options)
    exported = to_bilm(from_bilm(released, spec), spec)
    assert exported.keys() == released.keys()
    assert all(exported[name].equal(tensor) for name, tensor in released.items())
