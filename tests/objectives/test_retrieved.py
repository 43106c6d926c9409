"""Images, texts and captions that are like a pair's: which are retrieved, never from what is held out; and how they lie
in rows of the contrast, and stand for other images where it is asked whether a pair matches."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save, save_file

from data_pipeline.annotate.retrieve import RetrievalCounts, RetrievalOptions, max_class_probabilities, retrieve
from data_pipeline.commands import retrieved
from data_pipeline.images.region_shapes import COLORS, DETECTOR, SHAPES
from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.data.retrieved import METADATA, load_retrieved
from megaptm.data.shards import Corpus, ShardWriter, write_manifest
from megaptm.errors import UserError
from megaptm.objectives.objective import RETRIEVED, DocumentSlice
from megaptm.objectives.region_files import Regions
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus

WORDS, REGIONS = 64, 12
PAIR = {"regions": REGIONS, "features": DETECTOR[0], "classes": DETECTOR[1]}
SPLITS = ("train", "validation")
HOW: dict[str, Any] = {"block": 100, "threshold": 0.2, "detector": DETECTOR}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus` of pairs, `texts` of sentences, and `found`, what was retrieved, in blocks of 100 documents."""
    root = tmp_path_factory.mktemp("retrieved")
    corpus = region_corpus(root / "corpus", images=200, tokenizer=TOKENIZERS["unimo"], validation=0.25)
    write_sentences(root / "texts", load_tokenizer(corpus / "tokenizer"))
    report = io.StringIO()
    how = RetrievalOptions(**HOW)
    places = {"texts": str(root / "texts"), "console": Console(file=report, width=200)}
    retrieved(str(corpus), str(root / "found"), how, **places)
    (root / "report").write_text(report.getvalue())
    return root


def write_sentences(folder: Path, tokenizer: Tokenizer) -> None:
    """Of each color and shape, of which every fourth is held out; all say in which split they are."""
    things = [f"{color} {shape}" for color in COLORS for shape in SHAPES]
    splits = {}
    for split, said in (("train", "one {} of many."), ("validation", "one {} of few.")):
        folder.mkdir(exist_ok=True)
        with ShardWriter(folder / f"{split}-000000.tar", "uint16", ("tokens",)) as writer:
            for key, thing in enumerate(things):
                writer.add(key, tokenizer.encode(said.format(thing)), {}, meta={}, text_bytes=20)
        splits[split] = [writer.close()]
    known = {"kind": "byte-bpe", "vocabulary": tokenizer.vocabulary, "fingerprint": tokenizer.fingerprint}
    write_manifest(folder, dtype="uint16", fields=("tokens",), splits=splits, tokenizer=known, made_from={})


def opened(folder: Path, task: str, options: dict[str, Any], **more: Any) -> Any:
    special = load_tokenizer(folder / "corpus/tokenizer").special
    told = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, "document_mask": False, **more}
    return open_mix({str(folder / "corpus"): 1.0}, objective={task: {**PAIR, **options}}, **told)


def contrast(folder: Path, options: dict[str, Any] | None = None, **more: Any) -> Any:
    return opened(folder, "cross-modal-contrast", {"retrieved": str(folder / "found"), **(options or {})}, **more)


def pieces(mix: Any, number: int) -> list[list[DocumentSlice]]:
    """The first, with all that lies beside a row's own."""
    return pieces_of(mix, 0)[:number]


def pieces_of(mix: Any, epoch: int) -> list[list[DocumentSlice]]:
    [order] = mix.orders
    return [order.piece(epoch, position) for position in range(order.per_epoch)]


