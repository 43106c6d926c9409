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
    run = SimpleNamespace(during=lambda phase: nullcontext(), stop=stop, held_out=held_out)
    found = loop._validate(run, 5, None)
    assert isinstance(found, UserError if isinstance(error, OSError) else RuntimeError)
    with pytest.raises(type(found), match=said):
        raise found
