"""SentencePiece's normalization as components of tokenizer.json, in training, encoding, imports and exports."""

import base64
import io
import itertools
import json
import random
import struct
import unicodedata

import numpy as np
import pytest
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2

from megaptm.errors import UserError
from megaptm.hub.tokenizer import read_tokenizer
from megaptm.tokenizers import find_first_tokens, load_tokenizer, train_tokenizer_on_texts
from megaptm.tokenizers.normalization import (
    BLOCK,
    SIGMA,
    SPLIT,
    collapse_precompiled,
    expand_precompiled,
    make_library_normalizer,
    make_nmt_nfkc,
    make_precompiled,
)

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SENTENCES = (
    "Tiếng Việt rất đẹp. Người ta nói tiếng Việt ở khắp nơi, từ miền Bắc đến miền Nam.",
    "한국어 텍스트는 자모로 분해될 수 있다. 서울은 한국의 수도이다.",
    "Τὰ πάντα ῥεῖ. ΟΔΥΣΣΕΥΣ ΣΟΦΟΣ 'Ως",
    "हिन्दी में पाठ समान होना चाहिए।",
    "ภาษาไทยเป็นภาษาที่น้ำ",
    "ガラスを食べる ｶﾞﾗｽ",
    "``It's'' 2nd ﬁne x² Ⅷ naïve café",
)
TEXTS = [unicodedata.normalize(form, sentence) for sentence in SENTENCES for form in FORMS]
NEWER = {"Todhri", "Tulu", "Dives", "Gurung", "Kirat"}
"""Scripts of Unicode 13 and 16. The NFC of the tokenizers library does not compose their sequences."""


def sentencepiece_normalizer(rule: str) -> sentencepiece.SentencePieceNormalizer:
    return sentencepiece.SentencePieceNormalizer(
        rule_name=rule, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )


def library_normalizer_for(rule: str):
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(
        sentencepiece_normalizer(rule).serialized_normalizer_spec()
    )
    return make_library_normalizer(expand_precompiled(make_precompiled(spec.precompiled_charsmap)))


@pytest.fixture(scope="module")
def normalizer():
    return make_library_normalizer(expand_precompiled(make_nmt_nfkc()))


@pytest.fixture(scope="module")
def reference() -> sentencepiece.SentencePieceNormalizer:
    return sentencepiece_normalizer("nmt_nfkc")


def join_pieces(pieces: list[str], size: int = 512) -> list[str]:
    """Return texts of `size` pieces, separated by letters."""
    return ["".join(f"x{piece}y" for piece in pieces[at : at + size]) for at in range(0, len(pieces), size)]


def test_every_code_point_is_normalized_as_by_sentencepiece(normalizer, reference):
    separators = {BLOCK, SPLIT}
    codes = (*range(1, 0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200))
    for text in join_pieces([chr(code) for code in codes if chr(code) not in separators]):
        assert normalizer.normalize_str(text) == reference.normalize(text)


def test_every_sequence_of_the_table_is_composed_as_by_sentencepiece(normalizer, reference):
    """Except 21 sequences of scripts of Unicode 13 and 16. One in 20 of the Korean sequences is tested: they are
    205,758 of 225,276."""
    korean, other = [], []
    for sequence, composed in reference.Decompile():
        (korean if "가" <= composed <= "힣" else other).append(sequence)
    sequences = [*other, *korean[::20]]
    different = [
        sequence
        for text, at in zip(join_pieces(sequences), range(0, len(sequences), 512), strict=True)
        if normalizer.normalize_str(text) != reference.normalize(text)
        for sequence in sequences[at : at + 512]
        if normalizer.normalize_str(sequence) != reference.normalize(sequence)
    ]
    assert len(different) == 21
    assert {unicodedata.name(sequence[0], "newer").split()[0].title() for sequence in different} <= {*NEWER, "Newer"}


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc"])
def test_random_marks_are_normalized_as_by_sentencepiece(rule):
    rng = random.Random(0)
    normalizer, reference = library_normalizer_for(rule), sentencepiece_normalizer(rule)
    odd = [
        *"aAeo한각각  ²ªＡſ\x01\t👩ﬁｶﾞ",
        *"\u0301\u0302\u0323\u0304\u0345\u3099\u200d\ufe0f\u0e33\u093c",
        "🏻",
        "\U0001d165",
    ]
    odd += [unicodedata.normalize("NFD", character) for character in "ếộ한각ΐᾂदक़กำЙ"]
    for text in ["".join(rng.choices(odd, k=rng.randint(1, 9))) for _ in range(20_000)]:
        assert normalizer.normalize_str(text) == reference.normalize(text), ascii(text)


