"""SentencePiece's normalization by parts of tokenizer.json: one function in training, encoding, imports and exports."""

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
from megaptm.tokenizers import load, starts_of, train
from megaptm.tokenizers.normalization import (
    BLOCK,
    SIGMA,
    SPLIT,
    exact,
    library_normalizer,
    nmt_nfkc,
    plain,
    precompiled,
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
"""Scripts of Unicode 13 and 16, whose sequences the NFC of the tokenizers library does not know."""


def sentencepiece_normalizer(rule: str) -> sentencepiece.SentencePieceNormalizer:
    return sentencepiece.SentencePieceNormalizer(
        rule_name=rule, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )


def ours_for(rule: str):
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(
        sentencepiece_normalizer(rule).serialized_normalizer_spec()
    )
    return library_normalizer(exact(precompiled(spec.precompiled_charsmap)))


@pytest.fixture(scope="module")
def ours():
    return library_normalizer(exact(nmt_nfkc()))


@pytest.fixture(scope="module")
def theirs() -> sentencepiece.SentencePieceNormalizer:
    return sentencepiece_normalizer("nmt_nfkc")


def chunks(pieces: list[str], size: int = 512) -> list[str]:
    """Pieces apart from one another, many in a text."""
    return ["".join(f"x{piece}y" for piece in pieces[at : at + size]) for at in range(0, len(pieces), size)]


def test_every_code_point_is_normalized_as_sentencepiece_does(ours, theirs):
    separators = {BLOCK, SPLIT}
    codes = (*range(1, 0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200))
    for text in chunks([chr(code) for code in codes if chr(code) not in separators]):
        assert ours.normalize_str(text) == theirs.normalize(text)


def test_every_sequence_of_the_table_is_composed_as_sentencepiece_does(ours, theirs):
    """But for 21, of scripts that came with Unicode 13 and 16. Of Korean, 205,758 of 225,276, one in 20 is tried."""
    korean, other = [], []
    for sequence, composed in theirs.Decompile():
        (korean if "가" <= composed <= "힣" else other).append(sequence)
    sequences = [*other, *korean[::20]]
    wrong = [
        sequence
        for text, at in zip(chunks(sequences), range(0, len(sequences), 512), strict=True)
        if ours.normalize_str(text) != theirs.normalize(text)
        for sequence in sequences[at : at + 512]
        if ours.normalize_str(sequence) != theirs.normalize(sequence)
    ]
    assert len(wrong) == 21
    assert {unicodedata.name(sequence[0], "newer").split()[0].title() for sequence in wrong} <= {*NEWER, "Newer"}


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc"])
def test_mixtures_of_marks_are_normalized_as_sentencepiece_does(rule):
    draw = random.Random(0)
    normalizer, reference = ours_for(rule), sentencepiece_normalizer(rule)
    odd = [
        *"aAeo한각각  ²ªＡſ\x01\t👩ﬁｶﾞ",
        *"\u0301\u0302\u0323\u0304\u0345\u3099\u200d\ufe0f\u0e33\u093c",
        "🏻",
        "\U0001d165",
    ]
    odd += [unicodedata.normalize("NFD", character) for character in "ếộ한각ΐᾂदक़กำЙ"]
    mixtures = ["".join(draw.choices(odd, k=draw.randint(1, 9))) for _ in range(20_000)]
    for text in mixtures:
        assert normalizer.normalize_str(text) == reference.normalize(text), ascii(text)


BARE = nmt_nfkc()
FOLDED = {
    "type": "Sequence",
    "normalizers": [*({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")), BARE],
}


@pytest.mark.parametrize("normalizer", [BARE, FOLDED, {"type": "NFC"}, None], ids=["T5", "ALBERT", "other", "none"])
def test_a_fingerprint_is_that_of_the_normalizer_before(normalizer):
    assert plain(exact(normalizer)) == normalizer
    assert exact(exact(normalizer)) == exact(normalizer)


def without_accents(text: str) -> str:
    """Texts as the code that XLNet was published with gives them to SentencePiece."""
    text = unicodedata.normalize("NFKD", text.replace("``", '"').replace("''", '"'))
    return "".join(character for character in text if not unicodedata.combining(character))


def albert(text: str) -> str:
    """The same of ALBERT's code."""
    return without_accents(text).lower()


def reference_model(tokenizer, rule: str = "nmt_nfkc") -> sentencepiece.SentencePieceProcessor:
    """SentencePiece with the pieces and scores of a tokenizer of ours, and SentencePiece's own table."""
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
    for number, (piece, score) in enumerate(content["vocab"]):
        special = piece in {token["content"] for token in tokenizer.content["added_tokens"]}
        proto.pieces.add(piece=piece, score=score, type=2 if number == content["unk_id"] else 3 if special else 1)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def test_lower_case_of_a_sigma_is_that_of_python():
    lower = library_normalizer({"type": "Sequence", "normalizers": [SIGMA, {"type": "Lowercase"}]})
    draw = random.Random(0)
    for text in ("".join(draw.choices("ΣΣaΔ'.\u0301 1\u00adʰ漢\n", k=draw.randint(1, 6))) for _ in range(5_000)):
        assert lower.normalize_str(text) == text.lower(), ascii(text)


@pytest.fixture(scope="module")
def trained():
    """Cased and lower-case tokenizers of composed sentences."""
    composed = [unicodedata.normalize("NFC", sentence) for sentence in SENTENCES] * 2
    return {low: train("unigram", composed, vocabulary=400, sentinels=3, lowercase=low) for low in (False, True)}


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_sentencepiece_in_every_form(lowercase, text, trained):
    reference = reference_model(trained[lowercase])
    assert trained[lowercase].encode(text).tolist() == reference.encode(albert(text) if lowercase else text)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("sentence", SENTENCES[:2])
def test_decomposed_text_has_the_ids_of_composed_text(lowercase, sentence, trained):
    composed, decomposed = (unicodedata.normalize(form, sentence) for form in ("NFC", "NFD"))
    ids = trained[lowercase].encode(decomposed).tolist()
    assert ids == trained[lowercase].encode(composed).tolist()
    assert trained[lowercase].unknown not in ids


def test_words_of_decomposed_text_begin_with_their_tokens(trained):
    text = unicodedata.normalize("NFD", SENTENCES[0])
    ids, ends = trained[False].encode_batch_with_ends([text])[0]
    words = np.array([len(before) for before in itertools.accumulate(text.split(), "{} {}".format)][:-1]) + 1
    marked = [number for number, id_ in enumerate(ids) if trained[False].name(id_).startswith("▁")]
    assert starts_of(ends, words).tolist() == marked[1:]


def test_what_is_saved_encodes_the_same_in_transformers(trained, tmp_path):
    trained[True].save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False).input_ids == trained[True].encode(text).tolist()


def test_a_file_with_a_bare_table_encodes_the_same_and_keeps_its_fingerprint(trained, tmp_path):
    """A published tokenizer.json, or one of an earlier version."""
    content = {**trained[False].content, "normalizer": plain(trained[False].content["normalizer"])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    again = load(tmp_path)
    assert again.fingerprint == trained[False].fingerprint
    for text in TEXTS:
        assert again.encode(text).tolist() == trained[False].encode(text).tolist()


def test_folds_that_an_earlier_version_trained_with_stay(trained, tmp_path):
    """Its lower-case tokenizers were trained on text without any mark; decomposed Korean is composed there, too."""
    normalizer = plain(trained[True].content["normalizer"])
    (tmp_path / "tokenizer.json").write_text(json.dumps({**trained[True].content, "normalizer": normalizer}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    again = load(tmp_path)
    assert again.library.normalizer.normalize_str("हिन्दी ΣΟΦΟΣ 한") == "हनद σοφοσ 한"
    assert again.fingerprint == trained[True].fingerprint


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
def test_a_published_sentencepiece_model_is_read_with_its_table(family, tmp_path):
    """Folders without a tokenizer.json, as Google's and Microsoft's are; lower case is ALBERT's default alone."""
    file = tmp_path / ("spm.model" if family == "deberta-v2" else "spiece.model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, *map(albert, SENTENCES)]),
        model_prefix=str(file.with_suffix("")),
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **FAMILIES[family],
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    found, reference = read_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(model_file=str(file))
    folds = {"albert": albert, "xlnet": without_accents}
    for text in (*TEXTS, "  two\u3000 \u200b spaces \n"):
        expected = reference.encode(folds.get(family, str)(text), out_type=str)
        names = [found.name(id_) for id_ in found.encode(text).tolist()]
        unknown = found.name(found.unknown)
        assert names == [piece if reference.piece_to_id(piece) != reference.unk_id() else unknown for piece in expected]


def test_a_sentencepiece_model_without_a_table_is_read_without_one(tmp_path):
    """transformers reads a DeBERTa of the rule `identity` with NFC, which SentencePiece does not apply."""
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


def forged(units: list[int]) -> str:
    table = np.array(units, dtype="<u4").tobytes()
    return base64.b64encode(struct.pack("<I", len(table)) + table + b"\0").decode()


@pytest.mark.parametrize(
    "charsmap",
    ["", "AAAA", "not base64!", forged([0, *((number << 10) | 0x61 for number in range(300))])],
    ids=["empty", "short", "text", "loops"],
)
def test_a_damaged_table_is_named(charsmap, trained, tmp_path):
    content = {**trained[False].content, "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not a tokenizer that can be read"):
        load(tmp_path)
