"""UNIMO's rows: spans and fragments of texts, with an image or without; areas of an image; captions that say the same
and such that do not, each by itself; a batch of one task, over corpora of text and of pairs."""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.annotate.meanings import write_meanings
from data_pipeline.images.region_shapes import DETECTOR
from megaptm.batch import IGNORED, MASKED_REGION, MAX_COMPARED_TEXTS
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import open_mix
from megaptm.data.batch_mix import BATCHES
from megaptm.errors import UserError
from megaptm.objectives import SpecialTokens
from megaptm.objectives.fragments import FragmentOptions
from megaptm.objectives.meanings import load_meanings
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.region_files import Regions
from megaptm.objectives.unified import ImageTextFragments, MaskedAreas, intersection_over_union
from megaptm.tokenizers import load as load_tokenizer
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus

WORDS, REGIONS = 64, 9
TEXT = {"regions": REGIONS, "features": DETECTOR[0]}
PAIR = {**TEXT, "classes": DETECTOR[1]}
MEANINGS = {
    "attributes": [["red", "crimson"], ["green", "emerald"], ["blue", "azure"], ["yellow", "golden"]],
    "objects": [["circle", "disc"], ["square", "box"], ["triangle", "wedge"], ["cross", "plus"]],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unified")
    corpus = region_corpus(root / "corpus", images=80, tokenizer=TOKENIZERS["unimo"], validation=0.2)
    write_meanings(MEANINGS, load_tokenizer(corpus / "tokenizer"), root / "meanings.json")
    return corpus


def opened(folder: Path, objective: Any, **options: Any) -> Any:
    told = {"sequence": WORDS + REGIONS, "seed": 3, "special": load_tokenizer(folder / "tokenizer").special, **options}
    return open_mix({str(folder): 1.0}, objective=objective, document_mask=False, **told)


def everything(folder: Path) -> dict[str, Any]:
    contrast = {**PAIR, "meanings": str(folder.parent / "meanings.json")}
    return {
        "spans": {"task": "text-spans", "share": 2, "units": "tokens", **TEXT},
        "fragments": {"task": "text-fragments", "share": 2, **TEXT},
        "areas": {"task": "masked-areas", "image_only": True, "share": 1, **PAIR},
        "contrast": {"task": "cross-modal-contrast", "share": 2, **contrast},
        "pair-spans": {"task": "image-text-spans", "share": 1, **PAIR},
        "pair-fragments": {"task": "image-text-fragments", "share": 1, **PAIR},
        "classes": {"task": "masked-areas-distribution", "share": 1, **PAIR},
    }


def test_each_task_hides_and_asks_its_own(folder: Path) -> None:
    mix = opened(folder, everything(folder))
    special = load_tokenizer(folder / "tokenizer").special
    seen = Counter[str]()
    for number in range(300):
        task = mix.sources[mix.locate(number).source].task.label
        made = mix.sample(number)
        words = made["document_ids"][:WORDS] > 0
        regions = made["document_ids"][WORDS:] > 0
        assert regions.any() == (task not in ("spans", "fragments"))
        assert words.any() == (task != "areas")
        asked = {
            name
            for name in ("labels", "masked_region_features", "region_distributions")
            if (made[name] != IGNORED).any()
        }
        hidden = bool((made["tokens"][WORDS:] == MASKED_REGION).any())
        wanted = {"areas": {"masked_region_features"}, "classes": {"region_distributions"}, "contrast": set[str]()}
        assert asked == wanted.get(task, {"labels"})
        assert hidden == (task in ("areas", "classes"))
        assert ((made["tokens"][:WORDS] == special.mask) & words).any() <= (task in ("spans", "pair-spans"))
        assert made["order"].any() == (task in ("fragments", "pair-fragments"))
        assert (made["num_positive_texts"] != IGNORED) == (task == "contrast")
        seen[task] += 1
    assert set(seen) == set(everything(folder))


def test_each_batch_is_of_one_task_and_a_sample_of_its_number_alone(folder: Path) -> None:
    mix = opened(folder, everything(folder), schedule=BatchSchedule(6))
    copy = pickle.loads(pickle.dumps(mix))
    for number in (5, 900, 2**20, 5):
        ours, theirs = mix.sample(number), copy.sample(number)
        mix.batch.with_labels(ours).check(ours, maker="unimo")
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    steps = Counter[int]()
    for step in range(BATCHES):
        [source] = {mix.locate(number).source for number in range(step * 6, (step + 1) * 6)}
        steps[source] += 1
    assert [steps[source] for source in range(7)] == [72, 72, 36, 72, 36, 36, 36]


def test_the_whole_image_comes_first_with_the_mean_of_what_is_shown(folder: Path) -> None:
    mix = opened(folder, {"masked-areas": PAIR})
    for number in range(40):
        made = mix.sample(number)
        there, hidden = made["document_ids"][WORDS:] > 0, made["tokens"][WORDS:] == MASKED_REGION
        assert not hidden[0]
        assert made["region_boxes"][0].tolist() == [0, 0, 1, 1, 1, 1, 1]
        shown = made["region_features"][there & ~hidden].astype(np.float32)
        assert np.allclose(shown[0], shown[1:].mean(0), atol=2e-3)
        assert not made["region_features"][hidden].any()


def test_regions_that_lie_over_each_other_are_hidden_together(folder: Path) -> None:
    mix, counts, shares = opened(folder, {"masked-areas": {**PAIR, "rate": 0.3}}), [], []
    for number in range(120):
        made = mix.sample(number)
        there = made["document_ids"][WORDS:] > 0
        boxes, hidden = made["region_boxes"][there][1:], (made["tokens"][WORDS:] == MASKED_REGION)[there][1:]
        asked = made["masked_positions"][(made["masked_region_features"] != IGNORED).any(1)] - WORDS - 1
        assert asked.tolist() == np.flatnonzero(hidden).tolist()
        counts.append(hidden.sum())
        shares.append(hidden.mean())
        # At an anchor all that meets it is hidden with it: so is some hidden one's whole neighborhood.
        near = intersection_over_union(boxes) > 0.3
        alone = any(hidden[near[one] | (np.arange(len(near)) == one)].all() for one in np.flatnonzero(hidden))
        assert alone
    assert min(counts) >= 1
    assert np.mean(shares) == pytest.approx(0.38, abs=0.08)  # 0.3, and what meets it


def test_overlaps_are_shares_of_what_two_boxes_cover() -> None:
    boxes = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.6, 0.6, 1, 1], [0, 0, 0.5, 0.5], [0.1, 0.1, 0.1, 0.9]])
    shares = intersection_over_union(np.concatenate([boxes, np.zeros((5, 3))], 1))
    assert shares[0].tolist() == pytest.approx([1, 1 / 3, 0, 1, 0])
    task = MaskedAreas(rate=0.2, min_overlap=0.3)
    areas = np.concatenate([boxes[:1], boxes, boxes], 0)
    nothing = np.zeros((len(areas), 2))
    found = Regions(features=nothing, boxes=areas, probabilities=nothing, confidence=nothing[:, 0])
    hidden = {tuple(task.choose_masked(found, np.random.default_rng(seed)).tolist()) for seed in range(20)}
    assert all((3 in one) == (8 in one) for one in hidden)
    assert all((1 in one) == (4 in one) == (9 in one) for one in hidden)
    assert len(hidden) > 2


