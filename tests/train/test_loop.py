"""Training loop with failing validation data."""

import errno
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from megaptm.errors import UserError
from megaptm.train import loop


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
        during=lambda phase: nullcontext(), stop=stop, validation_batches=held_out, engine=SimpleNamespace(losses={})
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
    stop = SimpleNamespace(interrupt_waits=nullcontext, requested=False)
    run = SimpleNamespace(during=lambda phase: nullcontext(), stop=stop, validation_batches=held_out, engine=engine)
    result = loop._validate(run, 5, None)
    assert (str(result) == "c is damaged") if fails_here else result is None
    assert flags == [False, False, fails_here]
    assert evaluated == ["a", "b"]