BARE = make_nmt_nfkc()
FOLDED = {
    "type": "Sequence",
    "normalizers": [*({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")), BARE],
}


@pytest.mark.parametrize("normalizer", [BARE, FOLDED, {"type": "NFC"}, None], ids=["T5", "ALBERT", "other", "none"])
def test_collapse_inverts_expand(normalizer):
    """Therefore the fingerprint of a tokenizer does not depend on the expansion."""
    assert collapse_precompiled(expand_precompiled(normalizer)) == normalizer
    assert expand_precompiled(expand_precompiled(normalizer)) == expand_precompiled(normalizer)


def fold_as_xlnet(text: str) -> str:
    """Return the text that XLNet's published code passes to SentencePiece."""
    text = unicodedata.normalize("NFKD", text.replace("``", '"').replace("''", '"'))
    return "".join(character for character in text if not unicodedata.combining(character))


def fold_as_albert(text: str) -> str:
    """Return the text that ALBERT's published code passes to SentencePiece."""
    return fold_as_xlnet(text).lower()


def sentencepiece_model(tokenizer, rule: str = "nmt_nfkc") -> sentencepiece.SentencePieceProcessor:
    """Return SentencePiece with the pieces and scores of the tokenizer, and SentencePiece's own table."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"]),
        model_writer=model,
        vocab_size=20,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    content = tokenizer.content["model"]
    del proto.pieces[:]
    for index, (piece, score) in enumerate(content["vocab"]):
        special = piece in {token["content"] for token in tokenizer.content["added_tokens"]}
        proto.pieces.add(piece=piece, score=score, type=2 if index == content["unk_id"] else 3 if special else 1)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def test_sigma_is_lowercased_as_by_python():
    lower = make_library_normalizer({"type": "Sequence", "normalizers": [SIGMA, {"type": "Lowercase"}]})
    rng = random.Random(0)
    for text in ("".join(rng.choices("ΣΣaΔ'.\u0301 1\u00adʰ漢\n", k=rng.randint(1, 6))) for _ in range(5_000)):
        assert lower.normalize_str(text) == text.lower(), ascii(text)


@pytest.fixture(scope="module")
def trained():
    """`lowercase` -> tokenizer trained on composed sentences."""
    composed = [unicodedata.normalize("NFC", sentence) for sentence in SENTENCES] * 2
    return {
        low: train_tokenizer_on_texts("unigram", composed, vocabulary=400, sentinels=3, lowercase=low)
        for low in (False, True)
    }


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_sentencepiece(lowercase, text, trained):
    reference = sentencepiece_model(trained[lowercase])
    assert trained[lowercase].encode(text).tolist() == reference.encode(fold_as_albert(text) if lowercase else text)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("sentence", SENTENCES[:2])
def test_decomposed_text_has_ids_of_composed_text(lowercase, sentence, trained):
    composed, decomposed = (unicodedata.normalize(form, sentence) for form in ("NFC", "NFD"))
    ids = trained[lowercase].encode(decomposed).tolist()
    assert ids == trained[lowercase].encode(composed).tolist()
    assert trained[lowercase].unknown not in ids


def test_first_tokens_of_words_in_decomposed_text(trained):
    text = unicodedata.normalize("NFD", SENTENCES[0])
    ids, ends = trained[False].encode_batch_with_ends([text])[0]
    words = np.array([len(before) for before in itertools.accumulate(text.split(), "{} {}".format)][:-1]) + 1
    marked = [index for index, id_ in enumerate(ids) if trained[False].name(id_).startswith("▁")]
    assert find_first_tokens(ends, words).tolist() == marked[1:]


def test_saved_tokenizer_has_same_ids_in_transformers(trained, tmp_path):
    trained[True].save(tmp_path)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert hf_tokenizer(text, add_special_tokens=False).input_ids == trained[True].encode(text).tolist()


def test_collapsed_tokenizer_json_has_same_ids_and_fingerprint(trained, tmp_path):
    """Published files, and those of earlier versions, have a `Precompiled` component."""
    content = {**trained[False].content, "normalizer": collapse_precompiled(trained[False].content["normalizer"])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == trained[False].fingerprint
    for text in TEXTS:
        assert loaded.encode(text).tolist() == trained[False].encode(text).tolist()


def test_tokenizer_of_earlier_version_keeps_its_folds(trained, tmp_path):
    """Lowercase tokenizers of earlier versions were trained on text without any marks."""
    normalizer = collapse_precompiled(trained[True].content["normalizer"])
    (tmp_path / "tokenizer.json").write_text(json.dumps({**trained[True].content, "normalizer": normalizer}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    loaded = load_tokenizer(tmp_path)
    assert loaded.library.normalizer.normalize_str("हिन्दी ΣΟΦΟΣ 한") == "हनद σοφοσ 한"
    assert loaded.fingerprint == trained[True].fingerprint


FAMILIES = {
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "mt5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "albert": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"},
    "xlnet": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"},
    "big_bird": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3, "control_symbols": "[CLS],[SEP],[MASK]"},
    "deberta-v2": {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "unk_piece": "[UNK]",
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_sentencepiece_model_without_tokenizer_json_is_read(family, tmp_path):
    """Some folders of Google and Microsoft have no tokenizer.json. Only ALBERT lowercases by default."""
    file = tmp_path / ("spm.model" if family == "deberta-v2" else "spiece.model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, *map(fold_as_albert, SENTENCES)]),
        model_prefix=str(file.with_suffix("")),
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **FAMILIES[family],
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer, reference = read_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(model_file=str(file))
    folds = {"albert": fold_as_albert, "xlnet": fold_as_xlnet}
    for text in (*TEXTS, "  two\u3000 \u200b spaces \n"):
        expected = reference.encode(folds.get(family, str)(text), out_type=str)
        names = [tokenizer.name(id_) for id_ in tokenizer.encode(text).tolist()]
        unknown = tokenizer.name(tokenizer.unknown)
        assert names == [piece if reference.piece_to_id(piece) != reference.unk_id() else unknown for piece in expected]


def test_sentencepiece_model_without_table_is_read(tmp_path):
    """transformers adds NFC to a DeBERTa tokenizer with the rule `identity`, but SentencePiece does not apply it."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        normalization_rule_name="identity",
        **FAMILIES["deberta-v2"],
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    tokenizer = read_tokenizer(tmp_path)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    for text in (*SENTENCES, *(unicodedata.normalize("NFD", text) for text in SENTENCES)):
        assert tokenizer.encode(text).tolist() == reference.encode(text)


SYMBOLS = [".", "(", ")", '"', "-", "€"]
"""User-defined symbols as in the models of ALBERT and XLNet."""


def write_sentencepiece_model(folder, family, **options):
    """Train a SentencePiece model in a folder without tokenizer.json; return its processor."""
    name = "spm" if family == "deberta-v2" else "spiece"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, *map(fold_as_albert, SENTENCES)]),
        model_prefix=str(folder / name),
        vocab_size=700,
        hard_vocab_limit=False,
        minloglevel=2,
        **{**FAMILIES[family], **options},
    )
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))


