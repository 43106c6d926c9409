"""Ids equal Hugging Face's on every text, text never becomes a special token, and saved files load in transformers."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from megaptm.errors import UserError
from megaptm.inference.prompt import encode_prompt
from megaptm.tokenizers import Tokenizer, load_tokenizer
from megaptm.tokenizers.special import find_role_names, read_special_tokens
from megaptm.tokenizers.word_cache import MARK, ids_and_ends
from tests.tokenizers.conftest import VARIANTS

ODD = [
    "",
    " ",
    "\n" * 300,
    " " * 5000,
    "a" * 3000,
    "\r\n\r\n x\t\r\n",
    "\x00\x01\x7f\ufeff\ufffd",
    "e\u0301\u200d\u00a0\u2028x\u0085\u1680y\u3000z\x1c\x1d",
    "😀👩‍👩‍👧🏽 \N{MATHEMATICAL FRAKTUR CAPITAL U} १२३ 漢字かな ß İı",
    "it's I'LL we\u2019ve 'S",
    "<|endoftext|> </s> <extra_id_0> [MASK] <pad>",
]


def role_id(tokenizer: Tokenizer, role: str) -> int | None:
    ids = tokenizer.library.get_vocab(with_added_tokens=True)
    return ids.get(find_role_names(tokenizer.config, ids).get(role, ""))


@pytest.fixture(scope="module")
def library_files() -> list[str]:
    """Return files of Python's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    return [path.read_bytes().decode("utf-8", "ignore") for path in sorted(root.glob("[a-j]*.py"))]


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_of_real_files_equal_hugging_face(name, trained, library_files):
    tokenizer = trained[name]
    assert tokenizer._gigatoken or tokenizer._words
    texts = library_files[:: 1 if name == "byte-bpe" else 16] + ODD
    expected = tokenizer.library.encode_batch(texts, add_special_tokens=False)
    for text, ids, encoding in zip(texts, tokenizer.encode_batch(texts), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


SPACES_AND_MARKS = st.sampled_from(
    [*" \n\t\r\v\f\x00\x1c\x85\u00a0\u2028\u3000\u200d\u0301\ufe0f", "é", "漢", "😀", "a", "'s", ".", "½"]
)
TEXTS = st.text() | st.lists(SPACES_AND_MARKS | st.text(max_size=3), max_size=40).map("".join)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_ids_and_ends_of_random_texts_equal_hugging_face(name, text, trained):
    tokenizer = trained[name]
    encoding = tokenizer.library.encode(text, add_special_tokens=False)
    [(ids, ends)] = tokenizer.encode_batch_with_ends([text])
    assert tokenizer.encode(text).tolist() == ids.tolist() == encoding.ids
    expected_ids, expected_ends, _ = ids_and_ends([encoding], tokenizer.library.token_to_id(MARK))
    assert (ids.tolist(), ends.tolist()) == (expected_ids.tolist(), expected_ends.tolist())
    assert (np.diff(ends) >= 0).all()
    assert len(ends) == 0 or 0 < ends[-1] <= len(text)


@pytest.mark.parametrize("name", ["byte-bpe", "RoBERTa", "DeBERTa"])
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_byte_bpe_restores_text(name, text, trained):
    assert trained[name].decode(trained[name].encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_bpe_with_byte_fallback_restores_text(text, trained):
    """Exceptions are SentencePiece's mark of a space, and a space at the start, which is always added."""
    text = text.replace(MARK, "_").removeprefix(" ")
    text = f"x{text}" if text.startswith(" ") else text
    assert trained["bpe"].decode(trained["bpe"].encode(text)) == text


@pytest.mark.parametrize("name", VARIANTS)
def test_encode_equals_encode_batch(name, trained):
    tokenizer = trained[name]
    for text, ids in zip(ODD, tokenizer.encode_batch(ODD), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_format_token_decodes_byte_level_names(trained):
    bytes_, words = trained["byte-bpe"], trained["wordpiece"]
    assert [bytes_.format_token(int(id_)) for id_ in bytes_.encode("\n")] == [repr("\n")]
    assert bytes_.format_token(int(bytes_.encode("a b")[1]))[:2] == "' "
    assert words.format_token(int(words.encode("a")[0])) == "a"


@pytest.mark.parametrize("name", VARIANTS)
def test_text_never_becomes_a_special_token(name, trained):
    tokenizer = trained[name]
    forged = "see <|endoftext|>, </s>, <s><pad>, <extra_id_3>, <mask> <mask>, [CLS], [MASK] and [PAD] here"
    assert set(tokenizer.encode(forged).tolist()) & tokenizer.special.specials <= {role_id(tokenizer, "unknown")}


@pytest.mark.parametrize("name", ["unigram", "ALBERT", "DeBERTa v3", "RoBERTa", "cased BERT"])
def test_prompt_after_a_hole_is_encoded_as_within_a_text(name, trained):
    """transformers' issues 24565 and 31513: SentencePiece adds a space before a text, but not after a masked token."""
    tokenizer = trained[name]
    hole = (tokenizer.special.sentinels or (tokenizer.special.mask,))[0]
    value, text = (tokenizer.encode(text).tolist() for text in ("The value", "The value. The"))
    the = tokenizer.encode("The").tolist()
    expected = [*the, hole, *text[len(value) :]]
    assert encode_prompt(tokenizer, f"The {tokenizer.name(hole)}. The", (hole,)) == expected


@pytest.mark.parametrize("text", ["a b", " a b", ". b", "  a", ""])
@pytest.mark.parametrize("prefix", ["Metaspace", "Prepend"])
def test_text_after_a_hole_has_no_other_space(prefix, text):
    """A normalizer of Llama adds a space also before a text that begins with one."""
    marked = [f"{MARK}{letter}" for letter in "ab."]
    pieces = [MARK, *"ab.x", *marked]
    merges = [(MARK, letter) for letter in "ab."]
    library = Library(models.BPE({piece: id_ for id_, piece in enumerate(pieces)}, merges))
    if prefix == "Prepend":
        library.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer = Tokenizer(json.loads(library.to_str()), {})
    in_text = tokenizer.encode(f"x{text}").tolist()[len(tokenizer.encode("x")) :]
    assert tokenizer.encode_continuation(text).tolist() == in_text


SPECIAL = ["[UNK]", "[MASK]", "</s>"]
WORDS = {word: id_ for id_, word in enumerate([*SPECIAL, "a", "b", "[", "]", "<", "/s>", "MASK", "MASK]"])}


@pytest.mark.parametrize("divided", [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(" ", "removed"), None])
@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel(WORDS, unk_token="[UNK]"),
        models.WordPiece(WORDS, unk_token="[UNK]"),
        models.BPE(WORDS, [], unk_token="[UNK]", ignore_merges=True),
    ],
    ids=["words", "wordpiece", "bpe"],
)
def test_text_never_becomes_a_special_token_of_undivided_words(model, divided, tmp_path):
    """`split_special_tokens` of transformers: the model itself finds a name that no pre-tokenizer divides."""
    library = Library(model)
    if divided is not None:
        library.pre_tokenizer = divided
    library.add_special_tokens(SPECIAL)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("a [MASK] b", "[MASK]", "</s>", "a </s>"):
        assert not {1, 2} & {*tokenizer.encode(text).tolist(), *tokenizer.encode_batch_with_ends([text])[0][0].tolist()}
    assert tokenizer.encode("a").tolist() == [3]


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_tokenizer_loads_with_same_ids(name, trained, tmp_path):
    """`load_tokenizer` and transformers read the ids, the special tokens and the vocabulary size."""
    from transformers import AutoTokenizer

    trained[name].save(tmp_path)
    loaded, hf_tokenizer = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "class Parser: # The parser's 1st naïve test\n    return [self.name, 'x']\n"
    ids = trained[name].encode(text).tolist()
    assert loaded.encode(text).tolist() == ids
    assert loaded.fingerprint == trained[name].fingerprint
    assert loaded.special == trained[name].special
    assert loaded.kind == VARIANTS[name][0]
    assert hf_tokenizer(text, add_special_tokens=False).input_ids == ids
    assert hf_tokenizer.pad_token_id == loaded.special.pad
    assert hf_tokenizer.bos_token_id == loaded.special.begin
    assert hf_tokenizer.eos_token_id == loaded.special.end
    assert hf_tokenizer.cls_token_id == loaded.special.cls
    assert hf_tokenizer.sep_token_id == loaded.special.sep
    assert hf_tokenizer.mask_token_id == loaded.special.mask
    assert hf_tokenizer.unk_token_id == role_id(loaded, "unknown")
    assert len(hf_tokenizer) == loaded.vocabulary


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("wordpiece", ["[CLS]", "return", "self", "[SEP]"]), ("unigram", ["▁return", "▁self", "</s>"])],
)
def test_transformers_adds_special_tokens_of_published_tokenizers(kind, expected, trained, tmp_path):
    from transformers import AutoTokenizer

    trained[kind].save(tmp_path)
    hf_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert hf_tokenizer.convert_ids_to_tokens(hf_tokenizer("return self").input_ids) == expected


