"""Complete builds of recipes that need more than tokens."""

import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import read_recipe
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer

SENTENCES = [
    f"The {word} was seen in the garden again, and nobody knew why it had come." for word in ("cat", "fox", "owl")
]


def built(out: Path, *words: str):
    sources = [word for word in words if "=" not in word]
    settings = ["validation=0", *(word for word in words if "=" in word)]
    return build_corpus(read_recipe(sources, settings), out, workers=0)


def documents(out: Path):
    """(shard, number of a document in it) of all documents."""
    corpus = Corpus.open(out)
    for info in corpus.split("train").shards:
        shard = corpus.open_shard(info)
        yield from ((shard, number) for number in range(len(shard)))


def records(path: Path, *texts: str, **fields) -> str:
    rows = (
        {"text": text, **{name: values[number] for name, values in fields.items()}} for number, text in enumerate(texts)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece", "unigram"])
def test_word_and_sentence_annotations(kind, tmp_path):
    text = records(tmp_path / "a.jsonl", *(f"{sentence} Then it left." for sentence in SENTENCES))
    settings = [f"tokenizer={{kind: {kind}, vocabulary: 300}}", "annotate={sentences: true, words: true}"]
    built(tmp_path / "corpus", text, *settings)
    tokenizer = load_tokenizer(tmp_path / "corpus" / "tokenizer")
    for shard, number in documents(tmp_path / "corpus"):
        tokens = shard.tokens(number)
        sentences = [
            tokenizer.decode(piece).strip() for piece in np.split(tokens, shard.annotation("sentences", number)[1:])
        ]
        assert len(sentences) == 2
        assert sentences[1].replace(" ", "").lower() == "thenitleft."
        words = [tokenizer.decode(piece).strip() for piece in np.split(tokens, shard.annotation("words", number)[1:])]
        assert [word.lower() for word in words if word][:2] == ["the", sentences[0].split()[1].lower()]


def test_tags_and_their_labels_in_manifest(tmp_path):
    (tmp_path / "phrases.tsv").write_text("place\tthe garden\nanimal\tcat\n")
    text = records(tmp_path / "a.jsonl", *SENTENCES)
    built(tmp_path / "corpus", text, "tokenizer.vocabulary=300", f"annotate.tags={tmp_path}/phrases.tsv")
    corpus, tokenizer = Corpus.open(tmp_path / "corpus"), load_tokenizer(tmp_path / "corpus" / "tokenizer")
    labels = corpus.manifest.made_from["tables"]["tags"]
    result = {
        (labels[label], tokenizer.decode(shard.tokens(number)[first:stop]).strip())
        for shard, number in documents(tmp_path / "corpus")
        for first, stop, label in shard.annotation("tags", number).tolist()
    }
    assert result == {("place", "the garden"), ("animal", "cat")}


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ("tags={}/none.tsv", "annotate.tags: the text has no tags: use phrases that occur in the text"),
        ("phrases={}/none.txt", "annotate.phrases: the text has no phrases: use phrases that occur in the text"),
        ("turns=true", "annotate.turns: the text has no turns: use sources with `messages`"),
    ],
)
def test_annotation_without_matches_is_rejected(requested, message, tmp_path):
    (tmp_path / "none.tsv").write_text("place\tXanadu\n")
    (tmp_path / "none.txt").write_text("stately dome\n")
    text = records(tmp_path / "a.jsonl", *SENTENCES)
    with pytest.raises(UserError, match=message):
        built(tmp_path / "corpus", text, "tokenizer.vocabulary=300", f"annotate.{requested.format(tmp_path)}")
    assert not (tmp_path / "corpus").exists()


def test_annotations_are_counted(tmp_path):
    text = records(tmp_path / "a.jsonl", *(sentence.lower() for sentence in SENTENCES))
    requested = "annotate={words: true, capitals: true}"
    report = built(tmp_path / "corpus", text, "tokenizer.vocabulary=300", requested)
    result = Corpus.open(tmp_path / "corpus").manifest.made_from["annotation_counts"]
    words = sum(len(shard.annotation("words", number)) for shard, number in documents(tmp_path / "corpus"))
    assert result == {"words": words, "capitals": 0}
    assert words > 0
    assert any("the text has no capitals" in note for note in report.notes)


def test_duplicates_and_evaluation_texts_are_removed(tmp_path):
    rows = [
        f"Number {number}: " + " ".join(f"word{(number * 7 + at * at) % 997}" for at in range(120))
        for number in range(20)
    ]
    notice = "This notice stands below each and every article of the paper, so that nobody can say it was not there."
    exam = "what is the name of the river that flows through the capital of the country in the north of the continent"
    (tmp_path / "exam.txt").write_text(exam + "\n")
    texts = [*(f"{row}\n\n{notice}" for row in rows), rows[3].replace("Number", "Item"), f"{rows[0][::-1]} {exam}"]
    report = built(
        tmp_path / "corpus",
        records(tmp_path / "a.jsonl", *texts),
        *("tokenizer.vocabulary=300", "deduplicate={near: true, paragraphs: true}"),
        f"steps=[decontaminate: {{against: [{tmp_path}/exam.txt]}}]",
    )
    assert report.dropped["near duplicate"] == 1
    assert sum(count for reason, count in report.dropped.items() if "evaluation text" in reason) == 1
    tokenizer = load_tokenizer(tmp_path / "corpus" / "tokenizer")
    retained = [tokenizer.decode(shard.tokens(number)) for shard, number in documents(tmp_path / "corpus")]
    assert len(retained) == 20
    assert sum(notice in text for text in retained) == 1
    assert not any(text.startswith("Item") for text in retained)