def test_byte_fallback_of_sentencepiece_model_is_read(tmp_path):
    """mT5 spells rare characters in bytes; transformers makes them unknown."""
    reference = write_sentencepiece_model(tmp_path, "t5", byte_fallback=True)
    tokenizer = read_tokenizer(tmp_path)
    text = "a \ua66e\ua66e b \u9fa5."
    assert tokenizer.encode(text).tolist() == reference.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("family", ["albert", "xlnet"])
def test_symbols_of_sentencepiece_model_do_not_end_words(family, tmp_path):
    """transformers converts "3.14 (pi)" to other ids: "▁3", ".", "▁14", "(", "▁pi"."""
    reference = write_sentencepiece_model(tmp_path, family, user_defined_symbols=SYMBOLS)
    tokenizer = read_tokenizer(tmp_path)
    for text in ("it costs 3.14 (or 5) - in all.", 'he: "is it 10€?" no.'):
        assert tokenizer.encode(text).tolist() == reference.encode(text)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "bpe"}, "model_type is BPE"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix is false"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces is false"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix is true"),
        ({"normalization_rule_name": "identity"}, "normalization_rule_name is identity"),
    ],
)
def test_sentencepiece_options_are_rejected(options, reason, tmp_path):
    write_sentencepiece_model(tmp_path, "albert", **options)
    with pytest.raises(UserError, match=f"{reason}; such a tokenizer"):
        read_tokenizer(tmp_path)


def encode_table(units: list[int]) -> str:
    table = np.array(units, dtype="<u4").tobytes()
    return base64.b64encode(struct.pack("<I", len(table)) + table + b"\0").decode()


@pytest.mark.parametrize(
    "charsmap",
    ["", "AAAA", "not base64!", encode_table([0, *((index << 10) | 0x61 for index in range(300))])],
    ids=["empty", "short", "text", "loops"],
)
def test_damaged_table_is_rejected(charsmap, trained, tmp_path):
    content = {**trained[False].content, "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not a valid tokenizer"):
        load_tokenizer(tmp_path)
