"""Ids equal the Hugging Face library's on every text; text cannot forge a special token; files load everywhere."""

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

from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer, load
from megaptm.tokenizers.special import role_names, special_tokens
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


def names_of(tokenizer: Tokenizer) -> dict[str, int]:
    return tokenizer.library.get_vocab(with_added_tokens=True)


def id_of(tokenizer: Tokenizer, role: str) -> int | None:
    return names_of(tokenizer).get(role_names(tokenizer.config, names_of(tokenizer)).get(role, ""))


@pytest.fixture(scope="module")
def library_files() -> list[str]:
    """Real files with all that Python's own tests hold: every script, odd spaces, thousands of lines."""
    root = Path(sysconfig.get_path("stdlib"))
    return [path.read_bytes().decode("utf-8", "ignore") for path in sorted(root.glob("[a-j]*.py"))]


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_of_real_files_are_those_of_hugging_face(name, trained, library_files):
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
def test_ids_and_ends_are_those_of_hugging_face_on_any_text(name, text, trained):
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
def test_bytes_come_back_as_the_text(name, text, trained):
    assert trained[name].decode(trained[name].encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_what_bpe_spells_in_bytes_comes_back_as_the_text(text, trained):
    """But for SentencePiece's own space, and a first space, which is there in any case."""
    text = text.replace(MARK, "_").removeprefix(" ")
    text = f"x{text}" if text.startswith(" ") else text
    assert trained["bpe"].decode(trained["bpe"].encode(text)) == text


@pytest.mark.parametrize("name", VARIANTS)
def test_one_text_and_a_batch_agree(name, trained):
    tokenizer = trained[name]
    for text, ids in zip(ODD, tokenizer.encode_batch(ODD), strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_a_token_is_shown_as_text_where_its_name_is_bytes(trained):
    bytes_, words = trained["byte-bpe"], trained["wordpiece"]
    assert [bytes_.shown(int(id_)) for id_ in bytes_.encode("\n")] == [repr("\n")]
    assert bytes_.shown(int(bytes_.encode("a b")[1]))[:2] == "' "
    assert words.shown(int(words.encode("a")[0])) == "a"


@pytest.mark.parametrize("name", VARIANTS)
def test_text_cannot_forge_a_special_token(name, trained):
    tokenizer = trained[name]
    forged = "see <|endoftext|>, </s>, <s><pad>, <extra_id_3>, <mask> <mask>, [CLS], [MASK] and [PAD] here"
    assert set(tokenizer.encode(forged).tolist()) & tokenizer.special.specials <= {id_of(tokenizer, "unknown")}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_saved_tokenizer_loads_here_and_in_transformers_with_the_same_ids(name, trained, tmp_path):
    from transformers import AutoTokenizer

    trained[name].save(tmp_path)
    again, theirs = load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "class Parser: # The parser's 1st naïve test\n    return [self.name, 'x']\n"
    ids = trained[name].encode(text).tolist()
    assert again.encode(text).tolist() == ids
    assert theirs(text, add_special_tokens=False).input_ids == ids
    assert (again.fingerprint, again.special, again.kind) == (
        trained[name].fingerprint,
        trained[name].special,
        VARIANTS[name][0],
    )
    assert (theirs.pad_token_id, theirs.eos_token_id) == (again.special.pad, again.special.end)
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id) == (
        again.special.cls,
        again.special.sep,
        again.special.mask,
    )
    assert (theirs.bos_token_id, theirs.unk_token_id) == (again.special.begin, id_of(again, "unknown"))
    assert len(theirs) == again.vocabulary


def test_transformers_adds_what_the_published_tokenizers_add(trained, tmp_path):
    from transformers import AutoTokenizer

    def wrapped(kind: str) -> list[str]:
        trained[kind].save(tmp_path / kind)
        theirs = AutoTokenizer.from_pretrained(tmp_path / kind)
        ids = theirs("return self")
        return [theirs.decode(id_) for id_ in (ids.input_ids[0], ids.input_ids[-1])]

    assert wrapped("wordpiece") == ["[CLS]", "[SEP]"]
    assert wrapped("unigram")[-1] == "</s>"


def test_a_bare_file_finds_its_roles_by_their_usual_names(trained, tmp_path):
    trained["wordpiece"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load(tmp_path / "tokenizer.json").special == trained["wordpiece"].special


def test_the_fingerprint_ignores_spacing_and_saved_padding_and_sees_one_changed_merge(trained, tmp_path):
    trained["byte-bpe"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    padded = Library.from_file(str(file))
    padded.enable_padding(length=8)
    padded.enable_truncation(4)
    padded.save(str(file), pretty=False)
    assert load(file).fingerprint == trained["byte-bpe"].fingerprint
    assert len(load(file).encode("def __init__(self, parser)")) > 4
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"].pop()
    file.write_text(json.dumps(content), encoding="utf-8")
    assert load(file).fingerprint != trained["byte-bpe"].fingerprint


@pytest.mark.parametrize("written", ["", "[]", "{}", '{"model": {"type": "BPE"}}', '{"version": "1.0", "model": 3}'])
def test_a_file_that_is_no_tokenizer_is_named(written, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(written)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(tmp_path)


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_importing_the_package_loads_no_library():
    heavy = "{'tokenizers', 'gigatoken', 'sentencepiece', 'transformers', 'torch'}"
    code = f"import sys, megaptm.tokenizers; print({heavy} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@pytest.mark.parametrize("before", ["", "▁"])
def test_sentinels_are_known_as_t5_and_as_mt5_spell_them(before):
    ids = {"<pad>": 0, "</s>": 1, "▁a": 2, **{f"{before}<extra_id_{number}>": 12 - number for number in range(10)}}
    special = special_tokens({}, {}, ids)
    assert special.sentinels == (*range(12, 2, -1),)
    assert special.specials == {0, 1, *special.sentinels}
    # Of both, those that its family's class has added.
    both = {**ids, "<extra_id_0>": 14, "<extra_id_1>": 13}
    assert special_tokens({}, {}, both).sentinels[:2] == (14, 13)
