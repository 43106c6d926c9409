"""Masks of units, each chosen independently: equal to the released code and its statistics (ERNIE 1.0)."""

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
from megaptm.objectives.masking import mask_independently
from megaptm.objectives.objective import SampleContext, SentenceGroup, mark_tokens, unit_starts
from megaptm.objectives.replacements import replace_tokens
from megaptm.objectives.vocabulary import SpecialTokens
from tests.data.corpora import SPECIALS
from tests.objectives.samples import SPECIAL, random_slice

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/ernie_masking.json").read_text())
MASKING_RATE = 0.15


class ReplayedGenerator:
    """Return recorded random numbers instead of new ones."""

    def __init__(
        self,
        *uniforms: np.ndarray,
        replacements: np.ndarray | None = None,
        is_replaced: np.ndarray | None = None,
    ) -> None:
        self.uniforms, self.replacements, self.is_replaced = [*uniforms], replacements, is_replaced

    def random(self, count: int) -> np.ndarray:
        uniforms = self.uniforms.pop(0)
        assert len(uniforms) == count
        return uniforms

    def choice(self, ordinary: np.ndarray, count: int) -> np.ndarray:
        assert self.replacements is not None
        return self.replacements[self.is_replaced][:count]


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_masks_equal_the_released_code(case):
    special = SpecialTokens(
        size=GOLDEN["vocabulary"],
        **{name: GOLDEN[name] for name in ("cls", "sep", "mask")},
        specials=frozenset(GOLDEN[name] for name in ("cls", "sep", "mask")),
    )
    tokens = np.concatenate(case["rows"])
    numbers, replacements = np.array(case["numbers"]), np.array(case["replacements"])
    # 1 continues a unit. Without whole words each token is a unit.
    rows = zip(case["segments"], case["whole_words"], strict=True)
    starts = np.concatenate(
        [np.array(row) != 1 if whole_words else np.ones(len(row), dtype=bool) for row, whole_words in rows]
    )
    hidden = mask_independently(rate=MASKING_RATE, max_masked=999, unit_starts=starts)(
        tokens, special, ReplayedGenerator(numbers[starts > 0])
    )
    assert tokens[hidden].tolist() == case["labels"]
    # The random number of the first token decides whether the unit is hidden, and then what replaces that token.
    outcome = np.where(starts > 0, 1 - numbers / MASKING_RATE, 1 - numbers)[hidden]
    is_random = (outcome >= 0.8) & (outcome < 0.9)
    rng = ReplayedGenerator(outcome, replacements=replacements[hidden], is_replaced=is_random)
    shown = replace_tokens(mask_token_prob=0.8, random_token_prob=0.1)(tokens, hidden, special, rng)
    assert shown.tolist() == np.concatenate(case["out"]).tolist()


def test_unknown_piece_ends_its_unit():
    """The released code gives the piece a label of -1 inside a text. The rest of its unit is not hidden either."""
    tokens = np.arange(SPECIALS, SPECIALS + 12)
    tokens[[3, 7, 8]] = SPECIAL.begin
    starts = np.array([1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0])
    hide, rng = mask_independently(rate=0.5, max_masked=99, unit_starts=starts), np.random.default_rng(0)
    hidden = np.array([hide(tokens, SPECIAL, rng) for _ in range(400)])
    assert (hidden[:, 1] == hidden[:, 2]).all()
    assert (hidden[:, 10] == hidden[:, 11]).all()
    assert np.flatnonzero(hidden.any(axis=0)).tolist() == [0, 1, 2, 6, 10, 11]
    assert hidden[:, [0, 1, 6, 10]].mean(axis=0) == pytest.approx([0.5] * 4, abs=0.1)


def test_units_are_hidden_whole_at_the_released_rate():
    task = build_objective({"masked-lm": {"hide": "independent"}})
    rng, lengths = np.random.default_rng(0), np.random.default_rng(1)
    tokens = num_targets = num_units = num_hidden_units = 0
    for number in range(1200):
        words = np.flatnonzero(lengths.random(510) < 0.4)
        words = np.union1d([0], words)
        text = random_slice(510, 2, seed=number)
        sample = task.make_sample([replace(text, annotations={"words": words})], SampleContext(SPECIAL, rng, 512, True))
        positions = sample["masked_positions"][sample["labels"] != IGNORED] - 1
        unit = np.searchsorted(words, positions, side="right") - 1
        unit_lengths = np.diff([*words, 510])
        hidden_units, counts = np.unique(unit, return_counts=True)
        assert (counts == unit_lengths[hidden_units]).all()
        tokens, num_targets = tokens + 510, num_targets + len(positions)
        num_units, num_hidden_units = num_units + len(words), num_hidden_units + len(hidden_units)
    golden = GOLDEN["statistics"]["whole_words"]
    assert num_targets / tokens == pytest.approx(golden["share_of_tokens"], abs=0.004)
    assert num_hidden_units / num_units == pytest.approx(golden["share_of_units"], abs=0.004)


