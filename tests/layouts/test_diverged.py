"""A step whose loss or gradient is not finite on one process is rejected on all, before it changes anything."""

import math
from contextlib import contextmanager, nullcontext
from itertools import product
from unittest.mock import patch

import pytest

from megaptm.batch import IGNORED
from megaptm.config import Layout
from megaptm.layers import accumulate
from megaptm.parallel import gradients
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

LAYOUTS = {
    "one": Layout(microbatch=2),
    "TP2": Layout(microbatch=2, tensor=2),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}

# Tensor ranks replicate the first parameter, and only rank 0 counts it in the norm. They divide the second.
PARAMETERS = ("decoder.3.ffn_norm.weight", "decoder.3.ffn.down.weight")
POISONS = list(product(PARAMETERS, (math.nan, math.inf)))


def train(layout, precision, poisons):
    """Return loss and norm of three steps, and the messages of rejected steps between them, one per poison.

    A poison replaces one element of a gradient on the last process.
    """
    from megaptm.parallel.step_result import DivergedError

    engine = filled_engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7, precision=precision)
    parameters = {
        placement.name: value for stage in engine.model.stages for placement, value in stage.placed_parameters()
    }
    results, messages = [], []

    def step(number):
        batches = micro_batches(batch("gpt2", number), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        return engine.train_step(batches, step=number, lr=ADAM.lr)

    for number in range(3):
        for name, poison in poisons if number == 1 else []:
            is_last = engine.ranks.world == layout.processes - 1
            with poisoned_gradient(parameters[name], poison) if is_last else nullcontext():
                try:
                    step(number)
                except DivergedError as error:
                    messages.append(str(error))
        result = step(number)
        results.append((result.loss, result.gradient_norm))
    return results, messages


@contextmanager
def poisoned_gradient(parameter, poison):
    """Replace an element of each gradient of a parameter, whether autograd computes it or its module adds it."""
    add_product = accumulate.add_product

    def add_and_poison(total, *factors):
        add_product(total, *factors)
        if total.data_ptr() == parameter.main_grad.data_ptr():
            total.view(-1)[3] = poison

    handle = parameter.register_hook(lambda gradient: None if gradient is None else poisoned(gradient, poison))
    with (
        patch.object(accumulate, "add_product", add_and_poison),
        patch.object(gradients, "add_product", add_and_poison),
    ):
        yield
    handle.remove()


def poisoned(gradient, poison):
    gradient = gradient.clone()
    gradient.view(-1)[3] = poison
    return gradient


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp32") for name in LAYOUTS),
        ("DP2 distributed optimizer", "bf16"),
        pytest.param("TP2", "bf16", marks=pytest.mark.drill),
    ],
)
def test_nonfinite_gradient_on_one_rank_is_rejected_on_all(name, precision):
    layout = LAYOUTS[name]
    clean = [results for results, _ in run_ranks(layout.processes, train, layout, precision, [])]
    with_poison = run_ranks(layout.processes, train, layout, precision, POISONS)
    assert [results for results, _ in with_poison] == clean
    for _, messages in with_poison:
        assert len(messages) == len(POISONS)
        for sentence in messages:
            assert sentence.startswith("step 2 was rejected and changed no weight: its loss is 5.")
            assert "gradient norm is nan" in sentence or "gradient norm is inf" in sentence


def step_without_labels(layout):
    """Return the message of a step without labels, and whether the weights are unchanged."""
    import torch

    from megaptm.parallel.step_result import NoLabelsError

    engine = filled_engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7)
    before = [value.clone() for stage in engine.model.stages for value in stage.parameters()]
    fields = batch("gpt2", 0)
    unlabeled = fields | {"labels": torch.full_like(fields["labels"], IGNORED)}
    with pytest.raises(NoLabelsError) as caught:
        engine.train_step(micro_batches(unlabeled, layout, engine.ranks.data), step=3, lr=ADAM.lr)
    after = [value for stage in engine.model.stages for value in stage.parameters()]
    return str(caught.value), all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", ["one", "PP2"])
def test_step_without_labels_is_rejected(name):
    layout = LAYOUTS[name]
    for message, is_unchanged in run_ranks(layout.processes, step_without_labels, layout):
        assert message.startswith("step 4 was rejected and changed no weight: no sample has a label")
        assert is_unchanged
