"""UNIMO's samples: spans and fragments of texts, areas of images, contrast of captions, batches of one task."""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import open_mix
from megaptm.data.batch_mix import BATCHES
from megaptm.errors import UserError
from megaptm.families.unimo.corpus.meanings import write_meanings
from megaptm.families.unimo.fragments import FragmentOptions
from megaptm.families.unimo.head_costs import MAX_COMPARED_TEXTS
from megaptm.families.unimo.meanings import load_meanings
from megaptm.families.unimo.unified import ImageTextFragments, MaskedAreas, intersection_over_union
from megaptm.families.uniter.corpus.region_shapes import DETECTOR
from megaptm.families.uniter.region_files import Regions
from megaptm.families.uniter.spec import MASKED_REGION
from megaptm.objectives import SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.tokenizers import load_tokenizer
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


def open_unified(folder: Path, objective: Any, **options: Any) -> Any:
    special = load_tokenizer(folder / "tokenizer").special
    settings = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, "document_mask": False, **options}
    return open_mix({str(folder): 1.0}, objective=objective, **settings)


def all_tasks(folder: Path) -> dict[str, Any]:
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


def test_inputs_and_labels_of_each_task(folder: Path) -> None:
    mix = open_unified(folder, all_tasks(folder))
    special = load_tokenizer(folder / "tokenizer").special
    tasks = Counter[str]()
    for number in range(300):
        task = mix.sources[mix.locate(number).source].task.label
        sample = mix.sample(number)
        words = sample["document_ids"][:WORDS] > 0
        regions = sample["document_ids"][WORDS:] > 0
        assert regions.any() == (task not in ("spans", "fragments"))
        assert words.any() == (task != "areas")
        predicted = {
            name
            for name in ("labels", "masked_region_features", "region_distributions")
            if (sample[name] != IGNORED).any()
        }
        hidden = bool((sample["tokens"][WORDS:] == MASKED_REGION).any())
        expected = {"areas": {"masked_region_features"}, "classes": {"region_distributions"}, "contrast": set[str]()}
        assert predicted == expected.get(task, {"labels"})
        assert hidden == (task in ("areas", "classes"))
        assert ((sample["tokens"][:WORDS] == special.mask) & words).any() <= (task in ("spans", "pair-spans"))
        assert sample["order"].any() == (task in ("fragments", "pair-fragments"))
        assert (sample["num_positive_texts"] != IGNORED) == (task == "contrast")
        tasks[task] += 1
    assert set(tasks) == set(all_tasks(folder))


def test_batches_have_one_task_and_samples_depend_on_their_index(folder: Path) -> None:
    mix = open_unified(folder, all_tasks(folder), schedule=BatchSchedule(6))
    copy = pickle.loads(pickle.dumps(mix))
    for number in (5, 900, 2**20, 5):
        sample, copied = mix.sample(number), copy.sample(number)
        mix.batch_spec.with_labels(sample).check(sample, maker="unimo")
        assert all(np.array_equal(sample[name], copied[name]) for name in sample)
    steps = Counter[int]()
    for step in range(BATCHES):
        [source] = {mix.locate(number).source for number in range(step * 6, (step + 1) * 6)}
        steps[source] += 1
    assert [steps[source] for source in range(7)] == [72, 72, 36, 72, 36, 36, 36]


def test_first_region_is_the_full_image(folder: Path) -> None:
    """Its features are the mean of the visible regions."""
    mix = open_unified(folder, {"masked-areas": PAIR})
    for number in range(40):
        sample = mix.sample(number)
        real, hidden = sample["document_ids"][WORDS:] > 0, sample["tokens"][WORDS:] == MASKED_REGION
        assert not hidden[0]
        assert sample["region_boxes"][0].tolist() == [0, 0, 1, 1, 1, 1, 1]
        shown = sample["region_features"][real & ~hidden].astype(np.float32)
        assert np.allclose(shown[0], shown[1:].mean(0), atol=2e-3)
        assert not sample["region_features"][hidden].any()


def test_overlapping_regions_are_hidden_together(folder: Path) -> None:
    mix, counts, rates = open_unified(folder, {"masked-areas": {**PAIR, "rate": 0.3}}), [], []
    for number in range(120):
        sample = mix.sample(number)
        real = sample["document_ids"][WORDS:] > 0
        boxes, hidden = sample["region_boxes"][real][1:], (sample["tokens"][WORDS:] == MASKED_REGION)[real][1:]
        targets = sample["masked_positions"][(sample["masked_region_features"] != IGNORED).any(1)] - WORDS - 1
        assert targets.tolist() == np.flatnonzero(hidden).tolist()
        counts.append(hidden.sum())
        rates.append(hidden.mean())
        # Regions that overlap an anchor are hidden with it, so at least one region is hidden with all its neighbors.
        overlaps = (intersection_over_union(boxes) > 0.3) | np.eye(len(boxes), dtype=bool)
        assert any(hidden[overlaps[anchor]].all() for anchor in np.flatnonzero(hidden))
    assert min(counts) >= 1
    assert np.mean(rates) == pytest.approx(0.38, abs=0.08)  # 0.3, and their overlapping regions


