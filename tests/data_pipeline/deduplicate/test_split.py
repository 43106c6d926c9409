"""Paragraphs of a text, and the text without some of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from data_pipeline.deduplicate import ParagraphOptions
from data_pipeline.deduplicate.split import repeatable_paragraphs, without_paragraphs
from data_pipeline.document import Document

TEXTS = some.text(some.sampled_from("ab \n\t\r"), max_size=60)


@pytest.mark.parametrize("between", ["lines", "blank lines"])
@given(text=TEXTS, data=some.data())
def test_without_keeps_other_paragraphs(between, text, data):
    options, document = ParagraphOptions(between=between, characters=2), Document(text, "a")
    paragraphs = repeatable_paragraphs(document, options)
    cut = data.draw(some.lists(some.booleans(), min_size=len(paragraphs), max_size=len(paragraphs)))
    first = without_paragraphs(document, cut, options)
    retained = [paragraph for paragraph, gone in zip(paragraphs, cut, strict=True) if not gone]
    assert repeatable_paragraphs(Document(first, "a"), options) == retained
    assert len(first) <= len(text)
    if not any(cut):
        assert first == text


def test_long_white_space_takes_linear_time():
    document = Document("a" + " \n" * 200_000 + "b" + "\n" * 200_000 + " " * 200_000 + "c", "a")
    assert repeatable_paragraphs(document, ParagraphOptions(characters=1)) == ["a", "b", "c"]
