"""Images to a corpus: what is kept, what is dropped and why, shards of webdataset, existing shards unchanged."""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_pipeline.recipe import TokenizerRecipe
from data_pipeline.verify import verify_corpus
from megaptm.data import open_mix
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.vit.corpus.build import build_image_corpus
from megaptm.families.vit.corpus.check import ImageLimits, InvalidImage, ValidImage, check_image
from megaptm.families.vit.corpus.folders import ImageFile
from megaptm.families.vit.corpus.recipe import ImageRecipe
from megaptm.families.vit.corpus.splits import split_by_hash
from megaptm.families.vit.pixels import open_image, to_rgb
from megaptm.storage import RetryPolicy
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.pictures import (
    BAD,
    GOOD,
    build,
    digits,
    encoded,
    folder_of_labels,
    picture,
    pixels,
    write_tar,
)


@pytest.mark.parametrize("name", BAD)
def test_invalid_image_has_reason(name):
    content, reason = BAD[name]
    result = check_image(content, ImageLimits())
    assert isinstance(result, InvalidImage)
    assert result.reason == reason


@pytest.mark.parametrize("name", [name for name, (_, reason) in BAD.items() if reason == "damaged"])
def test_header_check_finds_truncated_image(name):
    """An image that was never decoded would stop training; a preview before the pixels has an end marker, too."""
    content, reason = BAD[name]
    if name.endswith(".jpg"):
        small = picture(width=8, height=8)
        content = content[:2] + b"\xff\xe1" + (2 + len(small)).to_bytes(2) + small + content[2:]
    result = check_image(content, ImageLimits(check="header"))
    assert isinstance(result, InvalidImage)
    assert result.reason == reason


@pytest.mark.parametrize("name", GOOD)
def test_header_check_ignores_trailing_bytes(name):
    assert isinstance(check_image(GOOD[name] + bytes(100), ImageLimits(check="header")), ValidImage)


@pytest.mark.parametrize("name", GOOD)
def test_valid_images_become_rgb(name):
    result = check_image(GOOD[name], ImageLimits())
    assert isinstance(result, ValidImage)
    with open_image(result.content) as image:
        colors = np.asarray(to_rgb(image))
    assert colors.shape == (result.height, result.width, 3)
    assert colors.std() > 10  # no pixels merged to one color
    if name in ("plain.jpg", "plain.webp", "grey.png", "deep.png"):
        assert result.content is GOOD[name]