def test_intersection_over_union() -> None:
    boxes = np.array([[0, 0, 0.5, 0.5], [0.25, 0, 0.75, 0.5], [0.6, 0.6, 1, 1], [0, 0, 0.5, 0.5], [0.1, 0.1, 0.1, 0.9]])
    iou = intersection_over_union(np.concatenate([boxes, np.zeros((5, 3))], 1))
    assert iou[0].tolist() == pytest.approx([1, 1 / 3, 0, 1, 0])
    task = MaskedAreas(rate=0.2, min_overlap=0.3)
    areas = np.concatenate([boxes[:1], boxes, boxes], 0)
    zeros = np.zeros((len(areas), 2))
    all_regions = Regions(features=zeros, boxes=areas, probabilities=zeros, confidence=zeros[:, 0])
    hidden = {tuple(task.choose_masked(all_regions, np.random.default_rng(seed)).tolist()) for seed in range(20)}
    assert all((3 in regions) == (8 in regions) for regions in hidden)
    assert all((1 in regions) == (4 in regions) == (9 in regions) for regions in hidden)
    assert len(hidden) > 2


def test_masked_spans_have_configured_rate_and_one_outcome(folder: Path) -> None:
    special, outcomes, lengths = load_tokenizer(folder / "tokenizer").special, Counter[str](), Counter[int]()
    for task, options in (("text-spans", {**TEXT, "units": "tokens"}), ("image-text-spans", PAIR)):
        mix = open_unified(folder, {task: {**options, "rate": 0.3}})
        for number in range(150):
            sample = mix.sample(number)
            targets = sample["masked_positions"][sample["labels"] != IGNORED]
            labels = sample["labels"][sample["labels"] != IGNORED]
            text = int((sample["document_ids"][:WORDS] > 0).sum())
            ordinary = ~np.isin(sample["tokens"][:text], [special.cls, special.sep])
            assert len(targets) <= np.ceil(0.3 * text)
            assert len(targets) >= np.floor(0.3 * (ordinary.sum() - 2))
            for run in np.split(np.arange(len(targets)), np.flatnonzero(np.diff(targets) > 1) + 1):
                shown = sample["tokens"][targets[run]]
                masked, same = (shown == special.mask).all(), (shown == labels[run]).all()
                outcomes["mask" if masked else "same" if same else "random"] += 1
                lengths[len(run)] += 1
    shares = {outcome: count / outcomes.total() for outcome, count in outcomes.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "random": 0.1}, abs=0.05)
    assert max(lengths) > 4


SPECIAL = SpecialTokens(size=100, pad=1, cls=0, sep=2, mask=99, specials=frozenset({0, 1, 2, 99}))


def test_fragments_restore_the_text() -> None:
    rng, options = np.random.default_rng(0), FragmentOptions(0.25, 4, 32)
    num_removed = num_tokens = 0
    for _ in range(200):
        texts = [
            np.concatenate([[0], rng.integers(3, 99, rng.integers(1, 120)), [2]]) for _ in range(rng.integers(1, 4))
        ]
        length = sum(map(len, texts))
        result = options.remove_fragments(texts, SPECIAL, rng)
        assert sum(map(len, result.tokens)) <= length + 2 * options.max_fragments(length)
        assert len(result.target_positions) <= options.max_predictions(length)
        joined, start = np.concatenate(result.tokens), 0
        assert (joined[result.target_positions + 1] == result.labels).all()
        for text, tokens, order in zip(texts, result.tokens, result.order, strict=True):
            source = int((order == 0).sum())
            assert order[source:].tolist() == [*range(1, len(tokens) - source + 1)]
            written = tokens[source:]
            own = (
                result.target_positions[
                    (result.target_positions >= start) & (result.target_positions < start + len(tokens))
                ]
                - start
            )
            # Each token of a fragment except its end predicts the next token; the remaining text predicts nothing.
            assert own.tolist() == [position for position in range(source, len(tokens)) if tokens[position] != 2]
            pieces = np.split(written, np.flatnonzero(written == 0)[1:]) if len(written) else []
            assert all(piece[0] == 0 and piece[-1] == 2 for piece in pieces)
            restored = Counter(tokens[:source].tolist())
            for piece in pieces:
                restored.update(piece[1:-1].tolist())
            assert restored == Counter(text.tolist())
            start += len(tokens)
        num_removed += int((result.labels != 2).sum())
        num_tokens += length - 2 * len(texts)
    assert num_removed / num_tokens == pytest.approx(0.25, abs=0.03)


def test_fragments_do_not_attend_to_their_labels(folder: Path) -> None:
    """With and without an image, no position attends to its label."""
    for task, options in (("text-fragments", TEXT), ("image-text-fragments", PAIR)):
        mix = open_unified(folder, {task: options})
        for number in range(40):
            sample = mix.sample(number)
            targets = sample["masked_positions"][sample["labels"] != IGNORED]
            assert len(targets)
            assert (sample["order"][targets] < sample["order"][targets + 1]).all()
            assert (sample["tokens"][targets + 1] == sample["labels"][: len(targets)]).all()
            assert (sample["order"][WORDS:] == 0).all()


