"""Phrases: from a file, from a segmenter, from a function."""

import sys
from types import SimpleNamespace

import pytest

from data_pipeline.annotate import words
from data_pipeline.annotate.phrases import find_phrases
from data_pipeline.document import Document
from megaptm.errors import UserError


def phrases_in(name: str, text: str) -> list[str]:
    return [text[first:stop] for first, stop in find_phrases(name, Document(text, "x"))]


def test_phrases_of_file_match_longest_complete_words(tmp_path):
    file = tmp_path / "phrases.txt"
    file.write_text("# nouns\nspan of life\nspan\n哈尔滨\n\n", encoding="utf-8")
    assert phrases_in(str(file), "a span of life, spans, 哈尔滨市") == ["span of life", "哈尔滨"]
    (tmp_path / "none.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"annotate\.phrases: .* has no words"):
        phrases_in(str(tmp_path / "none.txt"), "x")


def test_chinese_words_are_phrases(monkeypatch):
    library = SimpleNamespace(setLogLevel=lambda level: None, cut=lambda run: [run[:3], run[3:4], run[4:]])
    monkeypatch.setitem(sys.modules, "jieba", library)
    words._load_jieba.cache_clear()
    assert phrases_in("words", "(哈尔滨是省会) in 北") == ["哈尔滨", "省会"]
    words._load_jieba.cache_clear()


def beyond(text):
    return [(0, len(text) + 1)]


def test_phrase_outside_text_raises():
    with pytest.raises(ValueError, match=r"returned \(0, 4\) for a text of 3 characters"):
        phrases_in(f"{__name__}:beyond", "abc")
