"""The report shows the share of words of each language that have no token, and a build warns of it."""

import json
from pathlib import Path

import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.corpus.unknown import UnknownWords, count_unknown_words
from data_pipeline.document import Document
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.report import CorpusReport
from data_pipeline.sources import Source
from megaptm.tokenizers import Tokenizer, train_tokenizer_on_texts

ENGLISH = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs."
KOREAN = "한국어 텍스트는 자모로 분해될 수 있다. 서울은 한국의 수도이다."


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    return train_tokenizer_on_texts("wordpiece", [ENGLISH], vocabulary=120)


def build(folder: Path, tokenizer: TokenizerRecipe) -> CorpusReport:
    lines = [{"text": ENGLISH}, {"text": KOREAN}, {"text": f"{ENGLISH} 안녕", "language": "en"}]
    (folder / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    source = Source(str(folder / "texts.jsonl"), keep=("language",))
    recipe = Recipe(sources=(source,), tokenizer=tokenizer, validation=0)
    return build_corpus(recipe, folder / "corpus", workers=0)


def test_unknown_words_give_warning(english, tmp_path):
    english.save(tmp_path / "tokenizer")
    report = build(tmp_path, TokenizerRecipe(folder=str(tmp_path / "tokenizer")))
    assert report.unknown_words == {
        "Hangul": UnknownWords(9, 9, "한국어"),
        "Latin": UnknownWords(17, 0, ""),
        "en": UnknownWords(18, 1, "안녕"),
    }
    assert [note[:78] for note in report.notes if "unknown" in note] == [
        "100.0% of the words in Hangul documents are unknown to the tokenizer and lost,",
        "5.6% of the words in en documents are unknown to the tokenizer and lost, for e",
    ]
    assert "<td>Hangul</td><td class=number>9</td>" in (tmp_path / "corpus" / "report.html").read_text()


def test_byte_bpe_has_no_unknown_words(tmp_path):
    report = build(tmp_path, TokenizerRecipe(kind="byte-bpe", vocabulary=300))
    assert not report.unknown_words
    assert not any("unknown" in note for note in report.notes)


def test_chinese_character_counts_as_word(english):
    counts: dict[str, UnknownWords] = {}
    document = Document("北京大学 fox", "x")
    count_unknown_words(document, english.encode(document.text), english, counts)
    assert counts == {"Cjk": UnknownWords(5, 4, "北")}
