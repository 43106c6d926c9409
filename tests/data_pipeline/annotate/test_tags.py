"""Labelled phrases, from a file or from a function."""

import pytest

from data_pipeline.annotate.tags import load_tagger
from data_pipeline.document import Document
from megaptm.errors import UserError

PHRASES = (
    "# cities and people\nplace\tNew York\nplace\tNew York City\nplace\t北京\n\nperson\tAda Lovelace\nplace\tYork\n"
)


def tagged(name: str, text: str) -> list[tuple[str, str]]:
    tags = load_tagger(name).tags(Document(text, "x"))
    return [(text[first:stop], label) for first, stop, label in tags]


@pytest.fixture
def phrases(tmp_path) -> str:
    file = tmp_path / "phrases.tsv"
    file.write_text(PHRASES, encoding="utf-8")
    return str(file)


def test_longest_phrase_matches_first(phrases):
    text = "Ada Lovelace left New York City for York, not New Yorker's Yorkshire; 我在北京市"
    expected = [("Ada Lovelace", "person"), ("New York City", "place"), ("York", "place"), ("北京", "place")]
    assert tagged(phrases, text) == expected
    assert load_tagger(phrases).labels == ("person", "place")


def shouts(text):
    for word in ("HELP", "STOP"):
        if word in text:
            yield text.index(word), text.index(word) + len(word), word.lower()


shouts.labels = ["stop", "help"]


def unlabelled(text):
    return []


def beyond(text):
    return [(0, len(text) + 1, "x")]


beyond.labels = ["x"]


def test_tagger_function_has_sorted_labels():
    name = f"{__name__}:shouts"
    assert tagged(name, "HELP, says he, STOP") == [("HELP", "help"), ("STOP", "stop")]
    assert load_tagger(name).labels == ("help", "stop")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_module_here:tag", "annotate.tags: module `no_such_module_here` cannot be imported"),
        (f"{__name__}:nobody", "has no function `nobody`"),
        (f"{__name__}:unlabelled", "has no list of labels"),
        ("nowhere.tsv", r"nowhere\.tsv cannot be read"),
    ],
)
def test_invalid_tagger_is_rejected(name, sentence):
    with pytest.raises(UserError, match=sentence):
        load_tagger(name)


def test_tag_outside_text_raises():
    with pytest.raises(ValueError, match=r"beyond returned \(0, 4, 'x'\) for a text of 3 characters"):
        tagged(f"{__name__}:beyond", "abc")


@pytest.mark.parametrize(
    ("written", "sentence"),
    [("place New York", "line 1 .* is not"), ("a\tYork\nb\tYork", "second label"), ("# only this", "no phrases")],
)
def test_invalid_phrase_file_is_rejected(written, sentence, tmp_path):
    (tmp_path / "p.tsv").write_text(written)
    with pytest.raises(UserError, match=sentence):
        load_tagger(str(tmp_path / "p.tsv"))
