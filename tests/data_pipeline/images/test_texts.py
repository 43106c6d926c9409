"""Images with texts to a corpus: which pairs are kept, ids of texts in the index, existing shards unchanged."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import transformers
from PIL import Image
from rich.console import Console
from tokenizers import pre_tokenizers

from data_pipeline.clean.basic import CutLong, DropShort
from data_pipeline.clean.connectives import PairByConnective
from data_pipeline.inspection import inspect_corpus
from data_pipeline.recipe import TokenizerRecipe
from data_pipeline.verify import verify_corpus
from megaptm.data import Loader, open_mix
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.vit.corpus.build import build_image_corpus
from megaptm.families.vit.corpus.duplicates import appearance_sketch, find_repeated
from megaptm.families.vit.corpus.recipe import ImageRecipe, read_image_settings
from megaptm.families.vit.corpus.text_steps import TextSteps
from megaptm.families.vit.corpus.texts import InvalidTextError, text_of
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.pictures import BAD, build, encoded, picture, pixels, write_tar

SMALL = TokenizerRecipe(vocabulary=270, specials="clip")
IMAGE_TEXT = {"image-text": {"size": 8, "text_length": 12}}


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        (b"  \n\t", None, "image without text"),
        (b"\xff\xfe", None, "text is not UTF-8"),
        (b"-- ... !", None, "text without letters or digits"),
        (bytes(1 << 21), None, "text of more than 1 MiB"),
        (b"{", "caption", "damaged .json"),
        (b'{"caption": ' + b"[" * 500_000, "caption", "damaged .json"),
        (b"[1]", "caption", "image without text"),
        (b'{"text": "a"}', "caption", "image without text"),
        (b'{"caption": 3}', "caption", "image without text"),
    ],
)
def test_invalid_caption_has_reason(content, field, message):
    with pytest.raises(InvalidTextError, match=message):
        text_of(content, field)


def test_caption_white_space_is_collapsed():
    assert text_of(b" a\ncat \t here ", None) == "a cat here"
    assert text_of(b'{"caption": "a\\ud800 cat"}', "caption") == "a cat"


def texts_in(corpus: Corpus, split: str = "train") -> list[str]:
    tokenizer = load_tokenizer(corpus.folder / "tokenizer")
    return [tokenizer.decode(ids) for ids in corpus.documents(split, "hash")]


def test_folder_of_pairs_is_packed(tmp_path):
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    for number in range(4):
        (source / f"deep/er/{number}.jpg").write_bytes(picture(seed=number))
        (source / f"deep/er/{number}.txt").write_text(f"photo number {number}")
    (source / "noted.png").write_bytes(picture("PNG"))
    (source / "noted.json").write_text(json.dumps({"caption": "with a note"}))
    (source / "lonely.jpg").write_bytes(picture())
    (source / "nothing.txt").write_text("no image has this name")
    (source / "cut.jpg").write_bytes(BAD["cut.jpg"][0])
    (source / "cut.txt").write_text("a damaged one")
    (source / "mute.jpg").write_bytes(picture())
    (source / "mute.txt").write_text(" ")
    (source / "notes.md").write_text("?")
    report = build(source, tmp_path / "corpus", texts=True, tokenizer=SMALL, validation=0.0)
    assert report.dropped == {
        "image without text": 2,
        "text without image": 1,
        "not an image suffix": 1,
        "damaged": 1,
    }
    corpus = Corpus.open(tmp_path / "corpus")
    assert sorted(texts_in(corpus)) == [*(f"photo number {number}" for number in range(4)), "with a note"]
    assert all(check.is_valid for check in verify_corpus(tmp_path / "corpus"))
    with tarfile.open(tmp_path / "corpus/train-000000.tar") as tar:
        names = [member.name for member in tar]
    assert sorted(name.split(".")[1] for name in names) == ["jpg"] * 4 + ["json"] * 5 + ["png"] + ["txt"] * 5
    again = build(source, tmp_path / "again", texts=True, tokenizer=SMALL, validation=0.0)
    assert again.id == report.id


def test_unusual_names_and_huge_text(tmp_path):
    (source := tmp_path / "source").mkdir()
    for name in ("one.jpg", "LOUD.JPG", os.fsdecode(b"\xff.jpg"), "long.jpg"):
        (source / name).write_bytes(picture())
    for name in ("one.txt", "LOUD.TXT", os.fsdecode(b"\xff.txt")):
        (source / name).write_text(f"{name[:3].lower()} text", errors="replace")
    with (source / "long.txt").open("wb") as file:
        file.truncate(1 << 40)
    report = build(source, tmp_path / "corpus", texts=True, tokenizer=SMALL, validation=0.0)
    assert report.dropped == {"name is not UTF-8": 2, "text of more than 1 MiB": 1}
    assert sorted(texts_in(Corpus.open(tmp_path / "corpus"))) == ["lou text", "one text"]


def header(name: bytes, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """For a member of a tar of any declared size."""
    info = tarfile.TarInfo(os.fsdecode(name))
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


BAD_SHARDS = {
    "a size below nothing": (header(b"b.md", -512), "truncated archive"),
    "a tower of headers": (
        (header(b"x", 6, tarfile.XHDTYPE) + b"6 a=b\n".ljust(512, b"\0")) * 2000,
        "truncated archive",
    ),
    "a second archive": (bytes(1024) + header(b"c.jpg", 0), "data after an archive"),
    "a name that is no text": (header(b"\xff.jpg", 0), "image without text"),
}


@pytest.mark.parametrize("name", BAD_SHARDS)
def test_damaged_shards(tmp_path, name):
    (tmp_path / "source").mkdir()
    shard = tmp_path / "source/a.tar"
    write_tar(
        shard,
        {f"{key}.{suffix}": content for key in "ab" for suffix, content in (("jpg", picture()), ("txt", b"a cat"))},
    )
    with tarfile.open(shard) as tar:
        end = max(member.offset_data for member in tar) + 512
    damage, reason = BAD_SHARDS[name]
    shard.write_bytes(shard.read_bytes()[:end] + damage + bytes(1024))
    report = build(tmp_path / "source", tmp_path / "corpus", texts=True, tokenizer=SMALL, validation=0.0)
    assert report.dropped == {reason: 1}
    assert report.splits["train"]["images"] == (1 if "truncated" in reason else 2)


CAPTIONS = {
    "good": "a black cat  on a chair",
    "short": "cat",
    "name": "IMG 0017 2024 08 11 12",
    "long": "cat " * 40,
    "german": "eine schwarze Katze sitzt auf dem Stuhl in der Küche",
    "upper": "A BLACK ﬁsh in the water\u200b",
}
LEFT_OUT = {
    "shorter than 2 words": ("short", "cat"),
    "less than 60% letters": ("name", "IMG 0017 2024 08 11 12"),
    "longer than 60 characters": ("long", ("cat " * 40).strip()),
    "keep-language: not en": ("german", CAPTIONS["german"]),
}


@pytest.mark.parametrize("packed", [False, True], ids=["files", "existing shards"])
def test_steps_drop_images_with_their_texts(packed, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    files = {f"{name}.txt": text.encode() for name, text in CAPTIONS.items()}
    files |= {f"{name}.jpg": picture(seed=number) for number, name in enumerate(CAPTIONS)}
    if packed:
        write_tar(source / "a.tar", dict(sorted(files.items())))
    else:
        for name, content in files.items():
            (source / name).write_bytes(content)
    steps = "[normalize-unicode: {form: NFKC}, drop-short: {characters: 1, words: 2}, drop-long: {characters: 60}, "
    steps += "drop-few-letters: {share: 0.6}, keep-language: {languages: [en], min_probability: 0}]"
    arguments = [str(source), f"out={tmp_path / 'corpus'}", "texts=true", "tokenizer.vocabulary=270", "validation=0"]
    report = build_image_corpus([*arguments, f"steps={steps}"], console=Console(file=io.StringIO()))
    assert report.dropped == dict.fromkeys(LEFT_OUT, 1)
    corpus = Corpus.open(tmp_path / "corpus")
    assert sorted(texts_in(corpus)) == ["A BLACK fish in the water", "a black cat on a chair"]
    page = (tmp_path / "corpus/report.html").read_text(encoding="utf-8")
    for reason, (name, text) in LEFT_OUT.items():
        where = f"a.tar:{name}" if packed else f"{name}.jpg"
        assert report.examples[reason] == [(where, text)]
        assert f"{where}: {text}"[:80] in page
    retained = corpus.manifest.made_from["recipe"]["steps"]
    assert [*retained[1]] == ["drop-short"]
    assert "steps" not in ImageRecipe(source="photos", texts=True).for_manifest()  # as in older corpora


@pytest.fixture(scope="module")
def existing_shards(tmp_path_factory):
    """Shards from another program, and a corpus of them."""
    folder = tmp_path_factory.mktemp("existing")
    (folder / "shards").mkdir()
    for shard in range(3):
        files = {
            f"{shard}{n:03}.{suffix}": content
            for n in range(6)
            for suffix, content in (("jpg", picture(seed=n)), ("txt", f"shard {shard}, photo {n}".encode()))
        }
        files |= {
            f"{shard}100.json": json.dumps({"caption": f"shard {shard}, noted"}).encode(),
            f"{shard}100.png": picture("PNG"),
            f"{shard}101.jpg": picture(),
            f"{shard}102.txt": b"no image",
            f"{shard}103.jpg": picture(),
            f"{shard}103.txt": b"\xff",
        }
        write_tar(folder / f"shards/{shard}.tar", files)
    before = {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}
    report = build(folder / "shards", folder / "corpus", texts=True, tokenizer=SMALL, validation=0.3, max_tokens=30)
    assert {path.name: path.read_bytes() for path in (folder / "shards").iterdir()} == before
    return folder, report


def test_texts_of_existing_shards_are_indexed(existing_shards):
    folder, report = existing_shards
    assert report.dropped == {"image without text": 3, "text without image": 3, "text is not UTF-8": 3}
    corpus = Corpus.open(folder / "corpus")
    assert corpus.manifest.dtype == "uint16[30]"
    assert [corpus.split(name).samples for name in ("train", "validation")] == [14, 7]
    result = [*texts_in(corpus), *texts_in(corpus, "validation")]
    expected = [
        f"shard {shard}, {suffix}" for shard in range(3) for suffix in (*(f"photo {n}" for n in range(6)), "noted")
    ]
    assert sorted(result) == sorted(expected)
    for path in (folder / "corpus").glob("*.tar"):
        assert path.resolve().parent == folder / "shards"
    assert all(check.is_valid for check in verify_corpus(folder / "corpus"))


def test_loader_and_mix_give_same_samples(existing_shards):
    """Pixels and ids of a sample depend on its number, and not on the reader."""
    folder, _ = existing_shards
    special = load_tokenizer(folder / "corpus/tokenizer").special
    options = {"objective": IMAGE_TEXT, "sequence": 17, "seed": 3, "special": special}
    mix = open_mix({str(folder / "corpus"): 1.0}, **options)
    with Loader(mix, batch=4, microbatch=2, workers=1) as loader:
        read = [batch for _, batches in islice(loader, 3) for batch in batches]
    for number, batch in enumerate(read):
        for row in range(2):
            sample = mix.sample(2 * number + row)
            assert all(np.array_equal(batch[name][row].numpy(), field) for name, field in sample.items())
            end = int(sample["text_end"])
            tokens = sample["text_tokens"]
            assert (tokens[0], tokens[end]) == (special.begin, special.end)
            assert special.end not in tokens[:end]
            assert (tokens[end:] == special.end).all()
            assert end <= 11


def test_inspect_shows_image_text_sample(existing_shards):
    console = Console(file=io.StringIO(), width=100)
    objective = "{image-text: {size: 8, text_length: 40}}"
    inspect_corpus(str(existing_shards[0] / "corpus"), objective=objective, count=2, sequence=17, console=console)
    shown = console.file.getvalue()
    assert "16 patches of 12 values" in shown
    assert "text: \n" not in shown
    assert re.search(r"text: shard \d, (photo \d|noted)", shown)


def test_truncated_caption_keeps_end_token(existing_shards):
    folder, _ = existing_shards
    special = load_tokenizer(folder / "corpus/tokenizer").special
    options = {"sequence": 17, "seed": 3, "special": special}
    mix = open_mix({str(folder / "corpus"): 1.0}, objective={"image-text": {"size": 8, "text_length": 5}}, **options)
    sample = mix.sample(0)
    assert (sample["text_end"], sample["text_tokens"][4]) == (4, special.end)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            {"image-labels": {"size": 8}},
            "has images with a text, but objective image-labels reads images with a label: .*texts=false",
        ),
        ("masked-lm", "needs a tokenizer with a `cls` token"),
    ],
)
def test_other_objective_is_rejected(existing_shards, objective, message):
    special = load_tokenizer(existing_shards[0] / "corpus/tokenizer").special
    with pytest.raises(UserError, match=message):
        open_mix({str(existing_shards[0] / "corpus"): 1.0}, objective=objective, sequence=17, seed=0, special=special)


def test_tokenizer_without_end_token_is_rejected(existing_shards, tmp_path):
    without = TokenizerRecipe(vocabulary=270, specials="gpt2")
    with pytest.raises(UserError, match="needs `begin` and `end` tokens"):
        build(existing_shards[0] / "shards", tmp_path / "corpus", texts=True, tokenizer=without, validation=0.3)
    assert not (tmp_path / "corpus").exists()


def test_image_settings_complete_default_tokenizer():
    assert read_image_settings(["texts=true", "tokenizer.vocabulary=300"])["tokenizer"]["specials"] == "clip"
    assert read_image_settings(["tokenizer=there"]) == {"tokenizer": {"folder": "there"}} | {}
    assert "specials" not in read_image_settings(["tokenizer.kind=wordpiece"])["tokenizer"]
    with pytest.raises(UserError, match="for images with texts, set texts=true"):
        read_image_settings(["text=true"])


def test_sketch_recognizes_changed_image():
    image = Image.fromarray(pixels(120, 90, seed=3))
    first = appearance_sketch(image)
    brighter = Image.fromarray((np.asarray(image) * 0.8 + 40).astype(np.uint8))
    for other in (image.resize((64, 48)), brighter, Image.open(io.BytesIO(encoded(image, "JPEG", quality=40)))):
        assert [*find_repeated([first, appearance_sketch(other)], near=True)] == [False, True]
    noise = np.random.default_rng(0).integers(256, size=(40, 9, 9, 3)).astype(np.uint8)
    assert not any(find_repeated([appearance_sketch(Image.fromarray(content)) for content in noise], near=True))


def test_near_sketches_match_any_three_bits():
    """The result of comparing all pairs."""
    rng = np.random.default_rng(1)
    known = [int(content) for content in rng.integers(-(1 << 63), 1 << 63, 30)]
    flipped = [content ^ sum(1 << int(bit) for bit in rng.choice(62, 3, replace=False)) for content in known]
    far = [content ^ sum(1 << int(bit) for bit in rng.choice(62, 4, replace=False)) for content in known]
    assert [*find_repeated(known + flipped, near=True)] == [False] * 30 + [True] * 30
    assert not any(find_repeated(known + far, near=True))
    assert [*find_repeated(known + flipped + known, near=False)] == [False] * 60 + [True] * 30


@pytest.mark.parametrize(
    ("duplicates", "retained", "reason"),
    [("exact", 4, "duplicate image"), ("near", 3, "near-duplicate image")],
)
def test_duplicate_images_are_dropped(tmp_path, duplicates, retained, reason):
    (tmp_path / "source").mkdir()
    image = Image.fromarray(pixels(120, 90, seed=3))
    noise = np.random.default_rng(0).integers(256, size=(2, 9, 9, 3))
    files = [
        encoded(image, "PNG"),
        encoded(image, "PNG"),
        encoded(image.resize((80, 60)), "JPEG"),
        *(encoded(Image.fromarray(item.astype(np.uint8)), "PNG") for item in noise),
    ]
    for number, content in enumerate(files):
        suffix = "jpg" if content[:2] == b"\xff\xd8" else "png"
        (tmp_path / f"source/{number}.{suffix}").write_bytes(content)
        (tmp_path / f"source/{number}.txt").write_text(f"text {number}")
    options = {"texts": True, "tokenizer": SMALL, "validation": 0.0, "duplicates": duplicates}
    report = build(tmp_path / "source", tmp_path / "corpus", **options)
    assert report.dropped == {reason: 5 - retained}
    assert report.splits["train"]["images"] == len(texts_in(Corpus.open(tmp_path / "corpus"))) == retained
    assert all(check.is_valid for check in verify_corpus(tmp_path / "corpus"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duplicates": "near"}, "duplicates applies to images with texts: add texts=true"),
        ({"tokenizer": SMALL}, "tokenizer applies to images with texts"),
        ({"texts": True, "classes": "names.txt"}, "classes applies to images with labels"),
        ({"texts": True, "duplicates": "near", "check": "header"}, "needs pixels"),
        ({"steps": (DropShort(),)}, "steps applies to images with texts"),
        ({"texts": True, "steps": (CutLong(),)}, "step cut-long may make several texts of one.*: remove the step"),
        ({"texts": True, "steps": (PairByConnective(),)}, "step pair-by-connective may make several"),
        ({"texts": True}, "no image is left after the checks.*1 image without text"),
        (
            {"texts": True, "regions": True},
            r"1 not an image suffix.*use \.npz files of detected regions",
        ),
    ],
)
def test_conflicting_image_settings_are_rejected(tmp_path, options, message):
    (tmp_path / "1.png").write_bytes(picture("PNG"))
    with pytest.raises(UserError, match=message):
        build(tmp_path, tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_published_clip_tokenizer_is_used_unchanged(existing_shards, tmp_path):
    """Lower-cased, with a mark at the end of each word: the same as `transformers`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e</w>"), ("p", "h"), ("ph", "o"), ("s", "h"), ("a", "r"), ("ar", "d</w>")]
    pieces = [*alphabet, *(f"{content}</w>" for content in alphabet), *("".join(merge) for merge in merges)]
    ids = {piece: number for number, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    reference = transformers.CLIPTokenizer(vocab=ids, merges=merges)
    reference.save_pretrained(tmp_path / "theirs")
    options = {"texts": True, "tokenizer": TokenizerRecipe(folder=str(tmp_path / "theirs")), "validation": 0.3}
    build(existing_shards[0] / "shards", tmp_path / "corpus", **options)
    corpus = Corpus.open(tmp_path / "corpus")
    result = [ids_.tolist() for ids_ in corpus.documents("train")]
    expected = {f"shard {shard}, photo {n}" for shard in range(3) for n in range(6)}
    known = {tuple(reference(text.upper())["input_ids"][1:-1]) for text in expected}
    assert len({tuple(content) for content in result} & known) == 12
    special = load_tokenizer(tmp_path / "corpus/tokenizer").special
    assert (special.begin, special.end) == (reference.bos_token_id, reference.eos_token_id)


@dataclass(frozen=True)
class Words:
    """A step that fails to make documents."""

    def __call__(self, documents, dropped):
        yield from (document.text for document in documents)


def test_step_that_yields_no_documents_is_rejected():
    with pytest.raises(UserError, match="did not return a `Document` for the text of a:1: correct them"):
        TextSteps((Words(),)).text("a photo", "a:1")
