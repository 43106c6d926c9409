"""Folders with a SentencePiece BPE model, as Llama's, and without a tokenizer.json.

transformers' issues 28324 and 30824: its classes read only the vocabulary of such a model, and have Llama's
normalization for all.
"""

import json

import pytest

from megaptm.errors import UserError
from megaptm.hub.tokenizer import has_tokenizer, read_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

SENTENCES = [
    f"the {word} fox says it's 12345 times naïve,\tand jumps  over {other} 漢字 한국어 café."
    for word in ("quick", "brown", "lazy", "red")
    for other in ("dogs", "hello", "world", "fi")
]
TEXTS = [
    "",
    " ",
    " hello",
    "hello ",
    "  two  spaces   here ",
    "a\nb\tc",
    "\ufb01ne ① ½ ＡＢ",  # noqa: RUF001 # compatibility characters
    "cafe\u0301 it's",
    "12345 67 🙂🙂 x",
    "▁hello",
    "\u3000wide\u00a0nbsp",
    "<s> </s> <unk> <0x41>",
]
LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def write_model(folder, name="tokenizer.model", kind="llama", tokenizer_class=None, **options):
    """Train a SentencePiece model in a folder without tokenizer.json; return its processor."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_prefix=str(folder / "model"),
        hard_vocab_limit=False,
        minloglevel=2,
        **{"model_type": "bpe", "vocab_size": 420, **options},
    )
    (folder / "model.model").rename(folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


@pytest.mark.parametrize(
    "options",
    [
        LLAMA,
        {},
        {"byte_fallback": True},
        {**LLAMA, "add_dummy_prefix": False},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"normalization_rule_name": "identity"},
    ],
    ids=["llama", "default", "bytes", "no-prefix", "case-folding", "identity"],
)
def test_ids_equal_those_of_sentencepiece(options, tmp_path):
    reference = write_model(tmp_path, **options)
    tokenizer = read_tokenizer(tmp_path)
    for text in (*TEXTS, *SENTENCES):
        assert tokenizer.encode(text).tolist() == reference.encode(text)


def test_text_is_decoded_as_by_sentencepiece(tmp_path):
    reference = write_model(tmp_path, **LLAMA)
    tokenizer = read_tokenizer(tmp_path)
    for text in ("hello 🙂 it's", " a\n b", "12345"):
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(reference.encode(text)) == text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram", "vocab_size": 90}, "model_type is UNIGRAM; such a tokenizer"),
        ({"model_type": "word", "vocab_size": 20}, "model_type is WORD; such a tokenizer"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix is true; such a tokenizer"),
        ({**LLAMA, "user_defined_symbols": ["[MASK]"]}, r"user-defined symbols such as '\[MASK\]' would be converted"),
    ],
)
def test_model_that_would_get_other_ids_is_rejected(options, reason, tmp_path):
    write_model(tmp_path, tokenizer_class="LlamaTokenizer", **options)
    with pytest.raises(UserError, match=rf"tokenizer\.model: {reason}.* to other ids: add its tokenizer\.json\."):
        read_tokenizer(tmp_path)


def test_unigram_model_without_a_class_is_rejected(tmp_path):
    write_model(tmp_path, model_type="unigram", vocab_size=90)
    with pytest.raises(UserError, match=r"tokenizer\.model: '.*' would be converted to other ids: add its tokenizer"):
        read_tokenizer(tmp_path)


def test_model_of_xlm_roberta_is_read(tmp_path):
    reference = write_model(tmp_path, "sentencepiece.bpe.model", "xlm-roberta", model_type="unigram", vocab_size=90)
    assert has_tokenizer(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    for text in (*TEXTS[:-1], *SENTENCES):  # a name such as </s> is divided, so that it is two unknown tokens
        names = [tokenizer.name(id_) for id_ in tokenizer.encode(text).tolist()]
        assert names == [reference.id_to_piece(id_) for id_ in reference.encode(text)]
