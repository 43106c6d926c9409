"""Documents of several texts: read, cleaned, tokenized, each text by itself."""

import json

import numpy as np
import pytest

from data_pipeline.annotate import Annotations, annotate
from data_pipeline.annotate.parts import parts_of, text_and_parts
from data_pipeline.clean import DropEmpty, Normalize, Scrub, run_steps
from data_pipeline.clean.step import with_text
from data_pipeline.corpus.build import build_corpus
from data_pipeline.document import Document, Dropped
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS, load
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
def test_parts_come_from_fields_in_the_order_of_their_names(tmp_path, name, content, options):
    [found] = reading(written(tmp_path / name, content), **options).documents
    assert parts_of(found) == [*PAIR]
    assert parts_of(Document("one text", "x")) == ["one text"]


def test_a_record_without_one_of_the_fields_is_counted(tmp_path):
    found = reading(written(tmp_path / "a.jsonl", '{"en": "one"}\n'), parts=("en", "de"))
    assert found.counts == {"no text field": 1}
    assert "name another with `parts`" in found.dropped.said["no text field"]


def test_a_part_may_be_made_of_several_fields_and_told_by_a_prefix(tmp_path):
    """T5's supervised tasks (arXiv:1910.10683, appendix D)."""
    record = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}
    source = written(tmp_path / "a.jsonl", json.dumps(record) + "\n" + json.dumps({**record, "premise": 1}))
    said = "mnli hypothesis: {hypothesis} premise: {premise}"
    found = reading(source, parts=(said, "label"))
    assert [parts_of(one) for one in found.documents] == [
        ["mnli hypothesis: It is wet. premise: It rains.", "entailment"]
    ]
    assert found.counts == {"no text field": 1}
    assert Source("a", parts=(said, "label")).fields == ("hypothesis", "premise", "label")


def test_a_prefix_stands_before_first_parts_that_say_something(tmp_path):
    source, prefix = written(tmp_path / "a.en", "one\n\n"), "translate English to German: "
    written(tmp_path / "a.de", "eins\nzwei\n")
    found = reading(source, aligned=".de", prefix=prefix)
    assert [parts_of(one) for one in found.documents] == [[prefix + "one", "eins"], ["", "zwei"]]
    records = reading(written(tmp_path / "a.jsonl", '{"en": "one", "de": "eins"}'), parts=("en", "de"), prefix=prefix)
    assert [parts_of(one) for one in records.documents] == [[prefix + "one", "eins"]]


def test_lines_of_files_that_lie_beside_each_other_are_pairs(tmp_path):
    source = written(tmp_path / "a.en", "one\n\ntwo\nthree\n")
    written(tmp_path / "a.de", "eins\n\nzwei\n\n")
    found = reading(source, aligned=".de", part=4)
    assert [parts_of(pair) for pair in found.documents] == [["one", "eins"], ["two", "zwei"], ["three", ""]]
    assert found.sources == ["a.en@0", "a.en@5", "a.en@9"]
    kept = run_steps([DropEmpty()], found.documents, dropped := Dropped())
    assert len([*kept]) == 2
    assert dropped.counts == {"empty": 1}


def test_files_of_another_number_of_lines_are_told(tmp_path):
    source = written(tmp_path / "a.en", "one\ntwo\nthree\n")
    written(tmp_path / "a.de", "eins\nzwei\n")
    assert reading(source, aligned=".de").counts == {"not aligned": 1}
    with pytest.raises(UserError, match=r"a\.en has more lines than .*a\.de: line 3 has no partner: give files"):
        reading(source, aligned=".de", on_error="fail")


def test_a_file_that_is_alone_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"there is no .*a\.de beside .*a\.en: put it there"):
        reading(written(tmp_path / "a.en", "one\n"), aligned=".de")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parts": ("en",)}, "several different fields"),
        ({"parts": ("en", "de"), "aligned": ".de"}, "one of parts, messages and aligned"),
        ({"prefix": "summarize: "}, "prefix stands before the first of parts: give parts, or aligned"),
        ({"aligned": "de"}, r"aligned \(de\) must be a suffix, such as \.de"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        Source("a.en", **options)


def test_a_step_that_changes_text_changes_each_part_by_itself():
    [changed] = Normalize()([document("\none\r\n", "\r\ntwo\r\nthree")], Dropped())
    assert parts_of(changed) == ["one", "two\nthree\n"]


def test_a_step_that_looks_at_the_whole_leaves_no_parts():
    [scrubbed] = Scrub()([document("Write to ada@example.org now.", "Schreib an ada@example.org jetzt.")], Dropped())
    assert len(parts_of(scrubbed)) == 1
    assert with_text(scrubbed, "another").notes == scrubbed.notes


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_has_the_tokens_that_it_has_alone(kind, tokenizers):
    tokenizer = tokenizers[kind]
    wanted = Annotations(words=True, parts=True)
    [(ids, arrays)] = annotate([document(*PAIR)], tokenizer, wanted)
    assert [part.tolist() for part in np.split(ids, arrays["parts"][1:])] == [
        tokenizer.encode(text).tolist() for text in PAIR
    ]
    assert set(arrays["parts"]) <= set(arrays["words"])


def test_a_corpus_of_pairs(tmp_path):
    lines = [f"bird number {n} sings" for n in range(60)]
    written(tmp_path / "a.en", "\n".join([*lines, " "]))
    written(tmp_path / "a.up", "\n".join([*map(str.upper, lines), "no partner that has a token"]))
    source = Source(str(tmp_path / "a.en"), aligned=".up")
    tokenizer = TokenizerRecipe(kind="unigram", vocabulary=120, sentinels=0)
    report = build_corpus(Recipe(sources=(source,), steps=(), tokenizer=tokenizer), tmp_path / "out", workers=0)
    assert report.dropped["no parts"] == 1
    corpus, decode = Corpus.open(tmp_path / "out"), load(tmp_path / "out/tokenizer").decode
    [info] = corpus.split("train").shards
    shard = corpus.open_shard(info)
    for number in range(len(shard)):
        source_ids, target_ids = np.split(shard.tokens(number), shard.annotation("parts", number)[1:])
        assert decode(source_ids).upper() == decode(target_ids)


def test_all_sources_have_parts_or_none():
    plain, paired = Source("a.txt"), Source("a.en", aligned=".de")
    with pytest.raises(UserError, match="parts all or none"):
        Recipe(sources=(plain, paired))
    with pytest.raises(UserError, match=r"annotate\.parts needs sources"):
        Recipe(sources=(plain,), annotate=Annotations(parts=True))
