"""fp16 with a dynamic loss scale: a step with infinite gradients on one process is skipped on all."""

import math
from functools import cache

import pytest
import torch

from megaptm.config import Layout, LossScaleConfig
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.layouts.test_diverged import LAYOUTS, PARAMETERS, poisoned
from tests.ranks import run_ranks

STEPS = 5
WHOLE = "PP2xDP2 distributed optimizer"
POISONED = 1
"""Step in which one element of a gradient is infinite on the last process."""


def build(layout, **options):
    spec = tiny("gpt2")
    scale = LossScaleConfig(**options)
    return filled_engine(spec, layout, ADAM, losses=losses_of("gpt2"), seed=7, precision="fp16", loss_scale=scale)


def train_step(engine, layout, step):
    batches = micro_batches(batch("gpt2", step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    return engine.train_step(batches, step=step, lr=ADAM.lr)


def train_poisoned(layout, name, poison):
    engine = build(layout)
    parameters = {
        placement.name: value for stage in engine.model.stages for placement, value in stage.placed_parameters()
    }
    results = []
    for step in range(STEPS):
        handle = None
        if step == POISONED and engine.ranks.world == layout.processes - 1:
            handle = parameters[name].register_hook(lambda gradient: poisoned(gradient, poison))
        results.append(train_step(engine, layout, step))
        if handle is not None:
            handle.remove()
    return results, weights(engine)


def train_without_step(layout):
    engine = build(layout)
    results = []
    for step in range(STEPS):
        if step == POISONED:
            assert engine.loss_scale.skip()
        else:
            results.append(train_step(engine, layout, step))
    return results, weights(engine)


@cache
def results_without_step(layout):
    return run_ranks(layout.processes, train_without_step, layout)


def weights(engine):
    return {piece.name: piece.data.clone() for piece in engine.pieces()}


@pytest.mark.parametrize(
    ("layout", "poison"),
    [
        *((name, math.inf) for name in LAYOUTS),
        *(pytest.param(name, math.nan, marks=[] if name == WHOLE else pytest.mark.drill) for name in LAYOUTS),
    ],
)
def test_infinite_gradient_on_one_rank_skips_the_step_on_all(layout, poison):
    layout = LAYOUTS[layout]
    expected = results_without_step(layout)
    actual = run_ranks(layout.processes, train_poisoned, layout, PARAMETERS[1], poison)
    for (results, tensors), (expected_results, expected_tensors) in zip(actual, expected, strict=True):
        assert [result.is_skipped for result in results] == [step == POISONED for step in range(STEPS)]
        assert [result.loss_scale for result in results] == [65536.0, 65536.0, *[32768.0] * (STEPS - 2)]
        assert [result for result in results if not result.is_skipped] == expected_results
        assert tensors.keys() == expected_tensors.keys()
        assert all(torch.equal(tensors[name], expected_tensors[name]) for name in tensors)


def scales_of_steps(initial, steps, growth_steps):
    engine = build(Layout(microbatch=2), initial=initial, growth_steps=growth_steps)
    return [train_step(engine, Layout(microbatch=2), step).loss_scale for step in range(steps)]


def test_scale_doubles_after_steps_without_infinite_gradients():
    [scales] = run_ranks(1, scales_of_steps, 16.0, 7, 3)
    assert scales == [16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0]


def diverged_message():
    from megaptm.parallel.step_result import DivergedError

    engine = build(Layout(microbatch=2), initial=2.0)
    [parameter] = [
        value
        for stage in engine.model.stages
        for placement, value in stage.placed_parameters()
        if placement.name == PARAMETERS[1]
    ]
    parameter.register_hook(lambda gradient: poisoned(gradient, math.inf))
    first = train_step(engine, Layout(microbatch=2), 0)
    try:
        train_step(engine, Layout(microbatch=2), 1)
    except DivergedError as error:
        return first.is_skipped, str(error)
    return first.is_skipped, ""


def test_infinite_gradient_at_the_minimum_scale_is_an_error():
    [(is_first_skipped, message)] = run_ranks(1, diverged_message)
    assert is_first_skipped
    assert message.startswith("step 2 was rejected and changed no weight: its loss is ")
