"""The loop, where something outside of it fails."""

import errno
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from megaptm.errors import UserError
from megaptm.train import loop


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (IsADirectoryError(errno.EISDIR, "Is a directory", "held-out.tar"), r"held-out\.tar cannot be used"),
        (OSError(errno.EIO, "Input/output error"), "a corpus cannot be used"),
        (RuntimeError("a mistake of ours"), "a mistake of ours"),
    ],
)
def test_what_held_out_text_cannot_be_read_for_is_told_when_the_steps_before_are_saved(monkeypatch, error, said):
    def held_out():
        raise error

    monkeypatch.setattr(loop, "any_rank", bool)
    stop = SimpleNamespace(ends_waiting=nullcontext)
    run = SimpleNamespace(
        during=lambda phase: nullcontext(), stop=stop, held_out=held_out, engine=SimpleNamespace(losses={})
    )
    found = loop._validate(run, 5, None)
    assert isinstance(found, UserError if isinstance(error, OSError) else RuntimeError)
    with pytest.raises(type(found), match=said):
        raise found


@pytest.mark.parametrize("mine", [True, False])
def test_a_batch_that_cannot_be_read_ends_a_validation_on_all_ranks(monkeypatch, mine):
    """What was read before it is measured, and none of it is held."""

    def held_out():
        yield from "ab"
        if mine:
            raise UserError("c is damaged")
        yield "c"

    told, evaluated = [], []
    monkeypatch.setattr(loop, "any_rank", lambda own: told.append(own) or len(told) == 3)
    engine = SimpleNamespace(
        losses={"lm": 1.0},
        evaluate=lambda batch: evaluated.append(batch) or SimpleNamespace(losses={"lm": 1.0}, counts={"lm": 1}),
    )
    stop = SimpleNamespace(ends_waiting=nullcontext, requested=False)
    run = SimpleNamespace(during=lambda phase: nullcontext(), stop=stop, held_out=held_out, engine=engine)
    found = loop._validate(run, 5, None)
    assert (str(found) == "c is damaged") if mine else found is None
    assert (told, evaluated) == ([False, False, mine], ["a", "b"])