def test_spans_are_a_seventh_of_the_tokens_and_share_a_fate(folder: Path) -> None:
    special, kinds, lengths = load_tokenizer(folder / "tokenizer").special, Counter[str](), Counter[int]()
    for task, most in (("text-spans", 10), ("image-text-spans", 10)):
        told = {**PAIR, "rate": 0.3} if task == "image-text-spans" else {**TEXT, "rate": 0.3, "units": "tokens"}
        mix = opened(folder, {task: told})
        for number in range(150):
            made = mix.sample(number)
            asked = made["masked_positions"][made["labels"] != IGNORED]
            answers = made["labels"][made["labels"] != IGNORED]
            text = int((made["document_ids"][:WORDS] > 0).sum())
            ordinary = ~np.isin(made["tokens"][:text], [special.cls, special.sep])
            assert len(asked) <= np.ceil(0.3 * text)
            assert len(asked) >= np.floor(0.3 * (ordinary.sum() - 2))
            for run in np.split(np.arange(len(asked)), np.flatnonzero(np.diff(asked) > 1) + 1):
                shown = made["tokens"][asked[run]]
                fate = (
                    "mask" if (shown == special.mask).all() else "same" if (shown == answers[run]).all() else "random"
                )
                assert fate == "random" or len(set((shown == special.mask).tolist())) == 1
                kinds[fate] += 1
                lengths[min(len(run), most + 1)] += 1
    shares = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "random": 0.1}, abs=0.05)
    assert max(lengths) > 4