def things(tokens: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> set[str]:
    """Colored shapes that a text speaks of, which its image shows."""
    words = tokenizer.decode(np.asarray(tokens)).replace(".", "").split()
    pairs = pairwise(words)
    return {f"{color} {shape}" for color, shape in pairs if color in COLORS and shape in SHAPES}


def test_images_show_the_same_and_texts_speak_of_it(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "corpus/tokenizer")
    captions = {one.blobs["npz"]: one.tokens for split in SPLITS for one in everything(folder, split)}
    seen = Counter[str]()
    for own, *others in pieces(contrast(folder), 200):
        shown = things(own.tokens, tokenizer)
        for one in others:
            tokens = captions[one.blobs["npz"]] if one.retrieved == "images" else one.tokens
            assert one.blobs.get("npz") != own.blobs["npz"]
            assert one.retrieved != "captions" or one.tokens.tolist() != own.tokens.tolist()
            seen[one.retrieved] += 1
            seen[f"same {one.retrieved}"] += bool(shown & things(tokens, tokenizer))
    assert [kind for kind in RETRIEVED if seen[kind] > 40] == [*RETRIEVED]
    # Texts may share a color or a place alone; by chance one in nine speaks of one of the things.
    least = {"images": 0.9, "texts": 0.6, "captions": 0.3}
    assert {kind: seen[f"same {kind}"] / seen[kind] >= share for kind, share in least.items()} == dict.fromkeys(
        RETRIEVED, True
    ), seen


def test_columns_tell_where_in_an_image_something_is() -> None:
    """The middle of a region counts; the last column is to the right edge."""
    boxes = np.zeros((3, 7), dtype=np.float32)
    boxes[:, 0], boxes[:, 2] = (0.0, 0.2, 1.0), (0.2, 1.0, 1.0)
    probabilities = np.array([[0, 0.9, 0.1], [0.5, 0.2, 0.3], [0, 0.4, 0.6]], dtype=np.float16)
    found = Regions(
        features=probabilities, boxes=boxes, probabilities=probabilities, confidence=np.ones(3, dtype=np.float32)
    )
    for columns, expected in ((1, [0.9, 0.6]), (2, [0.9, 0.1, 0.4, 0.6]), (3, [0.9, 0.1, 0.2, 0.3, 0.4, 0.6])):
        assert max_class_probabilities(found, columns).tolist() == pytest.approx(expected, abs=1e-3)


def everything(folder: Path, split: str) -> list[DocumentSlice]:
    [order] = contrast(folder, split=split).orders
    return [one for shard in range(len(order.shards)) for one in order.documents(shard)]


def test_nothing_is_retrieved_from_another_split(folder: Path) -> None:
    known = {split: everything(folder, split) for split in SPLITS}
    sentences = {
        split: {tokens.tobytes() for tokens in Corpus.open(folder / "texts").documents(split)} for split in SPLITS
    }
    for split in SPLITS:
        images = {one.blobs["npz"] for one in known[split]}
        captions = {one.tokens.tobytes() for one in known[split]}
        found = [one for _, *others in pieces(contrast(folder, split=split), 200) for one in others]
        assert {one.retrieved for one in found} == {*RETRIEVED}
        for one in found:
            if one.retrieved == "images":
                assert one.blobs["npz"] in images
            else:
                assert one.tokens.tobytes() in (sentences[split] if one.retrieved == "texts" else captions)


def test_each_lies_in_the_row_by_itself_right_ones_before_wrong_ones(folder: Path) -> None:
    mix, special = contrast(folder), load_tokenizer(folder / "corpus/tokenizer").special
    numbers = Counter[int]()
    for number in range(60):
        made, spot = mix.sample(number), mix.locate(number)
        mix.batch.check(made, maker="the contrast")
        own, *others = mix.orders[spot.source].piece(spot.epoch, spot.position)
        kinds = {kind: [one for one in others if one.retrieved == kind] for kind in RETRIEVED}
        texts = [own.tokens, *(one.tokens for kind in ("texts", "captions") for one in kinds[kind])]
        begins = made["text_starts"][made["text_starts"] != IGNORED].tolist()
        documents = [np.flatnonzero(made["document_ids"] == made["document_ids"][place]) for place in begins]
        for tokens, places in zip(texts, documents, strict=True):
            assert made["tokens"][places].tolist() == [special.cls, *tokens.tolist(), special.sep]
            assert made["positions"][places].tolist() == [*range(len(places))]
        assert made["num_positive_texts"] == 1 + len(kinds["texts"])
        images = made["image_starts"][made["image_starts"] != IGNORED].tolist()
        assert images[0] == WORDS
        assert len(images) == 1 + len(kinds["images"])
        seen: set[int] = set()
        for place in images:
            places = np.flatnonzero(made["document_ids"] == made["document_ids"][place])
            assert places[0] == place >= WORDS
            assert len(places) >= 2
            assert not seen & {*places.tolist()}
            seen |= {*places.tolist()}
            features = made["region_features"][places - WORDS].astype(np.float32)
            # First the whole, the mean of what is shown behind it.
            assert np.allclose(features[0], features[1:].mean(0), atol=1e-2)
            assert made["region_boxes"][place - WORDS].tolist() == [0, 0, 1, 1, 1, 1, 1]
        numbers[len(images)] += 1
    assert numbers[2] > 50


def test_without_a_file_rows_are_what_they_were(folder: Path) -> None:
    mix = opened(folder, "cross-modal-contrast", {})
    made = mix.sample(0)
    assert (made["image_starts"] != IGNORED).sum() == (made["text_starts"] != IGNORED).sum() == 1
    assert all(len(piece) == 1 for piece in pieces(mix, 20))


def test_what_is_drawn_depends_on_the_samples_number_alone(folder: Path) -> None:
    mix = contrast(folder)
    copy, again = pickle.loads(pickle.dumps(mix)), contrast(folder)
    later = mix.orders[0].per_epoch + 5
    for number in (5, 100, later, 5):
        ours, *theirs = (one.sample(number) for one in (mix, copy, again))
        assert all(np.array_equal(ours[name], one[name]) for one in theirs for name in ours)
    [own, *first], *_ = pieces(mix, 1)
    epochs = [next(p for p in pieces_of(mix, epoch) if p[0].blobs == own.blobs)[1:] for epoch in range(1, 4)]
    drawn = [[(part.retrieved, part.tokens.tolist(), part.location) for part in others] for others in (first, *epochs)]
    assert any(one != drawn[0] for one in drawn[1:]), "another is drawn when its turn comes again"


def test_another_image_of_a_pair_that_does_not_match_is_one_like_it(folder: Path) -> None:
    """Harder to tell apart: it shows one of the same things."""
    tokenizer = load_tokenizer(folder / "corpus/tokenizer")
    captions = {one.blobs["npz"]: one.tokens for one in everything(folder, "train")}
    shares = []
    for options in ({"retrieved": str(folder / "found")}, {}):
        mix = opened(folder, "image-text-matching", options)
        same = []
        for number in range(150):
            spot, made = mix.locate(number), mix.sample(number)
            piece = mix.orders[0].piece(spot.epoch, spot.position)
            if made["matched"]:
                assert sum(part.other_segment for part in piece) == 0
                continue
            other = next((part for part in piece if part.retrieved), piece[1])
            first = np.load(io.BytesIO(other.blobs["npz"]))["features"][0]
            assert np.array_equal(made["region_features"][0], first)
            same.append(bool(things(piece[0].tokens, tokenizer) & things(captions[other.blobs["npz"]], tokenizer)))
        shares.append(np.mean(same))
        assert len(same) == pytest.approx(75, abs=20)
    assert shares[0] > 0.9 > 0.4 > shares[1]


def test_who_is_stopped_goes_on_and_parts_make_the_same_file(folder: Path, tmp_path: Path) -> None:
    """Of train two blocks, of validation one."""
    corpus, texts, how = Corpus.open(folder / "corpus"), Corpus.open(folder / "texts"), RetrievalOptions(**HOW)

    def stop(said: str) -> None:
        if "block 2" in said:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrieve(corpus, tmp_path / "it", how, texts=texts, tell=stop)
    assert not (tmp_path / "it").exists()
    with pytest.raises(UserError, match=r"it.blocks was created with other corpora or options"):
        retrieve(corpus, tmp_path / "it", how)
    with pytest.raises(UserError, match="set --detector FEATURES CLASSES"):
        retrieve(corpus, tmp_path / "other", replace(how, detector=(2048, 1601)))
    assert not (tmp_path / "other.blocks").exists()
    assert str(RetrievalCounts(documents=3)) == "none of 3 documents has a match: lower --threshold"
    begun: list[str] = []
    assert isinstance(retrieve(corpus, tmp_path / "it", how, texts=texts, tell=begun.append), dict)
    assert begun == ["train: block 2 of 2", "validation: block 1 of 1"]
    assert retrieve(corpus, tmp_path / "parts", how, texts=texts, part=1, parts=2) == 2
    # A block that is damaged, or of other kinds, is made again.
    block = tmp_path / "parts.blocks/train-000001.safetensors"
    for content in (block.read_bytes()[:-1], save({"images": np.zeros((1, 4), dtype=np.int32)})):
        block.write_bytes(content)
        assert retrieve(corpus, tmp_path / "parts", how, texts=texts, part=1, parts=2) == 2
    assert isinstance(retrieve(corpus, tmp_path / "parts", how, texts=texts, part=0, parts=2), dict)
    files = [
        (one / "found" if one == folder else one).read_bytes() for one in (folder, tmp_path / "it", tmp_path / "parts")
    ]
    assert files[0] == files[1] == files[2]
    assert {one.name for one in tmp_path.iterdir()} == {"it", "parts"}


def test_the_command_says_how_much_was_found(folder: Path) -> None:
    said = (folder / "report").read_text()
    for split in SPLITS:
        for kind in RETRIEVED:
            documents = load_retrieved(str(folder / "found")).num_documents(split, kind)
            assert re.search(rf"{split}, {kind}: \d+% of {documents} documents have matches", said)


def damaged(folder: Path, tmp_path: Path, change: str) -> Path:
    path = tmp_path / "found"
    if change == "cut":
        path.write_bytes((folder / "found").read_bytes()[:-100])
        return path
    tables = load_file(folder / "found")
    with (folder / "found").open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(json.loads(file.read(size))["__metadata__"][METADATA])
    if change == "other":
        header["corpus"] = "another"
    if change == "rows":
        tables["train.images"] = tables["train.images"][:-1].copy()
    if change == "beyond":
        tables["train.images"] = np.full_like(tables["train.images"], 5000)
    if change == "built again":
        header["sources"]["texts"]["id"] = "another"
    if change == "infinite":
        header["max_text_length"] = float("inf")
    if change == "moved":
        header["sources"]["texts"]["location"] = str(tmp_path / "gone")
    if change == "kind":
        header["sources"]["sounds"] = header["sources"]["texts"]
    if change == "numbers":
        tables["train.images"] = tables["train.images"].astype(np.float32)
    save_file(tables, path, {} if change == "nothing" else {METADATA: json.dumps(header)})
    return path


BAD = {
    "cut": r"is not a file of retrieved documents \(Error while deserializing header: incomplete metadata,",
    "nothing": r"is not a file of retrieved documents \(its metadata have no corpora\): make it with `megaptm",
    "kind": r"is not a file of retrieved documents \(its metadata have an unknown kind of neighbor or an",
    "numbers": r"is not a file of retrieved documents \(train\.images is not a table of documents\): make it with",
    "other": "or the corpus was built again: make it with `megaptm corpus retrieve",
    "rows": r"is damaged \(its number of documents differs from the split `train`\): make it with `megaptm",
    "beyond": r"is damaged \(it has document index 5,000, but there are 145 documents\): make it with `megaptm",
    "built again": "which was built again since: make it with `megaptm corpus retrieve` again, or restore the",
    "infinite": "is not a file of retrieved documents .its metadata have no corpora",
    "moved": "found has texts of .*gone, where there is no corpus: move it back \\(a symbolic",
}


@pytest.mark.parametrize("change", BAD)
def test_a_file_that_does_not_fit_is_one_sentence(change: str, folder: Path, tmp_path: Path) -> None:
    path = damaged(folder, tmp_path, change)
    with pytest.raises(UserError, match=BAD[change]):
        contrast(folder, {"retrieved": str(path)}).sample(0)


def test_what_cannot_be_retrieved_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    how = RetrievalOptions(detector=DETECTOR)
    with pytest.raises(UserError, match="texts has no image regions: build it with"):
        retrieved(str(folder / "texts"), str(tmp_path / "out"), how)
    tiny_corpus(tmp_path / "other")
    with pytest.raises(UserError, match="were made with different tokenizers"):
        retrieved(str(folder / "corpus"), str(tmp_path / "out"), how, texts=str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"regions of document 0 .* of another detector .*set --detector"):
        retrieved(str(folder / "corpus"), str(tmp_path / "out"), RetrievalOptions())
    assert not (tmp_path / "out").exists()
    for place, said in ((str(folder), "is a folder: name a file"), ("s3://bucket/out", "is a URL: name a local file")):
        with pytest.raises(UserError, match=said):
            retrieved(str(folder / "corpus"), place, how)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"max_paraphrases": 2, "max_rewritten_negatives": 4},
            r"max_retrieved_captions \(1\) and the caption are more than",
        ),
        ({"regions": 3}, r"regions \(3\) is less than two positions for each of 2 images"),
        ({"retrieved": "absent"}, r"absent is not a file of retrieved documents \(no such file\)"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(options: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(UserError, match=said):
        contrast(folder, options)
