"""What is read and what is said of a document in one row, for a decoder alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import SampleContext
from tests.objectives.samples import SPECIAL, random_slice, split_documents

TASKS = ("span-corruption", "prefix-lm", "masked-text", "deshuffling", "dropped-tokens")
END = SPECIAL.end


def both(task: str, **options: object) -> tuple:
    """The task in two rows, and in one."""
    return build_objective({task: options}), build_objective({task: options | {"joined": True}})


@pytest.mark.parametrize("task", TASKS)
def test_a_document_is_read_and_said_as_in_two_rows(task: str) -> None:
    apart, joined = both(task)
    length = 60
    two = apart.make([random_slice(length)], SampleContext(SPECIAL, np.random.default_rng(3), 512, True))
    one = joined.make([random_slice(length)], SampleContext(SPECIAL, np.random.default_rng(3), 512, True))
    joined.batch(512, True).check(one, maker=task)
    [read], [said] = split_documents(two), split_documents(two, "labels", "decoder_document_ids")
    assert split_documents(one) == [[*read, *said[:-1]]]
    assert split_documents(one, "labels") == [[*[IGNORED] * (len(read) - 1), *said]]
    assert read[-1] == said[-1] == END


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("document_mask", [True, False])
def test_a_row_is_as_full_as_its_texts_make_it(task: str, document_mask: bool) -> None:
    _, joined = both(task)
    for sequence in (64, 65, 200):
        raw = joined.cut(sequence, document_mask).stride
        assert joined.joined_length(raw) <= sequence < joined.joined_length(raw + 1)
        whole = joined.make(
            [random_slice(raw)], SampleContext(SPECIAL, np.random.default_rng(0), sequence, document_mask)
        )
        assert (whole["document_ids"] > 0).sum() >= (0.5 if task == "prefix-lm" else 0.9) * sequence
        several = [random_slice(raw // 4, seed=number) for number in range(4)]
        made = joined.make(several, SampleContext(SPECIAL, np.random.default_rng(0), sequence, document_mask))
        joined.batch(sequence, document_mask).check(made, maker=task)
        assert made["document_ids"].max() in ((3, 4) if document_mask else (1,))


def test_each_document_has_its_own_places_and_asks_nothing_of_what_is_read() -> None:
    _, joined = both("span-corruption")
    made = joined.make(
        [random_slice(30), random_slice(40, seed=1)], SampleContext(SPECIAL, np.random.default_rng(0), 128, True)
    )
    for number in (1, 2):
        own = made["document_ids"] == number
        assert made["positions"][own].tolist() == [*range(own.sum())]
        tokens, labels = made["tokens"][own], made["labels"][own]
        first = int(np.flatnonzero(labels != IGNORED)[0])
        assert tokens[first] == END  # which says that the answer begins
        assert (labels[first:-1] == tokens[first + 1 :]).all()
        assert labels[-1] == END


def test_a_vocabulary_of_a_decoder_has_no_padding() -> None:
    bare = replace(SPECIAL, pad=None)
    _, joined = both("span-corruption")
    joined.check(bare, 64)
    made = joined.make([random_slice(20)], SampleContext(bare, np.random.default_rng(0), 64, True))
    assert (made["tokens"][made["document_ids"] == 0] == END).all()
    assert (made["labels"][made["document_ids"] == 0] == IGNORED).all()
    assert OBJECTIVES["span-corruption"].required_tokens == ("pad", "end")
