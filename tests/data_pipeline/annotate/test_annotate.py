"""Token offsets of every kind of tokenizer, on text in many scripts."""

import re
from itertools import pairwise

import numpy as np
import pytest

from data_pipeline.annotate import Annotations, annotate_documents, text_and_turns
from data_pipeline.annotate.words import word_offsets
from data_pipeline.document import Document
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS
from tests.data_pipeline.annotate.pieces import split_sentences

SPELLING = [kind for kind in KINDS if kind != "words"]
"""Tokenizer kinds that have tokens for unseen words."""

ALL = Annotations(sentences=True, words=True, phrases=f"{__name__}:doubled", tags=f"{__name__}:numbers", turns=True)


def doubled(text):
    """Merges of a letter with itself."""
    return [match.span() for match in re.finditer(r"([a-z])\1|喜欢", text)]


def numbers(text):
    for match in re.finditer(r"[0-9.]*[0-9]|喜欢|😀", text):
        yield match.start(), match.end(), {"喜": "verb", "😀": "face"}.get(match[0][0], "number")


numbers.labels = ["number", "verb", "face"]


def squeezed(text: str) -> str:
    """Return the text without white space and case, which some tokenizers do not preserve."""
    return "".join(text.split()).lower()


def borders(pieces) -> list[int]:
    """Boundaries between pieces, counted in characters that are not white space."""
    return np.unique(np.cumsum([len(squeezed(piece)) for piece in pieces])).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_no_annotations_gives_plain_ids(kind, tokenizers, prose):
    documents = [Document(text, "x") for text in prose]
    for (ids, arrays), text in zip(annotate_documents(documents, tokenizers[kind], Annotations()), prose, strict=True):
        assert arrays == {}
        assert ids.tolist() == tokenizers[kind].encode(text).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_annotations_keep_ids_and_ascend(kind, tokenizers, prose):
    documents = [Document(text, "x", notes={"turns": [[0, "user"], [20, "assistant"]]}) for text in prose]
    for (ids, arrays), text in zip(annotate_documents(documents, tokenizers[kind], ALL), prose, strict=True):
        assert ids.tolist() == tokenizers[kind].encode(text).tolist()
        assert tuple(arrays) == ALL.fields == ("sentences", "words", "phrases", "tags", "turns")
        assert {name: array.shape[1:] for name, array in arrays.items()} == {
            "sentences": (),
            "words": (),
            "phrases": (2,),
            "tags": (3,),
            "turns": (2,),
        }
        for name, array in arrays.items():
            starts = array if array.ndim == 1 else array[:, 0]
            assert array.dtype == np.int32
            assert starts[0] >= 0
            assert starts[-1] < len(ids)
            assert (np.diff(starts) >= (array.ndim == 1)).all(), name
        assert arrays["words"][0] == arrays["sentences"][0] == 0


def test_wordpiece_words_match_continuation_marks(tokenizers, prose):
    """The rule of `##`: it marks the continuation of a word."""
    tokenizer = tokenizers["wordpiece"]
    # Kana are single words here, and runs in BERT.
    documents = [Document(re.sub("[\u3041-\u30ff]", "", text), "x") for text in prose]
    for ids, arrays in annotate_documents(documents, tokenizer, Annotations(words=True)):
        tokens = [tokenizer.library.id_to_token(id_) for id_ in ids.tolist()]
        assert arrays["words"].tolist() == [at for at, token in enumerate(tokens) if not token.startswith("##")]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram"])
def test_word_starts_match_text(kind, tokenizers, prose):
    """Word starts in the decoded groups match those in the text, except for tokens that hold two words."""
    tokenizer = tokenizers[kind]
    # Unigram's normalization rewrites characters that are not compared here.
    retained = r"[^\x00-\x7f]" if kind == "unigram" else r"[^\x00-\x7f\u4e00-\u9fff\u0400-\u04ff\uac00-\ud7a3]"
    texts = [re.sub(retained, "", text) for text in prose]
    annotated = annotate_documents([Document(text, "x") for text in texts], tokenizer, Annotations(words=True))
    for (ids, arrays), text in zip(annotated, texts, strict=True):
        groups = [tokenizer.decode(group) for group in np.split(ids, arrays["words"][1:])]
        assert squeezed("".join(groups)) == squeezed(text)
        words = borders("".join(word) for word in np.split(list(text), word_offsets(text)[1:]))
        result = borders(groups)
        assert set(result) <= set(words)
        tokens = borders(
            text[first:stop] for first, stop in pairwise([0, *tokenizer.encode_batch_with_ends([text])[0][1]])
        )
        assert set(words) - set(result) == set(words) - set(tokens)


