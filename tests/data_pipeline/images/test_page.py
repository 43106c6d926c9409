"""The page of a build of images: thumbnails of kept and dropped images, a bounded number, and text is always
escaped."""

import base64
import io
import re

import pytest
from PIL import Image

from data_pipeline.document import EXAMPLES
from data_pipeline.recipe import TokenizerRecipe
from megaptm.families.vit.corpus import page
from megaptm.families.vit.corpus.thumbnails import SIDE, DroppedImages, make_thumbnail
from tests.data_pipeline.images.pictures import BAD, build, folder_of_labels, picture, write_tar

SHOWN = re.compile(r"<figure>(?:<img alt='' src='data:image/jpeg;base64,([^']+)'>)?<figcaption>([^<]*)</figcaption>")


def shown(content: str) -> list[tuple[str, str]]:
    """Return the base64 text and the caption of each image of a page."""
    return SHOWN.findall(content)


def test_page_shows_retained_and_dropped_images(tmp_path):
    build(folder_of_labels(tmp_path / "photos"), tmp_path / "corpus", validation=0.0)
    content = (tmp_path / "corpus/report.html").read_text(encoding="utf-8")
    assert content.count("<h1>") == 1
    retained, _, left_out = content.partition("<h2>Dropped</h2>")
    assert len(shown(retained)) == 23  # six of these and six plain ones, and eleven unusual ones
    assert {caption for _, caption in shown(retained)} == {"cat", "dog"}
    for encoded, _ in shown(retained):
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as first:
            assert (first.format, max(first.size) <= SIDE) == ("JPEG", True)
    named = {caption: bool(encoded) for encoded, caption in shown(left_out)}
    assert {f"dog/{name}" for name in BAD} < named.keys()
    # Everything that can be decoded is shown: an image of one pixel, and one that is too long.
    assert {name for name, there in named.items() if there} == {"dog/dot.png", "dog/line.png"}
    assert "<details open><summary>too small: 1 of 1</summary><p>The first: 1 x 1.</p>" in left_out


def test_page_escapes_captions(tmp_path):
    files = {}
    for number in range(8):
        files |= {f"{number}.jpg": picture(seed=number), f"{number}.txt": b"<script>alert(1)</script> of a cat"}
    files |= {"8.jpg": picture(seed=8), "8.txt": b"?!"}
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards/0.tar", files)
    how = TokenizerRecipe(kind="byte-bpe", vocabulary=300, specials="clip")
    build(tmp_path / "shards", tmp_path / "corpus", texts=True, tokenizer=how, validation=0.0)
    content = (tmp_path / "corpus/report.html").read_text(encoding="utf-8")
    assert "<script" not in content
    assert "&lt;script&gt;" in content
    named = {caption: bool(encoded) for encoded, caption in shown(content)}
    assert named["0.tar:8"]


def test_page_limits_thumbnails(tmp_path, monkeypatch):
    location = tmp_path / "photos" / "cat"
    location.mkdir(parents=True)
    for number in range(40):
        (location / f"{number}.jpg").write_bytes(picture(seed=number))
        (location / f"small-{number}.jpg").write_bytes(picture(width=20, height=5, seed=number))
    build(tmp_path / "photos", tmp_path / "corpus", validation=0.0)
    result = shown((tmp_path / "corpus/report.html").read_text(encoding="utf-8"))
    assert len(result) == page.NUM_VALID_SHOWN + EXAMPLES
    assert all(encoded for encoded, _ in result)
    max_bytes = 2 * len(result[0][0])
    monkeypatch.setattr(page, "MAX_BYTES", max_bytes)
    build(tmp_path / "photos", tmp_path / "again", validation=0.0)
    result = shown((tmp_path / "again/report.html").read_text(encoding="utf-8"))
    assert len(result) == page.NUM_VALID_SHOWN + EXAMPLES
    assert 0 < sum(len(encoded) for encoded, _ in result) <= max_bytes


@pytest.mark.parametrize("content", [b"", b"no image", picture()[:200]])
def test_invalid_image_has_no_thumbnail(content):
    assert make_thumbnail(content) == ""


def test_thumbnails_match_examples_after_merge():
    first, second = DroppedImages(), DroppedImages()
    first.add("small", "a")
    first.add_image("small", "b", picture())
    for number in range(EXAMPLES):
        second.add_image("small", str(number), picture(seed=number))
    first.merge(second)
    assert [source for source, _ in first.examples["small"]] == ["a", "b", "0", "1", "2"]
    shown = [bool(first.example_thumbnail("small", number)) for number in range(EXAMPLES)]
    assert shown == [False, True, True, True, True]
    assert first.example_thumbnail("small", 2) == make_thumbnail(picture(seed=0))
    assert first.counts["small"] == 2 + EXAMPLES
