"""Questions about unmasked texts (ERNIE 2.0): labels equal a brute-force search."""

from itertools import chain, pairwise, permutations
from pathlib import Path

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import open_mix
from megaptm.data.shards import Corpus, ShardWriter, write_manifest
from megaptm.errors import UserError
from megaptm.families.ernie.objectives import Capitalization, TokenDocument
from megaptm.families.ernie.questions import order_label, sentence_distance_pair
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.compose import map_files
from megaptm.objectives.objective import DocumentSlice, SampleContext, SentenceGroup
from megaptm.objectives.questions import TextQuestion
from megaptm.objectives.text_questions import fit_lengths
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.objectives.samples import SPECIAL, random_slice

CLS, SEP = SPECIAL.cls, SPECIAL.sep


def group(*lengths: int, first: int = 500) -> SentenceGroup:
    """Sentences of rising token ids; all tokens of the other document are 999."""
    borders = np.cumsum((first, *lengths))
    return SentenceGroup(
        [np.arange(*pair) for pair in pairwise(borders)], sample_other_document=lambda rng: [np.full(9, 999)] * 9
    )


def split_segments(sample: dict[str, np.ndarray]) -> list[list[int]]:
    """Return the ordinary tokens of each segment."""
    text, segments = sample["tokens"], sample["segments"]
    inner = (text >= SPECIALS) & (sample["document_ids"] > 0)
    return [text[inner & (segments == number)].tolist() for number in range(int(segments.max()) + 1)]


def test_each_order_has_its_own_class():
    orders = [list(order) for count in (1, 2, 3) for order in permutations(range(count))]
    assert [order_label(order) for order in orders] == [*range(9)]


def test_reordering_label_is_the_order_of_segments():
    task, rng = build_objective({"reordering": {"task": "sentence-reordering"}}), np.random.default_rng(0)
    assert isinstance(task, TextQuestion)
    assert (task.name, task.losses, task.num_segments) == ("sentence-reordering", {"sentence-reordering": 1.0}, 3)
    label_counts = np.zeros(9)
    for _ in range(1800):
        sample = task.make_sample(group(7, 4, 9, 6), SampleContext(SPECIAL, rng, 32, True))
        texts = split_segments(sample)
        order = np.argsort(np.argsort([text[0] for text in texts])).tolist()
        assert sample["sentence_reordering"] == order_label(order)
        assert sorted(chain(*texts)) == [*range(500, 526)]
        assert sample["tokens"][0] == CLS
        assert (sample["tokens"] == SEP).sum() == len(texts)
        label_counts[order_label(order)] += 1
    # Each number of segments is equally likely, and so is each of its orders.
    assert label_counts / 1800 == pytest.approx([1 / 3, *[1 / 6] * 2, *[1 / 18] * 6], abs=0.04)
    assert task.make_sample(group(70), SampleContext(SPECIAL, rng, 32, True))["sentence_reordering"] == 0


def test_sentence_distance_labels():
    rng, label_counts = np.random.default_rng(0), np.zeros(3)
    lengths: list[list[int]] = [[], [], []]
    for _ in range(3000):
        pair = sentence_distance_pair(group(5, 5, 5, 5, 5), rng, 40)
        first, second = pair.texts
        gap = second[0] - first[-1]
        assert pair.label == (2 if second[0] == 999 else 0 if gap == 1 else 1)
        assert (np.diff(second) == (pair.label != 2)).all()
        label_counts[pair.label] += 1
        lengths[pair.label].append(len(second))
    assert label_counts / 3000 == pytest.approx([1 / 3] * 3, abs=0.03)
    assert [np.mean(of_label) for of_label in lengths] == pytest.approx([np.mean(lengths[0])] * 3, rel=0.15)
    assert {sentence_distance_pair(group(5, 5), rng, 40).label for _ in range(50)} == {0, 2}
    assert {sentence_distance_pair(group(50), rng, 40).label for _ in range(9)} == {2}


def dialogue(*roles: int) -> SentenceGroup:
    """Turns of five rising token ids, each one a word, with roles; all tokens of the other dialogue are 999."""
    turns = [
        np.column_stack([np.arange(500 + 5 * at, 505 + 5 * at), np.ones(5, dtype=int), np.full(5, role)])
        for at, role in enumerate(roles)
    ]
    return SentenceGroup(turns, sample_other_document=lambda rng: iter([np.array([[999, 1, 2]] * 4)]))