def test_number_of_targets_is_bounded():
    rng, tokens = np.random.default_rng(0), np.full(40, SPECIALS)
    starts = np.ones(40, dtype=int)
    assert {
        mask_independently(rate=0.001, max_masked=9, unit_starts=starts)(tokens, SPECIAL, rng).sum() for _ in range(50)
    } == {1}
    assert (
        max(
            mask_independently(rate=0.5, max_masked=9, unit_starts=starts)(tokens, SPECIAL, rng).sum()
            for _ in range(50)
        )
        == 9
    )
    assert not mask_independently(rate=0.5, max_masked=9, unit_starts=starts)(
        np.full(40, SPECIAL.cls), SPECIAL, rng
    ).any()


def test_units_are_spans_and_words_outside_of_spans():
    annotations = {"words": np.array([0, 2, 3, 5, 6, 7]), "tags": np.array([[1, 3, 0], [3, 6, 1], [4, 6, 1]])}
    assert unit_starts(mark_tokens(np.arange(8), annotations)).tolist() == [1, 1, 0, 1, 0, 0, 1, 1]
    # The rest of a divided span is a unit of its own.
    assert unit_starts(mark_tokens(np.arange(8), annotations)[4:]).tolist() == [1, 0, 1, 1]


ANNOTATIONS = {"tokens": [], "words": ["words"], "phrases": ["words", "phrases"], "entities": ["words", "tags"]}


def text_with_spans(rng: np.random.Generator, spans: int) -> np.ndarray:
    """Return tokens that are 3 modulo 4, and among them spans of three that are 0, 1, 2 modulo 4."""
    kinds = np.concatenate([[3] * int(rng.integers(1, 5)) + [0, 1, 2] for _ in range(spans)])
    return SPECIALS // 4 * 4 + 4 + 4 * rng.integers(0, 200, len(kinds)) + kinds


def find_spans(tokens: np.ndarray) -> np.ndarray:
    """Return [start, stop) of each complete span."""
    first = np.flatnonzero((tokens % 4 == 0) & (tokens >= SPECIALS))
    first = first[
        [(tokens[at : at + 3] % 4).tolist() == [0, 1, 2] and (tokens[at : at + 3] >= SPECIALS).all() for at in first]
    ]
    return np.stack([first, first + 3], axis=1)


def write_corpus(folder: Path) -> Manifest:
    """Write a corpus whose phrases and entities are the same spans, with a sentence start every few tokens."""
    folder.mkdir()
    rng, fields = np.random.default_rng(0), ("tokens", "sentences", "words", "phrases", "tags")
    with ShardWriter(folder / "train-000000.tar", "uint16", fields) as writer:
        for key in range(30):
            tokens = text_with_spans(rng, 16)
            spans = find_spans(tokens)
            annotations = {
                "sentences": np.union1d([0], np.flatnonzero(tokens % 4 == 3)[::3]),
                "words": np.arange(len(tokens)),
                "phrases": spans,
                "tags": np.column_stack([spans, np.zeros(len(spans), dtype=int)]),
            }
            writer.add(key, tokens, annotations, meta={}, text_bytes=360)
    splits = {"train": [writer.close()], "validation": []}
    tokenizer = {"kind": "wordpiece", "vocabulary": 1000, "fingerprint": "tiny"}
    return write_manifest(folder, dtype="uint16", fields=fields, splits=splits, tokenizer=tokenizer, made_from={})


@pytest.mark.parametrize("question", [{}, {"next-sentence": {}}])
@pytest.mark.parametrize("units", ["phrases", "entities"])
def test_spans_of_a_corpus_are_hidden_whole(tmp_path, units, question):
    write_corpus(tmp_path / "c")
    objective = {"masked-lm": {"hide": "independent", "units": units}} | question
    assert build_objective(objective).annotations == (*ANNOTATIONS[units],)
    mix = open_mix({str(tmp_path / "c"): 1.0}, objective=objective, sequence=48, seed=0, special=SPECIAL)
    num_hidden_spans = 0
    for number in range(60):
        sample = mix.sample(number)
        real = sample["labels"] != IGNORED
        text, is_target = sample["tokens"].copy(), np.zeros(48, dtype=bool)
        text[sample["masked_positions"][real]] = sample["labels"][real]
        is_target[sample["masked_positions"][real]] = True
        for first, stop in find_spans(text):
            num_hidden_spans += int(is_target[first:stop].all())
            assert is_target[first:stop].all() or not is_target[first:stop].any()
    assert num_hidden_spans > 3


def test_units_need_a_hide_function_of_units():
    with pytest.raises(
        UserError,
        match=r"objective\.masked-lm: units \(phrases\) has no effect with hide: tokens: remove it, or set hide:",
    ):
        build_objective({"masked-lm": {"units": "phrases"}})


def test_sentences_may_have_marked_tokens():
    sentences = [mark_tokens(np.arange(SPECIALS, SPECIALS + 9), {"words": np.arange(0, 9, 3)}) for _ in range(4)]
    task = build_objective({"masked-lm": {"hide": "independent"}, "next-sentence": {}})
    sample = task.make_sample(
        SentenceGroup(sentences, lambda rng: sentences), SampleContext(SPECIAL, np.random.default_rng(0), 48, True)
    )
    assert len(sample["labels"]) == task.masked.max_predictions(48)
