"""UL2's mixture of denoisers (arXiv:2205.05131, table 1): rates, spans, modes and lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.composed import Composed
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.objective import Sample, SampleContext
from tests.objectives.samples import SPECIAL, fill_sentinels, random_slice

UL2 = OBJECTIVES["ul2"]
assert isinstance(UL2, Composed)
DENOISERS = {task.label: task.objective for task in UL2.tasks}
SEQUENCE = 256
R, S, X = (SPECIAL.sentinels[-number] for number in (1, 2, 3))
TABLE = [
    ("spans-of-3-at-15%", R, 3, 0.15),
    ("spans-of-8-at-15%", R, 8, 0.15),
    ("spans-of-3-at-50%", X, 3, 0.5),
    ("spans-of-8-at-50%", X, 8, 0.5),
    ("spans-of-64-at-15%", X, 64, 0.15),
    ("spans-of-64-at-50%", X, 64, 0.5),
]


def make_samples(label: str, number: int) -> list[tuple[list[int], Sample]]:
    """Return texts and their samples."""
    denoiser, rng = DENOISERS[label], np.random.default_rng(0)
    pieces = [random_slice(denoiser.raw_length(SEQUENCE), seed=seed) for seed in range(number)]
    context = SampleContext(SPECIAL, rng, SEQUENCE, document_mask=True)
    return [(piece.tokens.tolist(), denoiser.make_sample([piece], context)) for piece in pieces]


def test_prompts_start_with_the_mode() -> None:
    assert DENOISERS["spans-of-3-at-15%"].add_special_tokens([700], SPECIAL) == [R, 700, SPECIAL.end]


def test_shares_are_equal() -> None:
    assert {task.label for task in UL2.tasks} == {*(label for label, *_ in TABLE), "suffix-at-25%"}
    assert {task.share.at(0) for task in UL2.tasks} == {1 / 7}


@pytest.mark.parametrize(("label", "mode", "length", "rate"), TABLE)
def test_spans(label: str, mode: int, length: int, rate: float) -> None:
    hidden = spans = raw = 0
    for tokens, sample in make_samples(label, 20):
        inputs, labels = sample["tokens"].tolist(), sample["labels"].tolist()
        assert len(inputs) == SEQUENCE
        assert inputs[0] == mode
        assert mode not in labels
        assert fill_sentinels(inputs[1:], labels) == tokens
        own = sum(label in SPECIAL.sentinels for label in labels)
        hidden, spans, raw = hidden + len(labels) - own - 1, spans + own, raw + len(tokens)
    assert hidden / raw == pytest.approx(rate, abs=0.01)
    # A text has an integral number of spans.
    assert hidden / spans == pytest.approx(length, rel=0.3 if length == 64 else 0.1)


def test_sequential_denoiser_asks_for_a_quarter_at_the_end() -> None:
    shares = []
    for tokens, sample in make_samples("suffix-at-25%", 400):
        prefix = sample["tokens"][sample["document_ids"] > 0].tolist()
        suffix = sample["labels"][sample["decoder_document_ids"] > 0].tolist()
        assert prefix[0] == S
        assert prefix[1:-1] + suffix[:-1] == tokens
        shares.append((len(suffix) - 1) / len(tokens))
    assert np.mean(shares) == pytest.approx(0.25, abs=0.02)
    assert 0.48 < max(shares) <= 0.5


def test_a_decoder_reads_the_mode_first() -> None:
    task = build_objective({"span-corruption": {"joined": True, "mode": 1}})
    assert isinstance(task, EncoderDecoder)
    context = SampleContext(SPECIAL, np.random.default_rng(0), SEQUENCE, document_mask=True)
    sample = task.make_sample([random_slice(task.raw_length(SEQUENCE))], context)
    assert sample["tokens"][0] == R
    assert sample["labels"][0] == IGNORED


def test_modes_need_sentinels_of_their_own() -> None:
    task = build_objective({"span-corruption": {"mode": 3}})
    assert isinstance(task, EncoderDecoder)
    spans = task.max_sentinels(task.raw_length(SEQUENCE))
    task.check(replace(SPECIAL, sentinels=SPECIAL.sentinels[: spans + 3]), SEQUENCE)
    with pytest.raises(UserError, match=r"sentinels, and 3 of them are for modes: use a tokenizer with more"):
        task.check(replace(SPECIAL, sentinels=SPECIAL.sentinels[: spans + 2]), SEQUENCE)


def test_tasks_leave_the_sentinels_of_all_modes() -> None:
    many, few = {"task": "span-corruption", "mode": 1}, {"task": "span-corruption", "mode": 3, "mean_span_length": 30.0}
    tasks = build_objective({"many": {**many, "share": 1}, "few": {**few, "share": 1}})
    alone = build_objective({"span-corruption": {"mode": 1}})
    assert isinstance(alone, EncoderDecoder)
    spans = alone.max_sentinels(alone.raw_length(SEQUENCE))
    tasks.check(replace(SPECIAL, sentinels=SPECIAL.sentinels[: spans + 3]), SEQUENCE)
    with pytest.raises(UserError, match="and 3 of them are for modes"):
        tasks.check(replace(SPECIAL, sentinels=SPECIAL.sentinels[: spans + 2]), SEQUENCE)
