"""Retrieved images, texts and captions: what is retrieved, that splits do not mix, and how samples use it."""

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

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.data.shards import Corpus, ShardWriter, write_manifest
from megaptm.errors import UserError
from megaptm.families.uniter.corpus.region_shapes import COLORS, DETECTOR, SHAPES
from megaptm.families.uniter.corpus.retrieve import (
    MatchStatistics,
    RetrievalOptions,
    max_class_probabilities,
    retrieve,
    retrieve_documents,
)
from megaptm.families.uniter.objectives import RETRIEVED
from megaptm.families.uniter.region_files import Regions
from megaptm.families.uniter.retrieved import METADATA, load_retrieved
from megaptm.objectives.objective import DocumentSlice
from megaptm.tokenizers import Tokenizer, load_tokenizer
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus

WORDS, REGIONS = 64, 12
PAIR = {"regions": REGIONS, "features": DETECTOR[0], "classes": DETECTOR[1]}
SPLITS = ("train", "validation")
OPTIONS: dict[str, Any] = {"block": 100, "threshold": 0.2, "detector": DETECTOR}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `corpus` (pairs), `texts` (sentences), `neighbors` (in blocks of 100 documents) and `report`."""
    root = tmp_path_factory.mktemp("retrieved")
    corpus = region_corpus(root / "corpus", images=200, tokenizer=TOKENIZERS["unimo"], validation=0.25)
    write_sentences(root / "texts", load_tokenizer(corpus / "tokenizer"))
    report = io.StringIO()
    console = Console(file=report, width=200)
    options = RetrievalOptions(**OPTIONS)
    retrieve_documents(str(corpus), str(root / "neighbors"), options, texts=str(root / "texts"), console=console)
    (root / "report").write_text(report.getvalue())
    return root


def write_sentences(folder: Path, tokenizer: Tokenizer) -> None:
    """Write one sentence per color and shape in each split; the sentences of the splits differ."""
    colored_shapes = [f"{color} {shape}" for color in COLORS for shape in SHAPES]
    splits = {}
    for split, template in (("train", "one {} of many."), ("validation", "one {} of few.")):
        folder.mkdir(exist_ok=True)
        with ShardWriter(folder / f"{split}-000000.tar", "uint16", ("tokens",)) as writer:
            for key, thing in enumerate(colored_shapes):
                writer.add(key, tokenizer.encode(template.format(thing)), {}, meta={}, text_bytes=20)
        splits[split] = [writer.close()]
    tokenizer_entry = {"kind": "byte-bpe", "vocabulary": tokenizer.vocabulary, "fingerprint": tokenizer.fingerprint}
    write_manifest(folder, dtype="uint16", fields=("tokens",), splits=splits, tokenizer=tokenizer_entry, made_from={})


def open_task(folder: Path, task: str, options: dict[str, Any], **more: Any) -> Any:
    special = load_tokenizer(folder / "corpus/tokenizer").special
    settings = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, "document_mask": False, **more}
    return open_mix({str(folder / "corpus"): 1.0}, objective={task: {**PAIR, **options}}, **settings)


def open_contrast(folder: Path, options: dict[str, Any] | None = None, **more: Any) -> Any:
    return open_task(
        folder, "cross-modal-contrast", {"retrieved": str(folder / "neighbors"), **(options or {})}, **more
    )


def first_pieces(mix: Any, number: int) -> list[list[DocumentSlice]]:
    """Return the first pieces: each a document and its neighbors."""
    return epoch_pieces(mix, 0)[:number]


def epoch_pieces(mix: Any, epoch: int) -> list[list[DocumentSlice]]:
    [order] = mix.orders
    return [order.piece(epoch, position) for position in range(order.per_epoch)]


def colored_shapes(tokens: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> set[str]:
    """Return the colored shapes that a text names, which its image shows."""
    words = tokenizer.decode(np.asarray(tokens)).replace(".", "").split()
    pairs = pairwise(words)
    return {f"{color} {shape}" for color, shape in pairs if color in COLORS and shape in SHAPES}


def test_neighbors_show_or_name_the_same_shapes(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "corpus/tokenizer")
    captions = {document.blobs["npz"]: document.tokens for split in SPLITS for document in all_documents(folder, split)}
    counts, similar = Counter[str](), Counter[str]()
    for own, *neighbors in first_pieces(open_contrast(folder), 200):
        shown = colored_shapes(own.tokens, tokenizer)
        for neighbor in neighbors:
            kind = neighbor.retrieved
            tokens = captions[neighbor.blobs["npz"]] if kind == "images" else neighbor.tokens
            assert neighbor.blobs.get("npz") != own.blobs["npz"]
            assert kind != "captions" or neighbor.tokens.tolist() != own.tokens.tolist()
            counts[kind] += 1
            similar[kind] += bool(shown & colored_shapes(tokens, tokenizer))
    assert all(counts[kind] > 40 for kind in RETRIEVED)
    # A text may share a color or a position only. By chance one of nine texts names one of the shapes.
    assert similar["images"] / counts["images"] >= 0.9
    assert similar["texts"] / counts["texts"] >= 0.45
    assert similar["captions"] / counts["captions"] >= 0.3


def test_class_probabilities_per_column() -> None:
    """The center of a region decides its column."""
    boxes = np.zeros((3, 7), dtype=np.float32)
    boxes[:, 0], boxes[:, 2] = (0.0, 0.2, 1.0), (0.2, 1.0, 1.0)
    probabilities = np.array([[0, 0.9, 0.1], [0.5, 0.2, 0.3], [0, 0.4, 0.6]], dtype=np.float16)
    regions = Regions(
        features=probabilities, boxes=boxes, probabilities=probabilities, confidence=np.ones(3, dtype=np.float32)
    )
    for columns, expected in ((1, [0.9, 0.6]), (2, [0.9, 0.1, 0.4, 0.6]), (3, [0.9, 0.1, 0.2, 0.3, 0.4, 0.6])):
        assert max_class_probabilities(regions, columns).tolist() == pytest.approx(expected, abs=1e-3)


def all_documents(folder: Path, split: str) -> list[DocumentSlice]:
    [order] = open_contrast(folder, split=split).orders
    return [document for shard in range(len(order.shards)) for document in order.documents(shard)]


def test_neighbors_are_of_the_same_split(folder: Path) -> None:
    documents = {split: all_documents(folder, split) for split in SPLITS}
    sentences = {
        split: {tokens.tobytes() for tokens in Corpus.open(folder / "texts").documents(split)} for split in SPLITS
    }
    for split in SPLITS:
        images = {document.blobs["npz"] for document in documents[split]}
        captions = {document.tokens.tobytes() for document in documents[split]}
        neighbors = [part for _, *parts in first_pieces(open_contrast(folder, split=split), 200) for part in parts]
        by_kind = {kind: [part for part in neighbors if part.retrieved == kind] for kind in RETRIEVED}
        assert all(by_kind.values())
        assert {part.blobs["npz"] for part in by_kind["images"]} <= images
        assert {part.tokens.tobytes() for part in by_kind["texts"]} <= sentences[split]
        assert {part.tokens.tobytes() for part in by_kind["captions"]} <= captions


def test_layout_of_texts_and_images(folder: Path) -> None:
    """Each text and image is a document of its own. Positive texts come first."""
    mix, special = open_contrast(folder), load_tokenizer(folder / "corpus/tokenizer").special
    image_counts = Counter[int]()
    for number in range(60):
        sample, location = mix.sample(number), mix.locate(number)
        mix.batch_spec.check(sample, maker="cross-modal-contrast")
        own, *neighbors = mix.orders[location.source].piece(location.epoch, location.position)
        kinds = {kind: [part for part in neighbors if part.retrieved == kind] for kind in RETRIEVED}
        texts = [own.tokens, *(part.tokens for kind in ("texts", "captions") for part in kinds[kind])]
        starts = sample["text_starts"][sample["text_starts"] != IGNORED].tolist()
        documents = [np.flatnonzero(sample["document_ids"] == sample["document_ids"][start]) for start in starts]
        for tokens, indices in zip(texts, documents, strict=True):
            assert sample["tokens"][indices].tolist() == [special.cls, *tokens.tolist(), special.sep]
            assert sample["positions"][indices].tolist() == [*range(len(indices))]
        assert sample["num_positive_texts"] == 1 + len(kinds["texts"])
        images = sample["image_starts"][sample["image_starts"] != IGNORED].tolist()
        assert images[0] == WORDS
        assert len(images) == 1 + len(kinds["images"])
        used: set[int] = set()
        for start in images:
            indices = np.flatnonzero(sample["document_ids"] == sample["document_ids"][start])
            assert indices[0] == start >= WORDS
            assert len(indices) >= 2
            assert not used & {*indices.tolist()}
            used |= {*indices.tolist()}
            features = sample["region_features"][indices - WORDS].astype(np.float32)
            # The first region is the full image: the mean of the regions after it.
            assert np.allclose(features[0], features[1:].mean(0), atol=1e-2)
            assert sample["region_boxes"][start - WORDS].tolist() == [0, 0, 1, 1, 1, 1, 1]
        image_counts[len(images)] += 1
    assert image_counts[2] > 50


def test_samples_without_neighbors(folder: Path) -> None:
    mix = open_task(folder, "cross-modal-contrast", {})
    sample = mix.sample(0)
    assert (sample["image_starts"] != IGNORED).sum() == (sample["text_starts"] != IGNORED).sum() == 1
    assert all(len(piece) == 1 for piece in first_pieces(mix, 20))


def test_sample_depends_on_its_index_only(folder: Path) -> None:
    mix = open_contrast(folder)
    copy, again = pickle.loads(pickle.dumps(mix)), open_contrast(folder)
    later = mix.orders[0].per_epoch + 5
    for number in (5, 100, later, 5):
        sample, *copies = (open_task.sample(number) for open_task in (mix, copy, again))
        assert all(np.array_equal(sample[name], other[name]) for other in copies for name in sample)
    [own, *first], *_ = first_pieces(mix, 1)
    epochs = [next(p for p in epoch_pieces(mix, epoch) if p[0].blobs == own.blobs)[1:] for epoch in range(1, 4)]
    neighbors = [
        [(part.retrieved, part.tokens.tolist(), part.location) for part in parts] for parts in (first, *epochs)
    ]
    assert any(sampled != neighbors[0] for sampled in neighbors[1:]), "each epoch samples other neighbors"


def test_retrieved_images_are_negatives_of_matching(folder: Path) -> None:
    """Retrieved images are harder negatives: they show one of the same shapes."""
    tokenizer = load_tokenizer(folder / "corpus/tokenizer")
    captions = {document.blobs["npz"]: document.tokens for document in all_documents(folder, "train")}
    shares = []
    for options in ({"retrieved": str(folder / "neighbors")}, {}):
        mix = open_task(folder, "image-text-matching", options)
        same = []
        for number in range(150):
            location, sample = mix.locate(number), mix.sample(number)
            piece = mix.orders[0].piece(location.epoch, location.position)
            if sample["matched"]:
                assert sum(part.other_segment for part in piece) == 0
                continue
            other = next((part for part in piece if part.retrieved), piece[1])
            first = np.load(io.BytesIO(other.blobs["npz"]))["features"][0]
            assert np.array_equal(sample["region_features"][0], first)
            same.append(
                bool(
                    colored_shapes(piece[0].tokens, tokenizer) & colored_shapes(captions[other.blobs["npz"]], tokenizer)
                )
            )
        shares.append(np.mean(same))
        assert len(same) == pytest.approx(75, abs=20)
    assert shares[0] > 0.9 > 0.4 > shares[1]


def test_retrieval_resumes_and_parts_give_the_same_file(folder: Path, tmp_path: Path) -> None:
    """The training split has two blocks, the validation split one."""
    corpus, texts, options = Corpus.open(folder / "corpus"), Corpus.open(folder / "texts"), RetrievalOptions(**OPTIONS)

    def stop(message: str) -> None:
        if "block 2" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrieve(corpus, tmp_path / "resumed", options, texts=texts, tell=stop)
    assert not (tmp_path / "resumed").exists()
    with pytest.raises(UserError, match=r"resumed.blocks was created with other corpora or options"):
        retrieve(corpus, tmp_path / "resumed", options)
    with pytest.raises(UserError, match="set --detector FEATURES CLASSES"):
        retrieve(corpus, tmp_path / "other", replace(options, detector=(2048, 1601)))
    assert not (tmp_path / "other.blocks").exists()
    assert str(MatchStatistics(documents=3)) == "none of 3 documents has a match: lower --threshold"
    messages: list[str] = []
    assert isinstance(retrieve(corpus, tmp_path / "resumed", options, texts=texts, tell=messages.append), dict)
    assert messages == ["train: block 2 of 2", "validation: block 1 of 1"]
    assert retrieve(corpus, tmp_path / "parts", options, texts=texts, part=1, parts=2) == 2
    # A block that is damaged, or has other kinds, is computed again.
    block = tmp_path / "parts.blocks/train-000001.safetensors"
    for content in (block.read_bytes()[:-1], save({"images": np.zeros((1, 4), dtype=np.int32)})):
        block.write_bytes(content)
        assert retrieve(corpus, tmp_path / "parts", options, texts=texts, part=1, parts=2) == 2
    assert isinstance(retrieve(corpus, tmp_path / "parts", options, texts=texts, part=0, parts=2), dict)
    paths = (folder / "neighbors", tmp_path / "resumed", tmp_path / "parts")
    assert len({path.read_bytes() for path in paths}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"resumed", "parts"}


def test_command_reports_share_of_documents_with_neighbors(folder: Path) -> None:
    report = (folder / "report").read_text()
    for split in SPLITS:
        for kind in RETRIEVED:
            documents = load_retrieved(str(folder / "neighbors")).num_documents(split, kind)
            assert re.search(rf"{split}, {kind}: \d+% of {documents} documents have matches", report)


def damage(folder: Path, tmp_path: Path, change: str) -> Path:
    """Write the file of neighbors with one mistake."""
    path = tmp_path / "neighbors"
    if change == "cut":
        path.write_bytes((folder / "neighbors").read_bytes()[:-100])
        return path
    tables = load_file(folder / "neighbors")
    with (folder / "neighbors").open("rb") as file:
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


MESSAGES = {
    "cut": r"is not a file of retrieved documents \(Error while deserializing header: incomplete metadata,",
    "nothing": r"is not a file of retrieved documents \(its metadata have no corpora\): make it with `megaptm",
    "kind": r"is not a file of retrieved documents \(its metadata have an unknown kind of neighbor or an",
    "numbers": r"is not a file of retrieved documents \(train\.images is not a table of documents\): make it with",
    "other": "or the corpus was built again: make it with `megaptm corpus retrieve",
    "rows": r"is damaged \(its number of documents differs from the split `train`\): make it with `megaptm",
    "beyond": r"is damaged \(it has document index 5,000, but there are 145 documents\): make it with `megaptm",
    "built again": "that corpus has been built again since: make it with `megaptm corpus retrieve` again, or",
    "infinite": "is not a file of retrieved documents .its metadata have no corpora",
    "moved": "neighbors has texts of .*gone, where there is no corpus: move it back \\(a symbolic",
}


@pytest.mark.parametrize("change", MESSAGES)
def test_invalid_neighbors_are_rejected(change: str, folder: Path, tmp_path: Path) -> None:
    path = damage(folder, tmp_path, change)
    with pytest.raises(UserError, match=MESSAGES[change]):
        open_contrast(folder, {"retrieved": str(path)}).sample(0)


def test_invalid_retrieval_arguments_are_rejected(folder: Path, tmp_path: Path) -> None:
    options = RetrievalOptions(detector=DETECTOR)
    with pytest.raises(UserError, match="texts has no image regions: build it with"):
        retrieve_documents(str(folder / "texts"), str(tmp_path / "out"), options)
    tiny_corpus(tmp_path / "other")
    with pytest.raises(UserError, match="were made with different tokenizers"):
        retrieve_documents(str(folder / "corpus"), str(tmp_path / "out"), options, texts=str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"regions of document 0 .* of another detector .*set --detector"):
        retrieve_documents(str(folder / "corpus"), str(tmp_path / "out"), RetrievalOptions())
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="is a folder: name a file"):
        retrieve_documents(str(folder / "corpus"), str(folder), options)
    with pytest.raises(UserError, match="is a URL: name a local file"):
        retrieve_documents(str(folder / "corpus"), "s3://bucket/out", options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_paraphrases": 2, "max_rewritten_negatives": 4},
            r"max_retrieved_captions \(1\) and the caption are more than",
        ),
        ({"regions": 3}, r"regions \(3\) is less than two positions for each of 2 images"),
        ({"retrieved": "absent"}, r"absent is not a file of retrieved documents \(no such file\)"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        open_contrast(folder, options)