def test_bare_tokenizer_json_has_roles_by_usual_names(trained, tmp_path):
    trained["wordpiece"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path / "tokenizer.json").special == trained["wordpiece"].special


def test_fingerprint_depends_on_merges_only(trained, tmp_path):
    """White space in the file, and saved padding and truncation, do not change it."""
    trained["byte-bpe"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    padded = Library.from_file(str(file))
    padded.enable_padding(length=8)
    padded.enable_truncation(4)
    padded.save(str(file), pretty=False)
    assert load_tokenizer(file).fingerprint == trained["byte-bpe"].fingerprint
    assert len(load_tokenizer(file).encode("def __init__(self, parser)")) > 4
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"].pop()
    file.write_text(json.dumps(content), encoding="utf-8")
    assert load_tokenizer(file).fingerprint != trained["byte-bpe"].fingerprint


@pytest.mark.parametrize("layout", [3, [], {}, {"type": "BertProcessing", "sep": ["[SEP]"]}])
def test_invalid_post_processor_is_rejected(layout, trained, tmp_path):
    content = {**trained["wordpiece"].content, "post_processor": layout}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="its post_processor is none of the tokenizers library"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("written", ["", "[]", "{}", '{"model": {"type": "BPE"}}', '{"version": "1.0", "model": 3}'])
def test_invalid_tokenizer_json_is_rejected(written, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(written)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_missing_tokenizer_is_rejected(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_import_loads_no_tokenizer_library():
    heavy = "{'tokenizers', 'gigatoken', 'sentencepiece', 'transformers', 'torch'}"
    code = f"import sys, megaptm.tokenizers; print({heavy} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@pytest.mark.parametrize("prefix", ["", "▁"], ids=["T5", "mT5"])
def test_sentinels_are_recognized(prefix):
    ids = {"<pad>": 0, "</s>": 1, "▁a": 2, **{f"{prefix}<extra_id_{index}>": 12 - index for index in range(10)}}
    special = read_special_tokens({}, {}, ids)
    assert special.sentinels == (*range(12, 2, -1),)
    assert special.specials == {0, 1, *special.sentinels}
    # Sentinels that the family's class added take precedence.
    both = {**ids, "<extra_id_0>": 14, "<extra_id_1>": 13}
    assert read_special_tokens({}, {}, both).sentinels[:2] == (14, 13)
