"""A step whose loss or gradient is not finite on any process is refused on all, before it changes anything."""

import math
from itertools import product

import pytest

from megaptm.batch import IGNORED
from megaptm.config import Layout
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

LAYOUTS = {
    "one": Layout(microbatch=2),
    "TP2": Layout(microbatch=2, tensor=2),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}

# Of the first, tensor ranks hold a copy each: the norm of the gradient is that of rank 0's. The second is divided.
PARAMETERS = ("decoder.3.ffn_norm.weight", "decoder.3.ffn.down.weight")
POISONS = list(product(PARAMETERS, (math.nan, math.inf)))


def train(layout, precision, poisons):
    """Loss and norm of three steps; and what was said of those tried between them, one for each poison.

    A poison is put into one number of a gradient of the last process.
    """
    from megaptm.parallel.engine import DivergedError, Engine

    engine = Engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7, precision=precision)
    parameters = {place.name: value for stage in engine.stages for place, value in stage.placed_parameters()}
    results, said = [], []

    def step(number):
        batches = micro_batches(batch("gpt2", number), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        return engine.step(batches, step=number, lr=ADAM.lr)

    for number in range(3):
        for name, poison in poisons if number == 1 else []:
            handle = None
            if engine.ranks.world == layout.processes - 1:
                handle = parameters[name].register_hook(lambda gradient, poison=poison: poisoned(gradient, poison))
            try:
                step(number)
            except DivergedError as error:
                said.append(str(error))
            if handle is not None:
                handle.remove()
        result = step(number)
        results.append((result.loss, result.gradient_norm))
    return results, said


def poisoned(gradient, poison):
    gradient = gradient.clone()
    gradient.view(-1)[3] = poison
    return gradient


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in LAYOUTS), ("DP2 distributed optimizer", "bf16"), ("TP2", "bf16")],
)
def test_one_bad_number_in_one_gradient_changes_nothing_anywhere(name, precision):
    layout = LAYOUTS[name]
    clean = [results for results, _ in run_ranks(layout.processes, train, layout, precision, [])]
    told = run_ranks(layout.processes, train, layout, precision, POISONS)
    assert [results for results, _ in told] == clean
    for _, sentences in told:
        assert len(sentences) == len(POISONS)
        for sentence in sentences:
            assert sentence.startswith("step 2 was refused before it changed a weight: its loss is 5.")
            assert "norm of its gradient nan" in sentence or "norm of its gradient inf" in sentence


def asked_nothing(layout):
    """What is said of a step without a label, and whether it changed a weight."""
    import torch

    from megaptm.parallel.engine import Engine, NothingAskedError

    engine = Engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7)
    before = [value.clone() for stage in engine.stages for value in stage.parameters()]
    whole = batch("gpt2", 0)
    silent = whole | {"labels": torch.full_like(whole["labels"], IGNORED)}
    with pytest.raises(NothingAskedError) as caught:
        engine.step(micro_batches(silent, layout, engine.ranks.data), step=3, lr=ADAM.lr)
    after = [value for stage in engine.stages for value in stage.parameters()]
    return str(caught.value), all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", ["one", "PP2"])
def test_a_step_in_which_nothing_is_asked_is_refused(name):
    layout = LAYOUTS[name]
    for said, same in run_ranks(layout.processes, asked_nothing, layout):
        assert said.startswith("step 4 was refused before it changed a weight: nothing is asked in it")
        assert same