def test_sixteen_bits_are_scaled():
    with open_image(GOOD["deep.png"]) as image:
        grey = np.asarray(to_rgb(image))[:, :, 0].astype(int).ravel()
    assert (grey[0], grey[-1]) == (0, 255)
    assert (np.diff(grey) >= 0).all()
    assert 120 <= grey[len(grey) // 2] <= 135


def test_first_picture_of_animation_is_used():
    for name in ("moving.gif", "moving.webp"):
        result = check_image(GOOD[name], ImageLimits())
        assert "animated: first picture" in result.oddities
        with open_image(result.content) as image:
            off = np.abs(np.asarray(to_rgb(image)).astype(int) - pixels(24, 20, seed=0))
        assert off.mean() < 12  # a GIF has a palette


@pytest.mark.parametrize("size", range(0, 1200, 37))
def test_check_image_never_raises(size):
    """A JPEG truncated at any position, and one with a gap there."""
    uncut = picture()
    for content in (uncut[:size], uncut[:size] + bytes(40) + uncut[size + 40 :]):
        assert isinstance(check_image(content, ImageLimits()), ValidImage | InvalidImage)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The corpus of a folder with every kind of file in it, the folder, and the report."""
    folder = tmp_path_factory.mktemp("images")
    source = folder_of_labels(folder / "source")
    return folder / "corpus", source, build(source, folder / "corpus", validation=0.2, shard_bytes=8_000)


def test_image_report_counts(built):
    _, _, report = built
    reasons = [reason for _, reason in BAD.values()]
    assert report.dropped == {**{reason: reasons.count(reason) for reason in reasons}, "not an image suffix": 1}
    assert report.labels == {"cat": 6 + len(GOOD), "dog": 6}
    assert sum(split["images"] for split in report.splits.values()) == 12 + len(GOOD)
    assert report.converted["16 bits"] == report.converted["CMYK"] == 1
    assert report.converted["animated: first picture"] == 2


def test_image_shards_contain_original_files(built):
    corpus, source, _ = built
    visited = {}
    for path in sorted(corpus.glob("*.tar")):
        with tarfile.open(path) as tar:
            samples: dict[str, dict[str, bytes]] = {}
            for member in tar:
                key, suffix = member.name.split(".")
                samples.setdefault(key, {})[suffix] = tar.extractfile(member).read()
        for files in samples.values():
            source_name = json.loads(files["json"])["source"]
            label, name = source_name.split("/")
            assert int(files["cls"]) == ["cat", "dog"].index(label)
            [content] = [files[suffix] for suffix in ("jpg", "png", "webp") if suffix in files]
            visited[source_name] = content
            if Path(name).suffix in (".jpg", ".png", ".webp"):
                assert content == (source / source_name).read_bytes()
    assert len(visited) == 12 + len(GOOD)


def test_webdataset_reads_image_shards(built):
    import webdataset

    corpus = built[0]
    for path in sorted(corpus.glob("train-*.tar")):
        names = {}
        for sample in webdataset.WebDataset(str(path), shardshuffle=False):
            [suffix] = {"jpg", "png", "webp"} & sample.keys()
            names[sample["__key__"]] = (int(sample["cls"]), sample[suffix])
        info = next(content for content in Corpus.open(corpus).split("train").shards if content.name == path.name)
        shard = Corpus.open(corpus).open_shard(info)
        actual = [
            (
                int(shard.tokens(content)[0]),
                next(filter(None, (shard.blob(name, content) for name in ("jpg", "png", "webp")))),
            )
            for content in range(len(shard))
        ]
        assert [*names.values()] == actual


def test_image_build_is_deterministic(built, tmp_path):
    corpus, source, report = built
    again = build(source, tmp_path / "again", validation=0.2, shard_bytes=8_000)
    files = {path.name for path in corpus.glob("*.tar")}
    assert len(files) > 3
    assert all((corpus / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)
    # Except the names of the folders, which the recipe contains.
    assert again.id == report.id
    assert all(check.is_valid for check in verify_corpus(corpus))


def test_verify_finds_changed_byte(built, tmp_path):
    corpus, _, _ = built
    for path in corpus.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer").mkdir()
    for path in (corpus / "tokenizer").iterdir():
        (tmp_path / "tokenizer" / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "train-000000.tar").read_bytes())
    content[700] ^= 1
    (tmp_path / "train-000000.tar").write_bytes(content)
    assert [check.name for check in verify_corpus(tmp_path) if not check.is_valid] == ["train-000000.tar"]


def test_huge_label_is_rejected(tmp_path):
    (tmp_path / "given").mkdir()
    write_tar(tmp_path / "given/a.tar", {"1.jpg": picture(), "1.cls": b"16777215"})
    with pytest.raises(UserError, match="has a label 16,777,215 and 1 images: number labels from 0 on"):
        build(tmp_path / "given", tmp_path / "out", validation=0.0)


@pytest.mark.timeout(60)
def test_multi_page_tiff_takes_linear_time():
    """A TIFF of 20,000 images, each of which is searched for in a list of all before it."""
    content = bytearray(GOOD["scanned.tif"])
    first = int.from_bytes(content[4:8], "little")
    after = first + 2 + 12 * int.from_bytes(content[first : first + 2], "little")
    begin = len(content) + len(content) % 2
    size = after - first + 4
    entry = bytes(content[first:after])
    content[after : after + 4] = begin.to_bytes(4, "little")
    content += bytes(begin - len(content))
    content += b"".join(entry + (begin + number * size).to_bytes(4, "little") for number in range(1, 20_000))
    began = time.process_time()
    assert "animated: first picture" in check_image(bytes(content) + entry + bytes(4), ImageLimits()).oddities
    assert time.process_time() - began < 0.5


def test_existing_shards_are_indexed_unchanged(tmp_path):
    """Errors of a sample are counted; of a truncated tar the samples before the end are kept."""
    source = tmp_path / "given"
    source.mkdir()
    files = {
        **{
            f"a/{n:04}.{suffix}": content
            for n in range(5)
            for suffix, content in (("jpg", picture(seed=n)), ("cls", b"1"))
        },
        "a/0005.json": json.dumps({"label": 2}).encode(),
        "a/0005.png": picture("PNG"),
        "a/0006.jpg": picture(),
        "a/0006.cls": b"1_0",
        "a/0007.cls": b"0",
        "a/0008.jpg": BAD["cut.jpg"][0],
        "a/0008.cls": b"0",
        "a/0009.JPEG": picture(seed=9),
        "a/0009.cls": b"0\n",
        "a/0010.jpg": picture("PNG"),
        "a/0010.cls": b"0",
        "a/0011.jpg": GOOD["moving.gif"],
        "a/0011.cls": b"0",
        "a/0012.gif": GOOD["moving.gif"],
        "a/0012.cls": b"0",
    }
    write_tar(source / "shard-000.tar", files)
    short = write_tar(source / "shard-001.tar", {**files, "b/1.jpg": picture(width=300, height=300), "b/1.cls": b"0"})
    short.write_bytes(short.read_bytes()[:-9_000])
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    report = build(source, tmp_path / "corpus", validation=0.5)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    twice = {"no label": 2, "no image": 2, "damaged": 2, "format does not match suffix": 2}
    twice |= {"format other than jpg, png and webp": 2}
    assert report.dropped == {**twice, "truncated archive": 1}
    assert report.labels == {"0": 4, "1": 10, "2": 2}
    corpus = Corpus.open(tmp_path / "corpus")
    assert {split: corpus.split(split).samples for split in ("train", "validation")} == {"train": 8, "validation": 8}
    for path in (tmp_path / "corpus").glob("*.tar"):
        assert path.resolve().parent == source
    [info] = corpus.split("train").shards
    shard = corpus.open_shard(info, "hash")
    assert [int(shard.tokens(content)[0]) for content in range(8)] == [1, 1, 1, 1, 1, 2, 0, 0]
    assert shard.blob("jpg", 3) == files["a/0003.jpg"]
    assert shard.blob("png", 5) == files["a/0005.png"]
    assert shard.blob("jpg", 6) == files["a/0009.JPEG"]
    assert shard.blob("jpg", 7) == files["a/0010.jpg"]  # readable with any suffix
    assert all(check.is_valid for check in verify_corpus(tmp_path / "corpus"))


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("name", ["cat/1.jpg", "1.jpg", "1.txt", "1.tar"])
def test_disk_error_ends_image_build(name, number, tmp_path, monkeypatch):
    """If these were counted, a corpus would depend on failures of the disk, and on the limits of a process."""
    path = tmp_path / "given" / name
    path.parent.mkdir(parents=True)
    if path.suffix == ".tar":
        write_tar(path, {"1.jpg": picture(), "1.cls": b"0"})
    else:
        path.with_suffix(".jpg").write_bytes(picture())
        path.with_suffix(".txt").write_bytes(b"a cat")

    def gives_up(*_):
        raise OSError(number, os.strerror(number))  # a read error, which names no file

    kind = {".jpg": "pathlib.Path.read_bytes", ".txt": "megaptm.families.vit.corpus.texts._read_limited"}
    monkeypatch.setattr(kind.get(path.suffix, "megaptm.families.vit.corpus.index_shards._read_member"), gives_up)
    monkeypatch.setattr("megaptm.data.outages.RETRY", RetryPolicy(seconds=0.0))
    expected = rf"{path} .*Input/output error" if number == errno.EIO else "Too many open files"
    with pytest.raises((UserError, OSError), match=expected):
        build(tmp_path / "given", tmp_path / "corpus", validation=0.0, texts=name in ("1.jpg", "1.txt"))


ODD = "\udcff\udce9"
"""Python's form of the bytes of a name that is not UTF-8."""


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("texts", [False, True])
def test_members_with_non_utf8_names(form, texts, tmp_path):
    text_suffix = "txt" if texts else "cls"
    files = {
        f"{ODD}/{n}.{suffix}": content
        for n in range(3)
        for suffix, content in (("jpg", picture(seed=n)), (text_suffix, b"0"))
    }
    files |= {
        f"{ODD}lonely.jpg": picture(),
        f"{ODD}.jpg": BAD["cut.jpg"][0],
        f"{ODD}.{text_suffix}": b"1",
        f"a.{ODD}": b"",
    }
    (tmp_path / "given").mkdir()
    write_tar(tmp_path / "given/a.tar", files, form)
    options = {"texts": True, "tokenizer": TokenizerRecipe(vocabulary=300, specials="clip")} if texts else {}
    report = build(tmp_path / "given", tmp_path / "corpus", validation=0.0, **options)
    none = "image without text" if texts else "no label"
    assert report.dropped == {none: 1, "damaged": 1, "no image": 1}
    assert report.examples[none][0][0] == "a.tar:??lonely"
    assert report.splits["train"]["images"] == 3
    for name in ("report.json", "report.html"):
        assert "a.tar:??lonely" in (tmp_path / "corpus" / name).read_text(encoding="utf-8")
    assert all(check.is_valid for check in verify_corpus(tmp_path / "corpus"))


@pytest.mark.parametrize("name", [f"{ODD}/given/a.tar", f"given/a{ODD}.tar", f"given/cat{ODD}/1.jpg"])
def test_non_utf8_paths_are_rejected(name, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True)
    if name.endswith(".jpg"):
        (tmp_path / name).write_bytes(picture())
    else:
        for path in (tmp_path / name, (tmp_path / name).with_name("b.tar")):
            write_tar(path, {"1.jpg": picture(), "1.cls": b"0"})
    source = tmp_path / ODD if name.startswith(ODD) else tmp_path
    with pytest.raises(UserError, match=r"udcff.*' has a name that is not UTF-8: rename it\.$"):
        build(source / "given", tmp_path / "corpus", validation=0.5)
    assert not (tmp_path / "corpus").exists()


def test_non_utf8_output_is_rejected(tmp_path):
    (tmp_path / "given/cat").mkdir(parents=True)
    (tmp_path / "given/cat/1.jpg").write_bytes(picture())
    with pytest.raises(UserError, match=r"^out \(.*udcff.*\) is not valid UTF-8: choose another name\.$"):
        build(tmp_path / "given", tmp_path / f"corpus{ODD}", validation=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, "has no subfolders: put the images of each label"),
        ({"a.tar.gz": b""}, {}, "is compressed"),
        ({"a.tar": b""}, {}, "has one shard, so none can be held out"),
        ({"cat/a.jpg": b"no"}, {}, "no image is left after the checks.*1 not a readable image"),
        ({"cat/a.jpg": picture()}, {"held_out": "nowhere"}, "nowhere is not a folder"),
    ],
)
def test_invalid_image_source_is_rejected(files, options, message, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name, content in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        build(source, tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_file_url_as_source(tmp_path):
    (tmp_path / "source/cat").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / f"source/cat/{name}.jpg").write_bytes(picture())
    build(f"file://{tmp_path}/source", tmp_path / "corpus")
    assert (tmp_path / "corpus/manifest.json").exists()


def test_small_share_holds_out_one_image():
    files = [ImageFile(name, name, 0, 1, 0) for name in ("a.png", "b.png", "c.png")]
    for seed in range(5):
        splits = split_by_hash(ImageRecipe(source="photos", validation=0.001, seed=seed), files)
        assert (len(splits["train"]), len(splits["validation"])) == (2, 1)
    assert split_by_hash(ImageRecipe(source="photos", validation=0.0), files)["validation"] == []
    assert split_by_hash(ImageRecipe(source="photos", validation=0.001), files[:1])["validation"] == []


@pytest.mark.parametrize(
    "setting",
    ["max_pixels=178956971", "validation=0.9", "min_side=0", "max_tokens=0", "shard_bytes=0", "detector=[0, 2]"],
)
def test_out_of_range_image_settings_are_rejected(setting, tmp_path):
    message = rf"images: {setting.partition('=')[0]} must be .*, not "
    with pytest.raises(UserError, match=message):
        build_image_corpus([str(tmp_path), f"out={tmp_path / 'corpus'}", "texts=true", "regions=true", setting])
    assert not (tmp_path / "corpus").exists()


def test_objective_rejects_wrong_corpus_kind(built, tmp_path):
    from tests.data.corpora import tiny_corpus, tiny_special

    tiny_corpus(tmp_path / "text")
    options = {"seed": 0, "sequence": 17, "special": tiny_special()}
    with pytest.raises(UserError, match="has no images, which objective image-labels reads"):
        open_mix({str(tmp_path / "text"): 1.0}, objective={"image-labels": {"size": 8}}, **options)
    with pytest.raises(UserError, match="has labels instead of texts, but objective causal-lm reads text"):
        open_mix({str(built[0]): 1.0}, objective="causal-lm", **options)


def test_digits_match_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits

    corpus = Corpus.open(digits(tmp_path / "digits", validation=0.0))
    known = load_digits()
    [info] = corpus.split("train").shards
    shard = corpus.open_shard(info)
    assert len(shard) == 1797
    with tarfile.open(tmp_path / "digits" / info.name) as tar:
        notes = [json.loads(tar.extractfile(content).read()) for content in tar if content.name.endswith(".json")]
    for document in (0, 1000, 1796):
        number = int(Path(notes[document]["source"]).stem)
        assert int(shard.tokens(document)[0]) == known.target[number]
        result = np.asarray(Image.open(io.BytesIO(shard.blob("png", document))))
        assert np.abs(result - known.images[number] * 255 / 16).max() <= 0.5
    assert load_tokenizer(tmp_path / "digits/tokenizer").name(7) == "7"


def test_large_jpeg_is_stored_unchanged(tmp_path):
    (tmp_path / "source/a").mkdir(parents=True)
    content = encoded(Image.fromarray(pixels(900, 700)), "JPEG")
    (tmp_path / "source/a/1.jpg").write_bytes(content)
    build(tmp_path / "source", tmp_path / "corpus", validation=0.0)
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.open_shard(corpus.split("train").shards[0]).blob("jpg", 0) == content
