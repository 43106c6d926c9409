"""Masks of units, each by itself: the released code's, and the shares of its statistics (ERNIE 1.0)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.data.manifest import Manifest
from megaptm.data.shards import ShardWriter, write_manifest
from megaptm.errors import UserError
from megaptm.objectives import build_objective
from megaptm.objectives.hide import independent
from megaptm.objectives.objective import SampleContext, SentenceGroup, mark_tokens, unit_starts
from megaptm.objectives.show_ask import replace_tokens
from megaptm.objectives.vocabulary import SpecialTokens
from tests.data.corpora import SPECIALS
from tests.objectives.samples import SPECIAL, random_slice

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/ernie_masking.json").read_text())
MASKING_RATE = 0.15


class Replayed:
    """Gives numbers that somebody else has drawn."""

    def __init__(self, *numbers: np.ndarray, chosen: np.ndarray | None = None) -> None:
        self.numbers, self.chosen = [*numbers], chosen

    def random(self, count: int) -> np.ndarray:
        drawn = self.numbers.pop(0)
        assert len(drawn) == count
        return drawn

    def choice(self, ordinary: np.ndarray, count: int) -> np.ndarray:
        assert self.chosen is not None
        return self.chosen[self.fates][:count]


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_the_same_numbers_mask_what_the_released_code_masks(case):
    special = SpecialTokens(
        size=GOLDEN["vocabulary"],
        **{name: GOLDEN[name] for name in ("cls", "sep", "mask")},
        specials=frozenset(GOLDEN[name] for name in ("cls", "sep", "mask")),
    )
    tokens = np.concatenate(case["rows"])
    numbers, replacements = np.array(case["numbers"]), np.array(case["replacements"])
    # 1 goes on with a unit; in a row of single tokens each is one.
    rows = zip(case["segments"], case["whole_words"], strict=True)
    begins = np.concatenate([np.array(row) != 1 if whole else np.ones(len(row), dtype=bool) for row, whole in rows])
    hidden = independent(rate=MASKING_RATE, max_masked=999, unit_starts=begins)(
        tokens, special, Replayed(numbers[begins > 0])
    )
    assert tokens[hidden].tolist() == case["labels"]
    # The first token's number has said whether the unit is hidden, and says its fate as well.
    fate = np.where(begins > 0, 1 - numbers / MASKING_RATE, 1 - numbers)[hidden]
    rng = Replayed(fate, chosen=replacements[hidden])
    rng.fates = (fate >= 0.8) & (fate < 0.9)
    shown = replace_tokens(mask_token_prob=0.8, random_token_prob=0.1)(tokens, hidden, special, rng)
    assert shown.tolist() == np.concatenate(case["out"]).tolist()


def test_an_unknown_piece_ends_its_unit_and_is_never_hidden():
    """A label of -1 inside a text, in the released code: nor is what the unit goes on with, until another begins."""
    tokens = np.arange(SPECIALS, SPECIALS + 12)
    tokens[[3, 7, 8]] = SPECIAL.begin
    begins = np.array([1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0])
    hide, rng = independent(rate=0.5, max_masked=99, unit_starts=begins), np.random.default_rng(0)
    hidden = np.array([hide(tokens, SPECIAL, rng) for _ in range(400)])
    assert (hidden[:, 1] == hidden[:, 2]).all()
    assert (hidden[:, 10] == hidden[:, 11]).all()
    assert np.flatnonzero(hidden.any(axis=0)).tolist() == [0, 1, 2, 6, 10, 11]
    assert hidden[:, [0, 1, 6, 10]].mean(axis=0) == pytest.approx([0.5] * 4, abs=0.1)


def test_each_unit_has_its_rate_and_is_hidden_whole():
    task = build_objective({"masked-lm": {"hide": "independent"}})
    rng, lengths = np.random.default_rng(0), np.random.default_rng(1)
    tokens = asked = begun = drawn = 0
    for number in range(1200):
        words = np.flatnonzero(lengths.random(510) < 0.4)
        words = np.union1d([0], words)
        text = random_slice(510, 2, seed=number)
        sample = task.make([replace(text, annotations={"words": words})], SampleContext(SPECIAL, rng, 512, True))
        places = sample["masked_positions"][sample["labels"] != IGNORED] - 1
        unit = np.searchsorted(words, places, side="right") - 1
        whole = np.diff([*words, 510])
        numbers, counts = np.unique(unit, return_counts=True)
        assert (counts == whole[numbers]).all()
        tokens, asked = tokens + 510, asked + len(places)
        begun, drawn = begun + len(words), drawn + len(numbers)
    golden = GOLDEN["statistics"]["whole_words"]
    assert asked / tokens == pytest.approx(golden["share_of_tokens"], abs=0.004)
    assert drawn / begun == pytest.approx(golden["share_of_units"], abs=0.004)


def test_a_row_asks_something_and_never_more_than_it_has_room_for():
    rng, tokens = np.random.default_rng(0), np.full(40, SPECIALS)
    begins = np.ones(40, dtype=int)
    assert {
        independent(rate=0.001, max_masked=9, unit_starts=begins)(tokens, SPECIAL, rng).sum() for _ in range(50)
    } == {1}
    assert (
        max(independent(rate=0.5, max_masked=9, unit_starts=begins)(tokens, SPECIAL, rng).sum() for _ in range(50)) == 9
    )
    assert not independent(rate=0.5, max_masked=9, unit_starts=begins)(np.full(40, SPECIAL.cls), SPECIAL, rng).any()


def test_spans_are_units_and_elsewhere_words_are():
    known = {"words": np.array([0, 2, 3, 5, 6, 7]), "tags": np.array([[1, 3, 0], [3, 6, 1], [4, 6, 1]])}
    assert unit_starts(mark_tokens(np.arange(8), known)).tolist() == [1, 1, 0, 1, 0, 0, 1, 1]
    # One that was cut in two is a unit by itself.
    assert unit_starts(mark_tokens(np.arange(8), known)[4:]).tolist() == [1, 0, 1, 1]


PHRASES = {"tokens": [], "words": ["words"], "phrases": ["words", "phrases"], "entities": ["words", "tags"]}


def text_with_spans(rng: np.random.Generator, spans: int) -> np.ndarray:
    """Tokens that are 3 by four, and among them spans of three that are 0, 1, 2."""
    kinds = np.concatenate([[3] * int(rng.integers(1, 5)) + [0, 1, 2] for _ in range(spans)])
    return SPECIALS // 4 * 4 + 4 + 4 * rng.integers(0, 200, len(kinds)) + kinds


def spans_of(tokens: np.ndarray) -> np.ndarray:
    """Those that are here whole."""
    first = np.flatnonzero((tokens % 4 == 0) & (tokens >= SPECIALS))
    first = first[
        [(tokens[at : at + 3] % 4).tolist() == [0, 1, 2] and (tokens[at : at + 3] >= SPECIALS).all() for at in first]
    ]
    return np.stack([first, first + 3], axis=1)


def corpus(folder: Path) -> Manifest:
    """With phrases and entities by one rule, and a sentence every seven tokens."""
    folder.mkdir()
    rng, fields = np.random.default_rng(0), ("tokens", "sentences", "words", "phrases", "tags")
    with ShardWriter(folder / "train-000000.tar", "uint16", fields) as writer:
        for key in range(30):
            tokens = text_with_spans(rng, 16)
            spans = spans_of(tokens)
            known = {
                "sentences": np.union1d([0], np.flatnonzero(tokens % 4 == 3)[::3]),
                "words": np.arange(len(tokens)),
                "phrases": spans,
                "tags": np.column_stack([spans, np.zeros(len(spans), dtype=int)]),
            }
            writer.add(key, tokens, known, meta={}, text_bytes=360)
    splits = {"train": [writer.close()], "validation": []}
    tokenizer = {"kind": "wordpiece", "vocabulary": 1000, "fingerprint": "tiny"}
    return write_manifest(folder, dtype="uint16", fields=fields, splits=splits, tokenizer=tokenizer, made_from={})


@pytest.mark.parametrize("question", [{}, {"next-sentence": {}}])
@pytest.mark.parametrize("what", ["phrases", "entities"])
def test_rows_of_a_corpus_hide_spans_whole(tmp_path, what, question):
    corpus(tmp_path / "c")
    said = {"masked-lm": {"hide": "independent", "units": what}} | question
    assert build_objective(said).annotations == (*PHRASES[what],)
    mix = open_mix({str(tmp_path / "c"): 1.0}, objective=said, sequence=48, seed=0, special=SPECIAL)
    whole = 0
    for number in range(60):
        sample = mix.sample(number)
        real = sample["labels"] != IGNORED
        text, asked = sample["tokens"].copy(), np.zeros(48, dtype=bool)
        text[sample["masked_positions"][real]] = sample["labels"][real]
        asked[sample["masked_positions"][real]] = True
        for first, stop in spans_of(text):
            whole += int(asked[first:stop].all())
            assert asked[first:stop].all() or not asked[first:stop].any()
    assert whole > 3


def test_units_mean_nothing_where_tokens_are_hidden_one_by_one():
    with pytest.raises(
        UserError,
        match=r"objective\.masked-lm: units \(phrases\) has no effect with hide: tokens: remove it, or set hide:",
    ):
        build_objective({"masked-lm": {"units": "phrases"}})


def test_the_text_of_a_group_may_come_with_marks():
    sentences = [mark_tokens(np.arange(SPECIALS, SPECIALS + 9), {"words": np.arange(0, 9, 3)}) for _ in range(4)]
    task = build_objective({"masked-lm": {"hide": "independent"}, "next-sentence": {}})
    sample = task.make(
        SentenceGroup(sentences, lambda rng: sentences), SampleContext(SPECIAL, np.random.default_rng(0), 48, True)
    )
    assert len(sample["labels"]) == task.masked.max_predictions(48)