def png(color: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes([0, color])))
        + chunk(b"IEND", b"")
    )


def test_image_text_corpus_stores_images(tmp_path):
    import webdataset

    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, sentence in enumerate(SENTENCES):
        (folder / f"{number}.png").write_bytes(png(number))
        (folder / f"{number}.txt").write_text(sentence)
    recipe = tmp_path / "corpus.yaml"
    recipe.write_text(f"sources: [{{path: {folder}, format: image-text}}]\ntokenizer: {{vocabulary: 300}}\n")
    built(tmp_path / "corpus", str(recipe))
    assert {shard.blob("png", number) for shard, number in documents(tmp_path / "corpus")} == set(map(png, range(3)))
    [sample, *_] = webdataset.WebDataset(str(tmp_path / "corpus" / "train-000000.tar"), shardshuffle=False)
    assert sample["png"].startswith(b"\x89PNG")
    assert "tokens.npy" in sample


def test_caption_without_image_is_dropped(tmp_path):
    names = ["there.png", "gone.png", "pipe.png"]
    (tmp_path / "there.png").write_bytes(png(0))
    os.mkfifo(tmp_path / "pipe.png")
    text = records(tmp_path / "metadata.jsonl", *SENTENCES, file_name=names)
    recipe = tmp_path / "corpus.yaml"
    recipe.write_text(f"sources: [{{path: {text}, format: image-text}}]\ntokenizer: {{vocabulary: 300}}\n")
    assert built(tmp_path / "corpus", str(recipe)).dropped == {"no image": 2}


def test_languages_are_counted(tmp_path):
    german = "Das ist ein Satz in einer anderen Sprache, der lang genug ist, damit man sie auch erkennen kann."
    text = records(tmp_path / "a.jsonl", *SENTENCES, german)
    report = built(tmp_path / "corpus", text, "tokenizer.vocabulary=300", "steps=[tag-language]")
    assert report.languages == {"en": 3, "de": 1}


def test_language_of_a_record_may_be_no_string(tmp_path):
    text = records(tmp_path / "a.jsonl", *SENTENCES, language=[["en"], 3, "de"])
    recipe = tmp_path / "corpus.yaml"
    recipe.write_text(f"sources: [{{path: {text}, keep: [language]}}]\ntokenizer: {{vocabulary: 300}}\n")
    assert built(tmp_path / "corpus", str(recipe)).languages == {"de": 1}


def test_conversation_has_turns(tmp_path):
    expected = [{"role": "user", "content": "Where is the fox?"}, {"role": "assistant", "content": "In the garden."}]
    lines = [{"messages": expected}, {"messages": []}, {"messages": "none"}]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = tmp_path / "corpus.yaml"
    recipe.write_text(f"sources: [{{path: {tmp_path}/talks.jsonl, messages: messages}}]\nannotate: {{turns: true}}\n")
    report = built(tmp_path / "corpus", str(recipe), "tokenizer.vocabulary=300")
    assert report.dropped == {"no messages": 2}
    corpus, tokenizer = Corpus.open(tmp_path / "corpus"), load_tokenizer(tmp_path / "corpus" / "tokenizer")
    roles = corpus.manifest.made_from["tables"]["turns"]
    [(shard, number)] = documents(tmp_path / "corpus")
    starts = shard.annotation("turns", number)
    pieces = np.split(shard.tokens(number), starts[1:, 0])
    spoken = [(roles[role], tokenizer.decode(piece).strip()) for piece, (_, role) in zip(pieces, starts, strict=True)]
    assert spoken == [(message["role"], message["content"]) for message in expected]


RULES = """
def deep(document):
    if "deep" in document.text:
        return deep(document)

def tagger(text):
    if "tagger" in text:
        raise ZeroDivisionError("no tags")
    return [(0, 3, "x")]

tagger.labels = ["x"]
"""


def test_failing_user_function_drops_document(tmp_path, monkeypatch):
    (tmp_path / "rules_that_raise.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = [*SENTENCES, "Too deep for that function.", "What the tagger cannot do."]
    source = records(tmp_path / "a.jsonl", *texts)
    settings = ["steps=[{keep-if: {call: 'rules_that_raise:deep'}}]", "annotate={tags: 'rules_that_raise:tagger'}"]
    report = built(tmp_path / "corpus", source, *settings, "tokenizer.vocabulary=300")
    assert report.dropped == {"keep-if failed": 1, "tokenizing failed": 1}
    assert report.messages["keep-if failed"].startswith("RecursionError: maximum recursion depth exceeded")
    assert report.messages["tokenizing failed"] == "ZeroDivisionError: no tags"
    assert report.splits["train"]["documents"] == 3
    for steps, message in (
        (settings, "keep-if failed on document a.jsonl@"),
        (settings[1:], "tokenizing failed on docum"),
    ):
        with pytest.raises(UserError, match=message):
            built(tmp_path / "other", source, *steps, "tokenizer.vocabulary=300", "on_error=fail")
