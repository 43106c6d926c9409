"""Steps whose loss or gradient norm is far above those before are are_spikes, and skipped on all ranks."""

import math
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from megaptm.config import Layout, SpikeConfig
from megaptm.parallel.groups import Ranks
from megaptm.parallel.spikes import MAX_NOT_FINITE, NAME, Spikes
from megaptm.parallel.step_result import DivergedError
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

STEPS, SPIKED = 11, 9
LAYOUTS = {
    "one process": Layout(microbatch=2),
    "TP2xDP2 distributed optimizer": Layout(microbatch=2, tensor=2, data=2, distributed_optimizer=True),
    "PP2": Layout(microbatch=2, pipeline=2),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
}


def build(layout, action):
    spikes = SpikeConfig(action=action, window=16)
    return filled_engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7, spikes=spikes)


def weights(engine):
    return {piece.name: piece.data.clone() for piece in engine.pieces() if piece.name != NAME}


def train_with_spike(layout, action, weight=1000.0):
    """Train with gradients a thousand times as large, or NaN, in one step."""
    engine = build(layout, action)
    results = []
    for step in range(STEPS):
        batches = micro_batches(batch("gpt2", step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        engine.set_loss_weights({"lm": weight if step == SPIKED else 1.0})
        try:
            results.append(engine.train_step(batches, step=step, lr=ADAM.lr))
        except DivergedError as error:
            return str(error), weights(engine)
    return results, weights(engine)


def train_without_step(layout):
    engine = build(layout, "skip-step")
    for step in range(STEPS):
        batches = micro_batches(batch("gpt2", step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        if step == SPIKED:
            engine.spikes.skipped += 1
        else:
            engine.train_step(batches, step=step, lr=ADAM.lr)
    return weights(engine)


@cache
def weights_without_step(layout):
    return run_ranks(layout.processes, train_without_step, layout)


@pytest.mark.parametrize("name", LAYOUTS)
def test_spike_is_skipped_on_all_ranks(name):
    layout = LAYOUTS[name]
    actual = run_ranks(layout.processes, train_with_spike, layout, "skip-step")
    for (results, tensors), expected_tensors in zip(actual, weights_without_step(layout), strict=True):
        assert [result.is_skipped for result in results] == [step == SPIKED for step in range(STEPS)]
        assert "standard deviations above the mean" in results[SPIKED].spike
        assert all(torch.equal(tensors[name], expected_tensors[name]) for name in expected_tensors)


@pytest.mark.parametrize("name", LAYOUTS)
def test_step_with_nan_is_skipped_on_all_ranks(name):
    layout = LAYOUTS[name]
    actual = run_ranks(layout.processes, train_with_spike, layout, "skip-step", math.nan)
    for (results, tensors), expected_tensors in zip(actual, weights_without_step(layout), strict=True):
        assert [result.is_skipped for result in results] == [step == SPIKED for step in range(STEPS)]
        assert results[SPIKED].spike == "loss nan, gradient norm nan"
        assert all(torch.equal(tensors[name], expected_tensors[name]) for name in expected_tensors)


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_step_with_nan_ends_a_run_that_skips_no_steps(action):
    [(message, _)] = run_ranks(1, train_with_spike, LAYOUTS["one process"], action, math.nan)
    assert message.startswith("step 10 was rejected and changed no weight: its loss is nan")


def test_few_consecutive_steps_with_nan_are_skipped():
    spikes = Spikes(SpikeConfig(action="skip-step"))
    assert [spikes.count_not_finite_step() for _ in range(MAX_NOT_FINITE + 1)] == [True] * MAX_NOT_FINITE + [False]
    spikes.find(loss=3.0, gradient_norm=1.0)
    assert spikes.count_not_finite_step()


def test_spike_is_reported_and_trained_by_default():
    [(results, _)] = run_ranks(1, train_with_spike, LAYOUTS["one process"], "warn")
    assert [result.spike is not None for result in results] == [step == SPIKED for step in range(STEPS)]
    assert not any(result.is_skipped for result in results)


def cache_after_spike(action):
    """Return the recurrence cache after a step whose loss is a thousand times as large."""
    spikes = SpikeConfig(action=action, window=16)
    layout = LAYOUTS["one process"]
    losses = losses_of("transformer-xl")
    engine = filled_engine(tiny("transformer-xl"), layout, ADAM, losses=losses, seed=7, spikes=spikes)
    for step in range(SPIKED + 1):
        engine.set_loss_weights({"lm": 1000.0 if step == SPIKED else 1.0})
        result = engine.train_step(micro_batches(batch("transformer-xl", step), layout, 0), step=step, lr=ADAM.lr)
    caches = {piece.name: piece.data for piece in engine.pieces() if piece.name.startswith("memory/")}
    return result.is_skipped, caches


def test_skipped_step_fills_the_recurrence_cache():
    """The next step continues the text of the skipped one."""
    [(is_skipped, skipped)] = run_ranks(1, cache_after_spike, "skip-step")
    [(_, trained)] = run_ranks(1, cache_after_spike, "warn")
    assert is_skipped
    assert skipped.keys() == trained.keys() != set()
    assert all(torch.equal(skipped[name], trained[name]) for name in trained)


def test_spike_may_end_the_run():
    [(message, _)] = run_ranks(1, train_with_spike, LAYOUTS["one process"], "stop")
    assert message.startswith("step 10 was rejected and changed no weight: a spike, loss ")
    assert "(train.spikes.action is stop)" in message


def observe(spikes, losses):
    return [spikes.find(loss=loss, gradient_norm=1.0 + loss / 100) is not None for loss in losses]


NOISE = [3.0 + (17 * step % 11) / 100 for step in range(60)]


@pytest.mark.parametrize("window", [16, 24])
def test_restored_window_finds_the_same_spikes(window):
    config = SpikeConfig(action="skip-step", window=window, sigmas=4.0)
    losses = [*NOISE[:20], 9.0, *NOISE[20:], 3.5]
    uninterrupted = Spikes(config)
    are_spikes = observe(uninterrupted, losses)
    assert [index for index, spike in enumerate(are_spikes) if spike] == [20, len(losses) - 1]
    first = Spikes(config)
    observe(first, losses[:25])
    first.skipped += 1
    [piece] = first.pieces(Ranks(0, 0, 0, 0, 1, 1, 1))
    second = Spikes(config)
    second.restore(SimpleNamespace(names=lambda: [NAME], read=lambda name: piece.data))
    assert observe(second, losses[25:]) == are_spikes[25:]
    assert second.skipped == 1


def test_lasting_change_is_no_spike_for_long():
    are_spikes = observe(Spikes(SpikeConfig(window=16)), [*NOISE, *[loss + 5 for loss in NOISE]])
    assert 1 <= sum(are_spikes) <= 2