SPECIAL = SpecialTokens(size=100, pad=1, cls=0, sep=2, mask=99, specials=frozenset({0, 1, 2, 99}))


def test_fragments_put_back_are_the_text_and_see_what_is_before_them() -> None:
    rng, corrupt = np.random.default_rng(0), FragmentOptions(0.25, 4, 32)
    taken = numbers = 0
    for _ in range(200):
        texts = [
            np.concatenate([[0], rng.integers(3, 99, rng.integers(1, 120)), [2]]) for _ in range(rng.integers(1, 4))
        ]
        places = sum(map(len, texts))
        made = corrupt.remove_fragments(texts, SPECIAL, rng)
        assert sum(map(len, made.tokens)) <= places + 2 * corrupt.max_fragments(places)
        assert len(made.target_positions) <= corrupt.max_predictions(places)
        row, at = np.concatenate(made.tokens), 0
        assert (row[made.target_positions + 1] == made.labels).all()
        for text, tokens, order in zip(texts, made.tokens, made.order, strict=True):
            source = int((order == 0).sum())
            assert order[source:].tolist() == [*range(1, len(tokens) - source + 1)]
            written = tokens[source:]
            own = made.target_positions[(made.target_positions >= at) & (made.target_positions < at + len(tokens))] - at
            # All of a fragment but its end is asked what comes next; nothing of what is left is.
            assert own.tolist() == [place for place in range(source, len(tokens)) if tokens[place] != 2]
            pieces = np.split(written, np.flatnonzero(written == 0)[1:]) if len(written) else []
            assert all(piece[0] == 0 and piece[-1] == 2 for piece in pieces)
            back = Counter(tokens[:source].tolist())
            for piece in pieces:
                back.update(piece[1:-1].tolist())
            assert back == Counter(text.tolist())
            at += len(tokens)
        taken += int((made.labels != 2).sum())
        numbers += places - 2 * len(texts)
    assert taken / numbers == pytest.approx(0.25, abs=0.03)


def test_what_is_left_of_a_fragments_text_is_in_its_order(folder: Path) -> None:
    """Of rows with an image, and without: no place sees what it is asked for."""
    for task, told in (("text-fragments", TEXT), ("image-text-fragments", PAIR)):
        mix = opened(folder, {task: told})
        for number in range(40):
            made = mix.sample(number)
            asked = made["masked_positions"][made["labels"] != IGNORED]
            assert len(asked)
            assert (made["order"][asked] < made["order"][asked + 1]).all()
            assert (made["tokens"][asked + 1] == made["labels"][: len(asked)]).all()
            assert (made["order"][WORDS:] == 0).all()


