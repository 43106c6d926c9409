"""Training loop: validation whose data fail, that a stop ends, and that is made up for."""

import errno
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from megaptm.errors import UserError
from megaptm.resilience.events import (
    BackEvent,
    ChangeEvent,
    CheckpointEvent,
    LateValidationEvent,
    record_events,
)
from megaptm.resilience.signals import StopError
from megaptm.run.held_out import HeldOutLoss, find_late_validation
from megaptm.train import loop
from megaptm.train.early_stop import EarlyStop


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (IsADirectoryError(errno.EISDIR, "Is a directory", "held-out.tar"), r"held-out\.tar cannot be used"),
        (OSError(errno.EIO, "Input/output error"), "a corpus cannot be used"),
        (RuntimeError("a mistake of ours"), "a mistake of ours"),
    ],
)
def test_unreadable_validation_data_is_returned_as_an_error(monkeypatch, error, message):
    def held_out(name):
        raise error

    monkeypatch.setattr(loop, "any_rank", bool)
    stop = SimpleNamespace(interrupt_waits=nullcontext)
    run = SimpleNamespace(
        during=lambda phase: nullcontext(),
        stop=stop,
        validation_batches=held_out,
        engine=SimpleNamespace(losses={}),
        end=9,
    )
    result = loop._validate(run, 5, None)
    assert isinstance(result, UserError if isinstance(error, OSError) else RuntimeError)
    with pytest.raises(type(result), match=message):
        raise result


@pytest.mark.parametrize("fails_here", [True, False])
def test_unreadable_batch_ends_validation_on_all_ranks(monkeypatch, fails_here):
    """Batches before it are evaluated, one at a time."""

    def held_out(name):
        yield from "ab"
        if fails_here:
            raise UserError("c is damaged")
        yield "c"

    flags, evaluated = [], []
    monkeypatch.setattr(loop, "any_rank", lambda own: flags.append(own) or len(flags) == 3)
    engine = SimpleNamespace(
        losses={"lm": 1.0},
        evaluate=lambda batch: evaluated.append(batch) or SimpleNamespace(losses={"lm": 1.0}, counts={"lm": 1}),
    )
    stop = SimpleNamespace(interrupt_waits=nullcontext, requested=False, seconds=-1.0)
    run = SimpleNamespace(
        during=lambda phase: nullcontext(), stop=stop, validation_batches=held_out, engine=engine, end=9
    )
    result = loop._validate(run, 5, None)
    assert (str(result) == "c is damaged") if fails_here else result is None
    assert flags == [False, False, fails_here]
    assert evaluated == ["a", "b"]


@pytest.mark.parametrize(("may_stop", "batches"), [(True, ["a"]), (False, ["a", "b"])])
def test_stop_ends_a_validation_that_a_later_job_makes_up_for(monkeypatch, may_stop, batches):
    """The validation of the last step goes on: the run is complete afterwards."""
    monkeypatch.setattr(loop, "any_rank", bool)
    stop = SimpleNamespace(interrupt_waits=nullcontext, requested=False, seconds=-1.0)
    run = SimpleNamespace(stop=stop, validation_batches=lambda name: iter("ab"))
    read = []
    with pytest.raises(loop._UnreadableError) if may_stop else nullcontext() as caught:
        for batch in loop._validation_batches(run, "", None, may_stop=may_stop):
            read.append(batch)
            stop.requested, stop.seconds = True, 60.0
    assert read == batches
    assert caught is None or isinstance(caught.value.own, StopError)


def resume(monkeypatch, losses, *, end, stops=False, late=None):
    """Continue a run at step 4 with these validation losses; return exit code, calls and weights of losses. `late`:
    losses that an earlier job measured."""
    calls, weights = [], []
    monkeypatch.setattr(loop, "any_rank", bool)
    monkeypatch.setattr(loop, "any_rank_each", lambda *own: own)
    monkeypatch.setattr(loop, "all_gather_object", lambda own: [own])
    monkeypatch.setattr(loop, "loss_weights_at", lambda objective, step: {"lm": float(step)})
    monkeypatch.setattr(loop, "_read_step", lambda run, step: (None, None))
    monkeypatch.setattr(loop, "_validate", lambda run, step, error: calls.append(f"validate {step}"))
    monkeypatch.setattr(loop, "_save_checkpoint", lambda run, step, wait: calls.append(f"save {step}"))
    run = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(validate_every=2)),
        end=end,
        objective=None,
        engine=SimpleNamespace(set_loss_weights=weights.append),
        during=lambda phase: nullcontext(),
        checkpointer=SimpleNamespace(
            early_stop=EarlyStop(None),
            held_out=HeldOutLoss(losses=losses),
            find_late_validation=lambda step: late,
            record_late_validation=lambda step: calls.append(f"record {step}"),
        ),
        callbacks=SimpleNamespace(
            take_error=lambda: None,
            take_requests=lambda: (stops, False),
            validation=lambda means: calls.append(f"use {means['loss']}"),
        ),
    )
    return loop.run_training_loop(run, start=4), calls, weights


@pytest.mark.parametrize("losses", [{}, {"loss": {2: 2.0}}])
def test_complete_run_without_its_last_validation_makes_up_for_it(monkeypatch, losses):
    code, calls, weights = resume(monkeypatch, losses, end=4)
    assert (code, calls) == (0, ["validate 4", "record 4", "save 4"])
    assert weights == [{"lm": 3.0}], "those of the last step"


def test_complete_run_with_its_last_validation_does_nothing(monkeypatch):
    assert resume(monkeypatch, {"loss": {4: 2.0}}, end=4) == (0, [], [])


def test_stop_that_a_late_validation_requests_comes_before_the_next_step(monkeypatch):
    code, calls, _ = resume(monkeypatch, {}, end=9, stops=True)
    assert (code, calls) == (0, ["validate 4", "record 4", "save 4"])


def test_late_validation_of_an_earlier_job_is_not_repeated(monkeypatch):
    losses = {}
    code, calls, _ = resume(monkeypatch, losses, end=4, late={"loss": 2.5, "news/loss": math.inf})
    assert (code, calls) == (0, ["use 2.5", "save 4"])
    assert losses == {"loss": {4: 2.5}}


def late(**fields):
    return LateValidationEvent(**{"step": 4, "losses": {"loss": 2.5}, "recipes": {"": "aa"}, **fields})


LATE, SAVED = late(), CheckpointEvent(step=4, bytes=1, seconds=0.1)


@pytest.mark.parametrize(
    ("events", "is_found"),
    [
        ([LATE], True),
        ([SAVED, LATE], True),
        ([LATE, SAVED], False),
        ([LATE, BackEvent(step=2, from_step=4)], False),
        ([LATE, ChangeEvent(step=2, before={}, after={})], False),
        ([late(step=6)], False),
        ([late(recipes={"": "bb"})], False),
        ([late(losses={"loss": "2.5"})], False),
        ([late(losses=[2.5])], False),
        ([], False),
    ],
)
def test_late_validation_is_that_of_the_present_checkpoint(tmp_path, events, is_found):
    record_events(tmp_path, *events)
    assert find_late_validation(tmp_path, 4, {"": "aa"}) == ({"loss": 2.5} if is_found else None)
