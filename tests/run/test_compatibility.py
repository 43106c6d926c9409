"""What a checkpoint must agree with before it is continued."""

from pathlib import Path

import pytest

from megaptm.checkpoint.store import Checkpoint
from megaptm.errors import UserError
from megaptm.run.compatibility import refuse_other_text


def saved(**corpora):
    return Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state={"corpora": corpora}, files=())


def test_the_same_corpora_are_continued():
    refuse_other_text(saved(books="1", news="2"), {"books": "1", "news": "2"})


@pytest.mark.parametrize("now", [{"books": "1", "news": "3"}, {"books": "1"}])
def test_a_corpus_that_was_built_again_is_refused(now):
    with pytest.raises(UserError, match=r"^news in data\.mix was built again since run/checkpoints/step-00000005"):
        refuse_other_text(saved(books="1", news="2"), now)


def test_an_imported_model_has_read_nothing_yet():
    imported = Checkpoint(step=0, folder=Path("run/checkpoints/step-00000000"), state={}, files=())
    refuse_other_text(imported, {"books": "1"})
