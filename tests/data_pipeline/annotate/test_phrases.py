"""Phrases: from a file, from a segmenter, from a function."""

import sys
from types import SimpleNamespace

import pytest

from data_pipeline.annotate import words
from data_pipeline.annotate.phrases import phrases_of
from data_pipeline.document import Document
from megaptm.errors import UserError


def found(name: str, text: str) -> list[str]:
    return [text[first:stop] for first, stop in phrases_of(name, Document(text, "x"))]


def test_those_of_a_file_are_found_as_whole_words_the_longest_first(tmp_path):
    file = tmp_path / "phrases.txt"
    file.write_text("# nouns\nspan of life\nspan\n哈尔滨\n\n", encoding="utf-8")
    assert found(str(file), "a span of life, spans, 哈尔滨市") == ["span of life", "哈尔滨"]
    (tmp_path / "none.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"annotate\.phrases: .* has no words"):
        found(str(tmp_path / "none.txt"), "x")


def test_chinese_words_of_several_characters_are_phrases(monkeypatch):
    library = SimpleNamespace(setLogLevel=lambda level: None, cut=lambda run: [run[:3], run[3:4], run[4:]])
    monkeypatch.setitem(sys.modules, "jieba", library)
    words._jieba.cache_clear()
    assert found("words", "(哈尔滨是省会) in 北") == ["哈尔滨", "省会"]
    words._jieba.cache_clear()


def beyond(text):
    return [(0, len(text) + 1)]


def test_a_function_that_gives_places_outside_of_the_text_is_told():
    with pytest.raises(ValueError, match=r"gave \(0, 4\) for a text of 3 characters"):
        found(f"{__name__}:beyond", "abc")