def test_dialogue_has_roles_and_replaced_turns():
    """Segment ids are roles. Half of the samples have one turn of another dialogue."""
    task = build_objective({"masked-lm": {"hide": "independent"}, "dialogue": {}})
    assert (task.annotations, task.num_segments, task.raw_length(64)) == (("words", "turns"), 2, 60)
    rng, labels, patterns = np.random.default_rng(0), [], set()
    for _ in range(600):
        sample = task.make_sample(dialogue(2, 3, 2, 2, 3, 3), SampleContext(SPECIAL, rng, 64, True))
        text, real = sample["tokens"].copy(), sample["labels"] != IGNORED
        text[sample["masked_positions"][real]] = sample["labels"][real]
        turns = np.split(text[1:], np.flatnonzero(text[1:] == SEP) + 1)[:3]
        roles = np.split(sample["segments"][1:], np.flatnonzero(text[1:] == SEP) + 1)[:3]
        assert all(len({*role.tolist()}) == 1 for role in roles)
        patterns.add("".join("QR"[role[0]] for role in roles))
        replaced = [turn[0] == 999 for turn in turns]
        assert sum(replaced) == sample["dialogue"]
        first_ids = [turn[0] - 5 * index for index, turn in enumerate(turns) if turn[0] != 999]
        assert len({*first_ids}) == 1  # the other turns are consecutive
        labels.append(int(sample["dialogue"]))
    assert patterns == {"QRQ", "QRR", "QQR"}
    assert np.mean(labels) == pytest.approx(0.5, abs=0.06)
    assert task.make_sample(dialogue(2), SampleContext(SPECIAL, rng, 64, True))["dialogue"] == IGNORED


def test_longest_texts_are_shortened_first():
    assert fit_lengths([3, 20, 9], 40) == [3, 20, 9]
    assert fit_lengths([3, 20, 9], 20) == [3, 9, 8]
    assert fit_lengths([30, 20, 9], 21) == [7, 7, 7]
    sample = build_objective({"d": {"task": "dialogue"}}).make_sample(
        SentenceGroup([np.full((90, 2), 500)] * 3, sample_other_document=lambda rng: iter([np.full((90, 2), 500)])),
        SampleContext(SPECIAL, np.random.default_rng(0), 32, True),
    )
    assert (sample["document_ids"] == 1).sum() == 32


def dialogue_corpus(folder: Path, num_turns: int = 45) -> str:
    """Write a corpus of nine dialogues of five turns. Its manifest states `num_turns`."""
    rng, fields = np.random.default_rng(0), ("tokens", "turns")
    folder.mkdir()
    with ShardWriter(folder / "train-000000.tar", "uint16", fields) as writer:
        for key in range(9):
            turns = np.column_stack([np.arange(0, 40, 8), [2, 3, 2, 3, 3]])
            writer.add(key, rng.integers(SPECIALS, 999, 40), {"turns": turns}, meta={}, text_bytes=99)
    splits = {"train": [writer.close()], "validation": []}
    tokenizer = {"kind": "byte-bpe", "vocabulary": 1000, "fingerprint": "tiny"}
    made_from = {"annotation_counts": {"turns": num_turns}}
    write_manifest(folder, dtype="uint16", fields=fields, splits=splits, tokenizer=tokenizer, made_from=made_from)
    return str(folder)


def test_dialogue_samples_of_a_corpus(tmp_path):
    objective = {"masked-lm": {}, "dialogue": {}}
    options = {"sequence": 64, "seed": 0, "special": SPECIAL}
    mix = open_mix({dialogue_corpus(tmp_path / "c"): 1.0}, objective=objective, **options)
    samples = [mix.sample(number) for number in range(40)]
    assert {int(sample["dialogue"]) for sample in samples} == {0, 1}
    assert {int((sample["document_ids"] == 1).sum()) for sample in samples} == {28}
    with pytest.raises(
        UserError,
        match=r"was built without sentences, which the objective needs: build it with annotate\.sentences=true,",
    ):
        open_mix({str(tmp_path / "c"): 1.0}, objective="masked-lm-next-sentence", **options)
    tiny_corpus(tmp_path / "d")
    with pytest.raises(
        UserError, match=r"was built without turns, which the objective needs: build it with annotate\.turns=true and"
    ):
        open_mix({str(tmp_path / "d"): 1.0}, objective=objective, **options)
    with pytest.raises(UserError, match=r"has no turns at all, which the objective needs.*=true and sources with `mes"):
        open_mix({dialogue_corpus(tmp_path / "e", num_turns=0): 1.0}, objective=objective, **options)


