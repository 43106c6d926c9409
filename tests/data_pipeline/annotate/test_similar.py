"""Similar words, from a table or from vectors, become tokens of a tokenizer."""

import pytest

from megaptm.errors import UserError
from megaptm.families.macbert.corpus import build_similar_words, read_table, read_vectors, write_similar_words
from megaptm.families.macbert.similar import SimilarWords, load_similar_words
from megaptm.tokenizers import train_tokenizer_on_texts

TEXT = "the cat and the dog sat on a mat near the sea " * 30


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer_on_texts("wordpiece", [TEXT], vocabulary=80)


def table(path) -> SimilarWords:
    result = load_similar_words(str(path))
    assert isinstance(result, SimilarWords)
    return result


def test_similar_words_from_table(tokenizer, tmp_path):
    (tmp_path / "words.tsv").write_text("# animals\ncat\tdog sat\ndog\tcat zebra\n\n", encoding="utf-8")
    tokenizer.save(tmp_path / "tokenizer")
    build_similar_words(str(tmp_path / "words.tsv"), str(tmp_path / "tokenizer"), str(tmp_path / "similar.npz"))
    cat, dog, sat = (tuple(tokenizer.encode(word).tolist()) for word in ("cat", "dog", "sat"))
    result = table(tmp_path / "similar.npz")
    assert [tuple(word_ids) for word_ids in result(cat)] == [dog, sat]
    assert [tuple(word_ids) for word_ids in result(dog)] == [cat]  # the other has more tokens


def test_similar_words_from_vectors(tokenizer, tmp_path):
    vectors = {"cat": "1 0.1", "dog": "3 0.2", "sea": "0 1", "mat": "0.1 2", "the": "-1 -1"}
    lines = ["5 2", *(f"{word} {numbers}" for word, numbers in vectors.items())]
    (tmp_path / "vectors.txt").write_text("\n".join(lines), encoding="utf-8")
    near = read_vectors(tmp_path / "vectors.txt", tokenizer, top=2)
    assert near["cat"] == ["dog", "mat"]
    assert near["sea"] == ["mat", "cat"]
    assert write_similar_words(near, tokenizer, tmp_path / "similar.npz") == 5


def test_large_vectors_do_not_overflow(tokenizer, tmp_path):
    lines = ["cat 1e30 1e29", "dog 3 0.2", "sea 0 1e30", "mat 0.1 2"]
    (tmp_path / "vectors.txt").write_text("\n".join(lines), encoding="utf-8")
    near = read_vectors(tmp_path / "vectors.txt", tokenizer, top=1)
    assert near == {"cat": ["dog"], "dog": ["cat"], "sea": ["mat"], "mat": ["sea"]}


def test_byte_bpe_words_with_and_without_space(tmp_path):
    tokenizer = train_tokenizer_on_texts("byte-bpe", [TEXT], vocabulary=300)
    write_similar_words({"cat": ["dog"]}, tokenizer, tmp_path / "similar.npz")
    result = table(tmp_path / "similar.npz")
    alone, within = (tuple(tokenizer.encode(text).tolist()) for text in ("cat", " cat"))
    assert alone != within
    assert {len(alone), len(within)} == {len(result(word)[0]) for word in (alone, within) if result(word) is not None}


@pytest.mark.parametrize(
    ("text", "message"), [("cat dog", "line 1 of .* is not `word<TAB>"), ("cat\t", "line 1 of .* is not `word<TAB>")]
)
def test_invalid_table_line_is_rejected(text, message, tmp_path):
    (tmp_path / "words.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / "words.tsv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat a b", "not a word and its vector"),
        ("cat 1 2\ndog 1", "has 1 values, unlike earlier lines"),
        ("cat 1 2\ndog nan 1", "line 2 of .* has a value that is not finite"),
        ("cat 1 2\ndog 1 -inf", "line 2 of .* has a value that is not finite"),
        ("cat 1 1e39", "line 1 of .* has a value that is not finite"),  # as a float32
    ],
)
def test_invalid_vectors_are_rejected(text, message, tokenizer, tmp_path):
    (tmp_path / "vectors.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "vectors.txt", tokenizer, top=2)


def test_table_without_usable_words_is_rejected(tokenizer, tmp_path):
    with pytest.raises(UserError, match="no word has a similar word with as many tokens"):
        write_similar_words({"cat": ["zebra"]}, tokenizer, tmp_path / "similar.npz")
    assert not (tmp_path / "similar.npz").exists()
