"""ELMo against the released code, by the golden files: every layer over batches whose states go on, losses and
gradients of a training step with carried states."""

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
from megaptm.layers.past import Past
from megaptm.models import Model, build_model
from megaptm.models.every_layer import every_layer
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


def spec_of(options: Mapping[str, Any]) -> ModelSpec:
    lstm, cnn = options["lstm"], options["char_cnn"]
    block = change(ELMO.last_block, recurrent={"cell_clip": lstm["cell_clip"], "projection_clip": lstm["proj_clip"]})
    size = Size(
        layers=lstm["n_layers"],
        width=lstm["projection_dim"],
        heads=1,
        ffn=lstm["dim"],
        memory=1,
        filters=tuple(map(tuple, cnn["filters"])),
        highway=cnn["n_highway"],
        character_width=cnn["embedding"]["dim"],
    )
    family = change(ELMO, negatives=0, stacks=dict.fromkeys(DIRECTIONS, block))
    return ModelSpec(family=family, size=size, vocabulary=options.get("n_tokens_vocab", 1), context=20, dropout=0.0)


def weights_of(arrays: Mapping[str, np.ndarray], prefix: str, spec: ModelSpec) -> dict[str, Tensor]:
    """Their weights, or gradients of them, under our names; those of training have other names of cells."""
    tensors = {
        name.removeprefix(prefix): torch.from_numpy(one) for name, one in arrays.items() if name.startswith(prefix)
    }
    for old, new in RENAMED.items():
        tensors = {re.sub(old, new, name): tensor for name, tensor in tensors.items()}
    found, pad = from_bilm(tensors, spec), spec.padded_vocabulary - spec.vocabulary
    if "softmax/W" in tensors:
        found[f"{HEAD}.table.weight"] = F.pad(tensors["softmax/W"], (0, 0, 0, pad))
        found[f"{HEAD}.vocabulary.bias"] = F.pad(tensors["softmax/b"], (0, pad))
    return found


def model_of(arrays: Mapping[str, np.ndarray], spec: ModelSpec) -> Model:
    model = build_model(spec)
    weights = weights_of(arrays, "weight/", spec)
    blank = {f"{HEAD}.table.weight": torch.zeros(128, spec.size.width), f"{HEAD}.vocabulary.bias": torch.zeros(128)}
    model.load_state_dict(blank | weights)
    return model


def check_states(arrays: Mapping[str, np.ndarray], prefix: str, pasts: Mapping[str, Past]) -> None:
    for stack, theirs in zip(DIRECTIONS, ("forward", "backward"), strict=True):
        for layer, state_1BF in pasts[stack].states.items():
            expected = np.concatenate([arrays[f"{prefix}/{theirs}/{layer}/{part}"] for part in "hc"], -1)
            assert_close(state_1BF[0], expected)


def assert_close(ours: Tensor, theirs: np.ndarray, *, rtol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(np.asarray(theirs)), rtol=rtol, atol=1e-5)


def test_every_layer_of_batches_whose_states_go_on() -> None:
    """Rows of many lengths, of which the last batch has fewer; both clips act."""
    arrays, options = golden("inference")
    model = model_of(arrays, spec_of(options)).eval()
    pasts = model.empty_pasts(4)
    for number in range(3):
        characters = torch.from_numpy(arrays[f"batch/{number}/char_ids"])
        lengths = (characters > 0).any(-1).sum(-1)
        rows = len(lengths)
        mine = {
            stack: Past({layer: state[:, :rows] for layer, state in past.states.items()}, past.filled[:rows])
            for stack, past in pasts.items()
        }
        with torch.no_grad():
            said = every_layer(model, characters, lengths, pasts=mine)
        for row, length in enumerate(lengths.tolist()):  # theirs lacks both ends
            expected = arrays[f"batch/{number}/layers"][row, :, : length - 2]
            assert_close(said[:, row, 1 : length - 1], expected)
        for stack, past in mine.items():  # rows past the batch keep theirs
            moved = past.moved_on()
            for layer, state in moved.states.items():
                pasts[stack].states[layer][:, :rows] = state
            pasts[stack].filled[:rows] = 1
        check_states(arrays, f"batch/{number}/state_after", pasts)


def training_losses() -> tuple[Model, list[Tensor], list[dict[str, Past]]]:
    arrays, options = golden("training")
    model = model_of(arrays, spec_of(options))
    pasts, losses, states = model.empty_pasts(2), [], []
    for step in range(3):
        batch = {}
        both = (torch.from_numpy(arrays[f"step/{step}/{name}"]) for name in ("char_ids", "targets"))
        for prefix, characters, labels in zip(("", "backwards_"), *both, strict=True):
            # Ids of training lack that of what stands behind a text.
            fields = {"tokens": labels.long(), "characters": characters + 1, "labels": labels.long()}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        total, count = model(batch, pasts=pasts).losses["bidirectional-lm"]
        losses.append(total / count)
        pasts = {stack: past.moved_on() for stack, past in pasts.items()}
        states.append(pasts)
    return model, losses, states


def differences() -> tuple[float, float]:
    """The largest of a loss, and of a gradient of a step that goes on where another ended."""
    arrays, options = golden("training")
    model, losses, _ = training_losses()
    gaps = [abs(loss.item() - float(arrays[f"step/{step}/total_loss"])) for step, loss in enumerate(losses)]
    (losses[1] * options["unroll_steps"]).backward()
    expected = weights_of(arrays, "step/1/grad/", model.spec)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return max(gaps), max((gradients[name] - theirs).abs().max().item() for name, theirs in expected.items())


def test_losses_states_and_every_gradient_of_steps_in_training() -> None:
    arrays, options = golden("training")
    model, losses, states = training_losses()
    for step in range(3):
        assert_close(losses[step], arrays[f"step/{step}/total_loss"])
        check_states(arrays, f"step/{step}/state", states[step])
    # Theirs is of the loss times the steps that are unrolled.
    (losses[1] * options["unroll_steps"]).backward()
    expected = weights_of(arrays, "step/1/grad/", model.spec)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, theirs in expected.items():
        assert_close(gradients[name], theirs.numpy(), rtol=1e-4)


def test_their_file_and_back() -> None:
    arrays, options = golden("inference")
    theirs = {
        name.removeprefix("weight/"): torch.from_numpy(one)
        for name, one in arrays.items()
        if name.startswith("weight/")
    }
    spec = spec_of(options)
    found = to_bilm(from_bilm(theirs, spec), spec)
    assert found.keys() == theirs.keys()
    assert all(found[name].equal(one) for name, one in theirs.items())