def test_tasks_read_their_own_corpora(tmp_path):
    tiny_corpus(tmp_path / "prose", documents=20)
    prose, talk = str(tmp_path / "prose"), dialogue_corpus(tmp_path / "talk")
    objective = {
        "texts": {"task": "masked-lm", "question": "next-sentence", "corpora": [prose], "share": 3},
        "dialogues": {"task": "masked-lm", "question": "dialogue", "corpora": [talk], "share": 1},
    }
    options = {"sequence": 64, "seed": 0, "special": SPECIAL}
    mix = open_mix({prose: 1.0, talk: 1.0}, objective=objective, **options)
    assert mix.quotas == [75_000, 25_000]
    assert [source.corpus for source in mix.sources] == [prose, talk]
    with pytest.raises(
        UserError, match=r"was built without turns, which the objective needs: build it with annotate\.turns=true and"
    ):
        open_mix({prose: 1.0, talk: 1.0}, objective={"masked-lm": {}, "dialogue": {}}, **options)
    for number in range(40):
        sample = mix.sample(number)
        talks = mix.sources[mix.locate(number).source].corpus == talk
        assert (sample["next_sentence"] == IGNORED) == talks
        assert talks or sample["dialogue"] == IGNORED
    # A task whose corpora are absent is left out.
    assert len(open_mix({prose: 1.0}, objective=objective, sequence=64, seed=0, special=SPECIAL).sources) == 1
    tiny_corpus(tmp_path / "x")
    with pytest.raises(UserError, match=r"add one of them to the `corpora` of a task\."):
        open_mix({str(tmp_path / "x"): 1.0}, objective=objective, sequence=64, seed=0, special=SPECIAL)
    moved = map_files(objective, lambda path: f"/there{path}")
    assert moved["texts"]["corpora"] == [f"/there{prose}"]


def test_token_document_label():
    """A token's label is 1 if it occurs again in the rest of its document."""
    rng = np.random.default_rng(0)
    text, remaining = [np.array([200, 201, 202]), np.array([203, 200])], [np.array([201, 900]), np.array([203])]
    piece = SentenceGroup(text, sample_other_document=lambda rng: [], rest_of_document=lambda: remaining)
    sample = TokenDocument().make_sample(piece, SampleContext(SPECIAL, rng, 16, True))
    assert sample["tokens"][:7].tolist() == [CLS, 200, 201, 202, 203, 200, SEP]
    assert sample["token_document"][:7].tolist() == [IGNORED, 0, 1, 0, 1, 0, IGNORED]
    assert (sample["token_document"][7:] == IGNORED).all()


@pytest.mark.parametrize("lengths", [(3, 4, 5), (9,)])
def test_token_document_splits_short_documents(lengths):
    """A document that fits into the sample is split: one part is shown, the other is the rest."""
    texts = [np.array([200, 201, 202]) for _ in lengths] if len(lengths) > 1 else [np.tile([200, 201, 202], 3)]
    piece = SentenceGroup(texts, sample_other_document=lambda rng: [])
    sample = TokenDocument().make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 16, True))
    has_label = sample["token_document"] != IGNORED
    assert 0 < has_label.sum() < 9
    assert sample["token_document"][has_label].all()


def test_token_document_labels_of_a_corpus(tmp_path):
    tiny_corpus(tmp_path / "c", documents=12, lengths=(150, 200), shards=1)
    task = TokenDocument()
    mix = open_mix({str(tmp_path / "c"): 1.0}, objective=task, sequence=40, seed=0, special=SPECIAL)
    documents = [tokens.tolist() for tokens in Corpus.open(tmp_path / "c").documents("train")]
    for number in range(30):
        sample = mix.sample(number)
        (text,) = split_segments(sample)
        (document,) = (tokens for tokens in documents if text[:5] in [tokens[i : i + 5] for i in range(len(tokens))])
        start = next(i for i in range(len(document)) if document[i : i + len(text)] == text)
        remaining = {*document[:start], *document[start + len(text) :]}
        labels = sample["token_document"][1 : 1 + len(text)]
        assert labels.tolist() == [int(token in remaining) for token in text]