def test_captions_come_with_such_as_say_the_same_and_such_as_do_not(folder: Path) -> None:
    name = str(folder.parent / "meanings.json")
    known, tokenizer = load_meanings(name), load_tokenizer(folder / "tokenizer")
    mix, seen = opened(folder, {"cross-modal-contrast": {**PAIR, "meanings": name}}), Counter[str]()
    for number in range(40):
        made = mix.sample(number)
        places = made["text_starts"][made["text_starts"] != IGNORED].tolist()
        documents = made["document_ids"]
        assert {*documents[WORDS:].tolist()} <= {0, 1}
        texts = []
        for at, place in enumerate(places):
            here = np.flatnonzero(documents == 2 + at)
            assert here[0] == place
            assert made["positions"][here].tolist() == [*range(len(here))]
            whole = made["tokens"][here]
            assert (whole[0], whole[-1]) == (tokenizer.special.cls, tokenizer.special.sep)
            texts.append(known.rewriter.parse(known.words(whole[1:-1])))
        right = int(made["num_positive_texts"])
        assert 1 <= right <= len(texts) <= MAX_COMPARED_TEXTS
        assert all(said == texts[0] for said in texts[:right])
        assert all(said != texts[0] for said in texts[right:])
        seen["right"] += right - 1
        seen["wrong"] += len(texts) - right
    assert min(seen["right"], seen["wrong"]) > 20
    alone = opened(folder, {"cross-modal-contrast": PAIR}).sample(0)
    assert (alone["text_starts"] != IGNORED).sum() == alone["num_positive_texts"] == 1


def test_text_alone_is_read_from_a_corpus_of_text(folder: Path, tmp_path: Path) -> None:
    """And pairs from theirs; a corpus of text that a task with images reads is one sentence."""
    text = tmp_path / "text"
    tiny_corpus(text, vocabulary=320, fingerprint=load_tokenizer(folder / "tokenizer").fingerprint)
    told = everything(folder)
    for label, task_options in told.items():
        task_options["corpora"] = [str(text if label in ("spans", "fragments") else folder)]
    special = load_tokenizer(folder / "tokenizer").special
    options: dict[str, Any] = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, "document_mask": False}
    mix = open_mix({str(text): 1.0, str(folder): 1.0}, objective=told, **options)
    for number in range(30):
        mix.batch.check(mix.sample(number), maker="unimo")
    with pytest.raises(UserError, match="has no regions of images, which objective masked-areas reads"):
        open_mix({str(text): 1.0}, objective={"masked-areas": PAIR}, **options)


BAD = {
    "nothing": ("[1]", "it has no meanings"),
    "no list": ('{"continuations": [], "meanings": {"objects": [3]}}', "a meaning in it is not a list of phrases"),
    "words": ('{"continuations": [], "meanings": {"objects": [["dog"]]}}', "not a list of token ids"),
    "kind": ('{"continuations": [], "meanings": {"verbs": [[[1]]]}}', "'verbs' is not a kind of phrases"),
    "cut": ('{"continuations": [', "Expecting value"),
    "deep": ("[" * 100_000, r"is not a table of meanings \(maximum recursion depth exceeded"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_table_of_meanings_is_one_sentence(name: str, tmp_path: Path) -> None:
    content, said = BAD[name]
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        load_meanings(str(tmp_path / "bad.json"))
    assert "megaptm corpus meanings" in str(error.value)


def test_meanings_of_another_tokenizer_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(json.dumps({"continuations": [], "meanings": {"objects": [[[5000]], [[7]]]}}))
    with pytest.raises(UserError, match="has ids up to 5000, but the tokenizer has 320 ids"):
        opened(folder, {"cross-modal-contrast": {**PAIR, "meanings": str(tmp_path / "large.json")}})


def test_a_long_caption_leaves_room_for_its_fragments() -> None:
    task = ImageTextFragments(regions=4, features=3, classes=2, min_regions=1)
    file = io.BytesIO()
    np.savez(file, features=np.ones((2, 3)), norm_bb=np.full((2, 6), 0.5), soft_labels=np.full((2, 2), 0.5))
    long = DocumentSlice(np.arange(3, 90), slots=0, blobs={"npz": file.getvalue()})
    for seed in range(20):
        made = task.make([long], SampleContext(SPECIAL, np.random.default_rng(seed), 34, True))
        task.batch(34, True).check(made, maker="it")
        asked = made["masked_positions"][made["labels"] != IGNORED]
        assert made["tokens"][asked[-1] + 1] == SPECIAL.sep == made["labels"][len(asked) - 1]
        assert (made["document_ids"][:30] == 1).sum() >= 28
