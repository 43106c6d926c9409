"""Encoder-decoder objectives with `joined: true`: input and target in one sequence of a decoder-only model."""

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


def build_pair(task: str, **options: object) -> tuple:
    """Return the objective with two sequences, and with one."""
    return build_objective({task: options}), build_objective({task: options | {"joined": True}})


@pytest.mark.parametrize("task", TASKS)
def test_joined_document_is_input_then_target(task: str) -> None:
    separate, joined = build_pair(task)
    length = 60
    sample = separate.make_sample([random_slice(length)], SampleContext(SPECIAL, np.random.default_rng(3), 512, True))
    joined_sample = joined.make_sample(
        [random_slice(length)], SampleContext(SPECIAL, np.random.default_rng(3), 512, True)
    )
    joined.batch_spec(512, True).check(joined_sample, maker=task)
    [source], [target] = split_documents(sample), split_documents(sample, "labels", "decoder_document_ids")
    assert split_documents(joined_sample) == [[*source, *target[:-1]]]
    assert split_documents(joined_sample, "labels") == [[*[IGNORED] * (len(source) - 1), *target]]
    assert source[-1] == target[-1] == END


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("document_mask", [True, False])
def test_joined_samples_are_full(task: str, document_mask: bool) -> None:
    _, joined = build_pair(task)
    for sequence in (64, 65, 200):
        raw = joined.sequence_window(sequence, document_mask).stride
        assert joined.joined_length(raw) <= sequence < joined.joined_length(raw + 1)
        sample = joined.make_sample(
            [random_slice(raw)], SampleContext(SPECIAL, np.random.default_rng(0), sequence, document_mask)
        )
        assert (sample["document_ids"] > 0).sum() >= (0.5 if task == "prefix-lm" else 0.9) * sequence
        documents = [random_slice(raw // 4, seed=seed) for seed in range(4)]
        packed = joined.make_sample(
            documents, SampleContext(SPECIAL, np.random.default_rng(0), sequence, document_mask)
        )
        joined.batch_spec(sequence, document_mask).check(packed, maker=task)
        assert packed["document_ids"].max() in ((3, 4) if document_mask else (1,))


def test_joined_documents_have_own_positions_and_no_input_labels() -> None:
    _, joined = build_pair("span-corruption")
    sample = joined.make_sample(
        [random_slice(30), random_slice(40, seed=1)], SampleContext(SPECIAL, np.random.default_rng(0), 128, True)
    )
    for document in (1, 2):
        own = sample["document_ids"] == document
        assert sample["positions"][own].tolist() == [*range(own.sum())]
        tokens, labels = sample["tokens"][own], sample["labels"][own]
        first = int(np.flatnonzero(labels != IGNORED)[0])
        assert tokens[first] == END  # the end token starts the target
        assert (labels[first:-1] == tokens[first + 1 :]).all()
        assert labels[-1] == END


def test_joined_samples_need_no_pad_token() -> None:
    special = replace(SPECIAL, pad=None)
    _, joined = build_pair("span-corruption")
    joined.check(special, 64)
    sample = joined.make_sample([random_slice(20)], SampleContext(special, np.random.default_rng(0), 64, True))
    assert (sample["tokens"][sample["document_ids"] == 0] == END).all()
    assert (sample["labels"][sample["document_ids"] == 0] == IGNORED).all()
    assert OBJECTIVES["span-corruption"].required_tokens == ("pad", "end")