def test_capitalization_labels():
    pieces = [
        DocumentSlice(random_slice(5).tokens, 2, {"capitals": np.array([0, 3])}),
        DocumentSlice(random_slice(3).tokens, 2, {}),
    ]
    pieces[1] = DocumentSlice(pieces[1].tokens, 2, {"capitals": np.zeros(0, dtype=int)})
    sample = Capitalization().make_sample(pieces, SampleContext(SPECIAL, np.random.default_rng(0), 16, True))
    expected = [IGNORED, 1, 0, 0, 1, 0, IGNORED, IGNORED, 0, 0, 0, *[IGNORED] * 5]
    assert sample["capitalization"].tolist() == expected
    joined = Capitalization().make_sample(pieces, SampleContext(SPECIAL, np.random.default_rng(0), 16, False))
    assert (joined["tokens"][joined["capitalization"] != IGNORED] >= SPECIALS).all()


def test_samples_have_the_id_of_their_task(tmp_path):
    tiny_corpus(tmp_path / "c", documents=20, lengths=(150, 200))
    objective = {
        "masks": {"task": "masked-lm", "share": 1, "task_id": 0},
        "reordering": {"task": "sentence-reordering", "share": 2, "task_id": 3},
        "tokens": {"task": "token-document", "share": 1, "task_id": 2},
    }
    mix = open_mix({str(tmp_path / "c"): 1.0}, objective=objective, sequence=40, seed=0, special=SPECIAL)
    assert mix.batch_spec.fields["task_ids"].shape == ()
    fields = {0: "labels", 3: "sentence_reordering", 2: "token_document"}
    task_ids = []
    for number in range(400):
        sample = mix.sample(number)
        task_ids.append(int(sample["task_ids"]))
        assert [task for task, field in fields.items() if (sample[field] != IGNORED).any()] == task_ids[-1:]
    assert np.bincount(task_ids)[[0, 2, 3]] / 400 == pytest.approx([0.25, 0.25, 0.5], abs=0.07)


SCHEDULES = {
    "joint": ({0: 1}, {0: 1}, [[1, 1]]),
    "continual": ({0: 1, 10: 0}, {0: 0, 10: 1}, [[1, 0], [0, 1]]),
    "sequential": ({0: 1, 10: 1}, {0: 0, 10: 3}, [[1, 0], [1, 3]]),
}


@pytest.mark.parametrize(("first", "second", "expected"), [*SCHEDULES.values()], ids=[*SCHEDULES])
def test_shares_of_phases_are_exact(tmp_path, first, second, expected):
    tiny_corpus(tmp_path / "c", documents=20, lengths=(150, 200))
    objective = {
        "masks": {"task": "masked-lm", "share": first, "task_id": 0},
        "distance": {"task": "sentence-distance", "share": second, "task_id": 1},
    }
    options = {"objective": objective, "sequence": 40, "seed": 0, "special": SPECIAL}
    mix = open_mix({str(tmp_path / "c"): 1.0}, schedule=BatchSchedule(8), **options)
    for phase, shares, sample in zip(mix.phases, expected, (0, 80), strict=False):
        assert phase.first == sample
        assert phase.quotas == [100_000 * share / sum(shares) for share in shares]
    assert len(mix.phases) == len(expected)
    # The task of a sample depends only on the index of the sample, so that a resumed run continues identically.
    again = open_mix({str(tmp_path / "c"): 1.0}, schedule=BatchSchedule(8), **options)
    ahead = {index: again.sample(index)["task_ids"] for index in (90, 80, 79, 75)}
    assert ahead == {index: mix.sample(index)["task_ids"] for index in (75, 79, 80, 90)}


def test_ernie_2_mixture_has_four_tasks():
    mixture = OBJECTIVES["ernie-2"]
    assert [task.task_id for task in mixture.tasks] == [0, 1, 2, 3]
    assert [*mixture.losses] == ["mlm", "capitalization", "token-document", "sentence-reordering"]