def test_captions_come_with_paraphrases_and_negatives(folder: Path) -> None:
    name = str(folder.parent / "meanings.json")
    meanings, tokenizer = load_meanings(name), load_tokenizer(folder / "tokenizer")
    mix = open_unified(folder, {"cross-modal-contrast": {**PAIR, "meanings": name}})
    num_paraphrases = num_negatives = 0
    for number in range(40):
        sample = mix.sample(number)
        starts = sample["text_starts"][sample["text_starts"] != IGNORED].tolist()
        documents = sample["document_ids"]
        assert {*documents[WORDS:].tolist()} <= {0, 1}
        texts = []
        for index, start in enumerate(starts):
            own = np.flatnonzero(documents == 2 + index)
            assert own[0] == start
            assert sample["positions"][own].tolist() == [*range(len(own))]
            tokens = sample["tokens"][own]
            assert tokens[0] == tokenizer.special.cls
            assert tokens[-1] == tokenizer.special.sep
            texts.append(meanings.rewriter.parse(meanings.words(tokens[1:-1])))
        num_positive = int(sample["num_positive_texts"])
        assert 1 <= num_positive <= len(texts) <= MAX_COMPARED_TEXTS
        assert all(text == texts[0] for text in texts[:num_positive])
        assert all(text != texts[0] for text in texts[num_positive:])
        num_paraphrases += num_positive - 1
        num_negatives += len(texts) - num_positive
    assert num_paraphrases > 20
    assert num_negatives > 20
    alone = open_unified(folder, {"cross-modal-contrast": PAIR}).sample(0)
    assert (alone["text_starts"] != IGNORED).sum() == alone["num_positive_texts"] == 1


def test_text_tasks_read_text_corpora(folder: Path, tmp_path: Path) -> None:
    """Each task reads its own corpora. A text corpus for a task with images is rejected."""
    text = tmp_path / "text"
    tiny_corpus(text, vocabulary=320, fingerprint=load_tokenizer(folder / "tokenizer").fingerprint)
    objective = all_tasks(folder)
    for label, task_options in objective.items():
        task_options["corpora"] = [str(text if label in ("spans", "fragments") else folder)]
    special = load_tokenizer(folder / "tokenizer").special
    options: dict[str, Any] = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, "document_mask": False}
    mix = open_mix({str(text): 1.0, str(folder): 1.0}, objective=objective, **options)
    for number in range(30):
        mix.batch_spec.check(mix.sample(number), maker="unimo")
    with pytest.raises(UserError, match="has no regions of images, which objective masked-areas reads"):
        open_mix({str(text): 1.0}, objective={"masked-areas": PAIR}, **options)


INVALID_FILES = {
    "nothing": ("[1]", "it has no meanings"),
    "no list": ('{"continuations": [], "meanings": {"objects": [3]}}', "a meaning in it is not a list of phrases"),
    "words": ('{"continuations": [], "meanings": {"objects": [["dog"]]}}', "not a list of token ids"),
    "kind": ('{"continuations": [], "meanings": {"verbs": [[[1]]]}}', "'verbs' is not a kind of phrase"),
    "cut": ('{"continuations": [', "Expecting value"),
    "deep": ("[" * 100_000, r"is not a table of meanings \(maximum recursion depth exceeded"),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_invalid_file_of_meanings_is_rejected(name: str, tmp_path: Path) -> None:
    content, message = INVALID_FILES[name]
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_meanings(str(tmp_path / "bad.json"))
    assert "megaptm corpus meanings" in str(error.value)


def test_meanings_of_another_tokenizer_are_rejected(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(json.dumps({"continuations": [], "meanings": {"objects": [[[5000]], [[7]]]}}))
    with pytest.raises(UserError, match="has ids up to 5000, but the tokenizer has 320 ids"):
        open_unified(folder, {"cross-modal-contrast": {**PAIR, "meanings": str(tmp_path / "large.json")}})


def test_long_caption_leaves_room_for_fragments() -> None:
    task = ImageTextFragments(regions=4, features=3, classes=2, min_regions=1)
    file = io.BytesIO()
    np.savez(file, features=np.ones((2, 3)), norm_bb=np.full((2, 6), 0.5), soft_labels=np.full((2, 2), 0.5))
    long = DocumentSlice(np.arange(3, 90), slots=0, blobs={"npz": file.getvalue()})
    for seed in range(20):
        sample = task.make_sample([long], SampleContext(SPECIAL, np.random.default_rng(seed), 34, True))
        task.batch_spec(34, True).check(sample, maker="it")
        targets = sample["masked_positions"][sample["labels"] != IGNORED]
        assert sample["tokens"][targets[-1] + 1] == SPECIAL.sep == sample["labels"][len(targets) - 1]
        assert (sample["document_ids"][:30] == 1).sum() >= 28