@pytest.mark.parametrize("kind", SPELLING)
def test_sentence_starts_split_ids(kind, tokenizers):
    text = "The parser is naïve. It returns self! Is it (x)?  Nothing."
    [(ids, arrays)] = annotate_documents([Document(text, "x")], tokenizers[kind], Annotations(sentences=True))
    pieces = [tokenizers[kind].decode(piece).strip() for piece in np.split(ids, arrays["sentences"][1:])]
    alone = [tokenizers[kind].encode(sentence.strip()) for sentence in split_sentences(text)]
    assert pieces == [tokenizers[kind].decode(ids).strip() for ids in alone]


@pytest.mark.parametrize("kind", SPELLING)
def test_tags_cover_phrases(kind, tokenizers):
    text = "3,000 parsers of 2.5 ; 学生们喜欢读书 😀😀"
    [(ids, arrays)] = annotate_documents([Document(text, "x")], tokenizers[kind], ALL)
    assert ALL.tables()["tags"] == ["face", "number", "verb"]
    labels = [ALL.tables()["tags"][label] for label in arrays["tags"][:, 2]]
    result = {
        label: squeezed(tokenizers[kind].decode(ids[start:stop])) for start, stop, label in arrays["tags"].tolist()
    }
    assert labels[:3] == ["number", "number", "number"]
    assert "2.5" in result[1]
    if kind == "byte-bpe":
        assert (result[2], result[0]) == ("喜欢", "😀")
        assert labels == ["number", "number", "number", "verb", "face", "face"]


@pytest.mark.parametrize("kind", SPELLING)
def test_capitals_mark_capitalized_words(kind, tokenizers):
    text = "The parser is Kind, iPhone NOT"
    [(ids, arrays)] = annotate_documents([Document(text, "x")], tokenizers[kind], Annotations(capitals=True))
    assert squeezed(tokenizers[kind].decode(ids[arrays["capitals"]])) == "thekindnot"
    [(_, arrays)] = annotate_documents([Document("none", "x")], tokenizers[kind], Annotations(capitals=True))
    assert arrays["capitals"].shape == (0,)


@pytest.mark.parametrize("kind", SPELLING)
def test_turns_start_at_messages(kind, tokenizers):
    messages = [("system", "The parser is kind."), ("user", "Is it?"), ("gpt", "Yes! It returns.")]
    text, turns = text_and_turns([{"role": role, "content": content} for role, content in messages])
    [(ids, arrays)] = annotate_documents(
        [Document(text, "x", notes={"turns": turns})], tokenizers[kind], Annotations(turns=True)
    )
    table = Annotations(turns=True).tables()["turns"]
    assert [table[role] for role in arrays["turns"][:, 1]] == ["system", "user", "assistant"]
    pieces = np.split(ids, arrays["turns"][1:, 0])
    assert [squeezed(tokenizers[kind].decode(piece)) for piece in pieces] == [squeezed(text) for _, text in messages]


def test_document_without_turns_has_no_rows(tokenizers):
    [(_, arrays)] = annotate_documents([Document("Yes.", "x")], tokenizers["byte-bpe"], Annotations(turns=True))
    assert arrays["turns"].shape == (0, 2)


def test_text_without_tokens_has_empty_arrays(tokenizers):
    [(ids, arrays)] = annotate_documents(
        [Document(" \n", "x", notes={"turns": [[0, "user"]]})], tokenizers["wordpiece"], ALL
    )
    assert len(ids) == 0
    assert {len(array) for array in arrays.values()} == {0}


def test_inputs_lists_files(tmp_path):
    (tmp_path / "p.tsv").write_text("place\tYork\n")
    assert Annotations(tags=str(tmp_path / "p.tsv")).input_files() == (str(tmp_path / "p.tsv"),)
    assert Annotations(tags=f"{__name__}:numbers").input_files() == (__file__,)
    assert Annotations(words=True, chinese="words").input_files() == ()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"words": True, "chinese": "jieba"}, r"annotate\.chinese \(jieba\) must be `characters`, `words`"),
        ({"chinese": "words"}, r"annotate\.chinese needs annotate\.words"),
    ],
)
def test_conflicting_settings_are_rejected(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Annotations(**settings)
