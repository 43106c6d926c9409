"""Documents of several texts: each text is read, cleaned and tokenized separately."""

import json

import numpy as np
import pytest

from data_pipeline.annotate import Annotations, annotate_documents
from data_pipeline.annotate.parts import document_parts, text_and_parts
from data_pipeline.clean import DropEmpty, Normalize, Scrub, run_steps
from data_pipeline.clean.step import with_text
from data_pipeline.corpus.build import build_corpus
from data_pipeline.document import Document, DropCounts
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS, load_tokenizer
from tests.data_pipeline.sources.reading import reading, written

PAIR = ("Two birds sit in one tree.", "Zwei Vögel sitzen\nin einem Baum.")


def document(*texts: str) -> Document:
    text, note = text_and_parts(texts)
    return Document(text, "x", notes=note)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.jsonl", json.dumps({"en": PAIR[0], "de": PAIR[1], "id": 7}), {"parts": ("en", "de")}),
        ("a.tsv", f'de\tid\ten\n"{PAIR[1]}"\t7\t{PAIR[0]}\n', {"parts": ("en", "de")}),
    ],
)
def test_parts_follow_order_of_fields(tmp_path, name, content, options):
    [result] = reading(written(tmp_path / name, content), **options).documents
    assert document_parts(result) == [*PAIR]
    assert document_parts(Document("one text", "x")) == ["one text"]


def test_record_with_missing_part_is_dropped(tmp_path):
    result = reading(written(tmp_path / "a.jsonl", '{"en": "one"}\n'), parts=("en", "de"))
    assert result.counts == {"no text field": 1}
    assert "name another with `parts`" in result.dropped.messages["no text field"]


def test_part_combines_fields_by_template(tmp_path):
    """T5's supervised tasks (arXiv:1910.10683, appendix D)."""
    record = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}
    source = written(tmp_path / "a.jsonl", json.dumps(record) + "\n" + json.dumps({**record, "premise": 1}))
    template = "mnli hypothesis: {hypothesis} premise: {premise}"
    result = reading(source, parts=(template, "label"))
    assert [document_parts(pair) for pair in result.documents] == [
        ["mnli hypothesis: It is wet. premise: It rains.", "entailment"]
    ]
    assert result.counts == {"no text field": 1}
    assert Source("a", parts=(template, "label")).fields == ("hypothesis", "premise", "label")


def test_prefix_skips_blank_first_part(tmp_path):
    source, prefix = written(tmp_path / "a.en", "one\n\n"), "translate English to German: "
    written(tmp_path / "a.de", "eins\nzwei\n")
    result = reading(source, aligned=".de", prefix=prefix)
    assert [document_parts(pair) for pair in result.documents] == [[prefix + "one", "eins"], ["", "zwei"]]
    records = reading(written(tmp_path / "a.jsonl", '{"en": "one", "de": "eins"}'), parts=("en", "de"), prefix=prefix)
    assert [document_parts(pair) for pair in records.documents] == [[prefix + "one", "eins"]]


def test_aligned_lines_are_pairs(tmp_path):
    source = written(tmp_path / "a.en", "one\n\ntwo\nthree\n")
    written(tmp_path / "a.de", "eins\n\nzwei\n\n")
    result = reading(source, aligned=".de", part=4)
    assert [document_parts(pair) for pair in result.documents] == [["one", "eins"], ["two", "zwei"], ["three", ""]]
    assert result.sources == ["a.en@0", "a.en@5", "a.en@9"]
    retained = run_steps([DropEmpty()], result.documents, dropped := DropCounts())
    assert len([*retained]) == 2
    assert dropped.counts == {"empty": 1}


def test_different_line_counts_are_reported(tmp_path):
    source = written(tmp_path / "a.en", "one\ntwo\nthree\n")
    written(tmp_path / "a.de", "eins\nzwei\n")
    assert reading(source, aligned=".de").counts == {"not aligned": 1}
    with pytest.raises(UserError, match=r"a\.en has more lines than .*a\.de: line 3 has no counterpart: use files"):
        reading(source, aligned=".de", on_error="fail")


def test_missing_aligned_file_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"a\.de does not exist beside .*a\.en: add it"):
        reading(written(tmp_path / "a.en", "one\n"), aligned=".de")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": ("en",)}, "two or more different fields"),
        ({"parts": ("en", "de"), "aligned": ".de"}, "set only one of parts, messages and aligned"),
        ({"prefix": "summarize: "}, "prefix needs parts or aligned: set one of them"),
        ({"aligned": "de"}, r"aligned \(de\) must be a suffix, such as \.de"),
    ],
)
def test_invalid_part_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        Source("a.en", **options)


def test_change_step_applies_to_each_part():
    [changed] = Normalize()([document("\none\r\n", "\r\ntwo\r\nthree")], DropCounts())
    assert document_parts(changed) == ["one", "two\nthree\n"]


def test_step_on_full_text_removes_parts():
    [scrubbed] = Scrub()([document("Write to ada@example.org now.", "Schreib an ada@example.org jetzt.")], DropCounts())
    assert len(document_parts(scrubbed)) == 1
    assert with_text(scrubbed, "another").notes == scrubbed.notes


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_tokenized_separately(kind, tokenizers):
    tokenizer = tokenizers[kind]
    expected = Annotations(words=True, parts=True)
    [(ids, arrays)] = annotate_documents([document(*PAIR)], tokenizer, expected)
    assert [part.tolist() for part in np.split(ids, arrays["parts"][1:])] == [
        tokenizer.encode(text).tolist() for text in PAIR
    ]
    assert set(arrays["parts"]) <= set(arrays["words"])


def test_build_of_pairs(tmp_path):
    lines = [f"bird number {n} sings" for n in range(60)]
    written(tmp_path / "a.en", "\n".join([*lines, " "]))
    written(tmp_path / "a.up", "\n".join([*map(str.upper, lines), "no partner that has a token"]))
    source = Source(str(tmp_path / "a.en"), aligned=".up")
    tokenizer = TokenizerRecipe(kind="unigram", vocabulary=120, sentinels=0)
    report = build_corpus(Recipe(sources=(source,), steps=(), tokenizer=tokenizer), tmp_path / "out", workers=0)
    assert report.dropped["no parts"] == 1
    corpus, decode = Corpus.open(tmp_path / "out"), load_tokenizer(tmp_path / "out/tokenizer").decode
    [info] = corpus.split("train").shards
    shard = corpus.open_shard(info)
    for number in range(len(shard)):
        source_ids, target_ids = np.split(shard.tokens(number), shard.annotation("parts", number)[1:])
        assert decode(source_ids).upper() == decode(target_ids)


def test_mixing_sources_with_and_without_parts_is_rejected():
    plain, paired = Source("a.txt"), Source("a.en", aligned=".de")
    with pytest.raises(UserError, match="either all or no sources must have parts"):
        Recipe(sources=(plain, paired))
    with pytest.raises(UserError, match=r"annotate\.parts needs sources"):
        Recipe(sources=(plain,), annotate=Annotations(parts=True))
