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
from megaptm.tokenizers import KINDS, load

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


@pytest.fixture(scope="module")
def library_files() -> list[str]:
    """Real files with all that Python's own tests hold: every script, odd spaces, thousands of lines."""
    root = Path(sysconfig.get_path("stdlib"))
    return [path.read_bytes().decode("utf-8", "ignore") for path in sorted(root.glob("[a-j]*.py"))]


def test_fast_byte_bpe_gives_the_ids_of_hugging_face(trained, library_files):
    tokenizer = trained["byte-bpe"]
    assert tokenizer._fast is not None
    texts = library_files + ODD
    expected = tokenizer.library.encode_batch(texts, add_special_tokens=False)
    for text, ids, encoding in zip(texts, tokenizer.encode_batch(texts), expected, strict=True):
        assert ids.tolist() == encoding.ids, text[:80]


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_byte_bpe_ids_are_exact_and_come_back_as_the_text(text, trained):
    tokenizer = trained["byte-bpe"]
    ids = tokenizer.encode(text)
    assert ids.tolist() == tokenizer.library.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_one_text_and_a_batch_agree(kind, trained):
    tokenizer = trained[kind]
    for text, ids in zip(ODD, tokenizer.encode_batch(ODD), strict=True):
        assert ids.dtype == np.int64
        assert ids.tolist() == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_text_cannot_forge_a_special_token(kind, trained):
    tokenizer = trained[kind]
    forged = "see <|endoftext|>, </s>, <pad>, <extra_id_3>, [CLS], [MASK] and [PAD] here"
    unknown = tokenizer.library.token_to_id("<unk>" if kind == "unigram" else "[UNK]")
    assert set(tokenizer.encode(forged).tolist()) & (tokenizer.special.specials - {unknown}) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_loads_here_and_in_transformers_with_the_same_ids(kind, trained, tmp_path):
    from transformers import AutoTokenizer

    trained[kind].save(tmp_path)
    again, theirs = load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "class Parser: # The parser's 1st naïve test\n    return [self.name, 'x']\n"
    ids = trained[kind].encode(text).tolist()
    assert again.encode(text).tolist() == ids
    assert theirs(text, add_special_tokens=False).input_ids == ids
    assert (again.fingerprint, again.special, again.kind) == (trained[kind].fingerprint, trained[kind].special, kind)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (again.special.pad, again.special.end)
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id) == (
        again.special.cls,
        again.special.sep,
        again.special.mask,
    )
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


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_starts_cut_the_ids_of_the_whole_text_where_the_sentences_are(kind, trained):
    tokenizer = trained[kind]
    sentences = ["The parser is naïve. ", "It returns self! ", "Is it 漢字?  ", "Nothing."]
    [(ids, starts)] = tokenizer.encode_sentences([sentences])
    assert ids.tolist() == tokenizer.encode("".join(sentences)).tolist()
    assert starts[0] == 0
    pieces = [tokenizer.decode(piece).strip() for piece in np.split(ids, starts[1:])]
    assert pieces == [tokenizer.decode(tokenizer.encode(sentence)).strip() for sentence in sentences]


def test_white_space_between_sentences_is_no_sentence_for_wordpiece(trained):
    [(ids, starts)] = trained["wordpiece"].encode_sentences([["a parser ", "\n\n", "it returns"]])
    assert len(starts) == 2
    assert trained["wordpiece"].decode(ids[starts[1] :]) == "it returns"


def test_a_text_without_tokens_has_no_sentences(trained):
    [(ids, starts)] = trained["wordpiece"].encode_sentences([[" ", "\n"]])
    assert len(ids) == len(starts) == 0


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


def test_a_splitting_rule_the_fast_library_lacks_falls_back_to_hugging_face(trained):
    from megaptm.tokenizers import Tokenizer

    content = json.loads(json.dumps(trained["byte-bpe"].content))
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[aeiou]+|[^aeiou]"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    odd = Tokenizer(content, {})
    assert odd.kind == "byte-bpe"
    text = "the queue is empty"
    assert odd.encode(text).tolist() == odd.library.encode(text, add_special_tokens=False).ids


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
