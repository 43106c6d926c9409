"""The classes of families in transformers read our folders, and give the ids that we give."""

import json
from pathlib import Path

import pytest
import transformers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from megaptm.hub.tokenizer import read_tokenizer
from megaptm.tokenizers import Tokenizer, load, train
from megaptm.tokenizers.normalization import library_normalizer, plain
from megaptm.tokenizers.probe import probe_texts
from tests.tokenizers.conftest import VARIANTS

CLASSES = [
    ("byte-bpe", "GPT2Tokenizer"),
    ("RoBERTa", "RobertaTokenizer"),
    ("RoBERTa", "BartTokenizer"),
    ("DeBERTa", "DebertaTokenizer"),
    ("char-bpe", "OpenAIGPTTokenizer"),
    ("wordpiece", "BertTokenizer"),
    ("cased BERT", "BertTokenizer"),
    ("unigram", "T5Tokenizer"),
    ("ALBERT", "AlbertTokenizer"),
    ("bpe", "LlamaTokenizer"),
]
ROLES = (
    "bos_token_id",
    "eos_token_id",
    "unk_token_id",
    "sep_token_id",
    "pad_token_id",
    "cls_token_id",
    "mask_token_id",
)


def without_names(texts, tokenizer: Tokenizer) -> list[str]:
    """Texts in which transformers, which seeks their names, finds no special token."""
    names = [token["content"] for token in tokenizer.content["added_tokens"]]
    return [text for text in texts if not any(name in text for name in names)]


@pytest.mark.parametrize("name", VARIANTS)
def test_nasty_texts_have_the_same_ids_in_the_general_class(name, trained, tmp_path):
    trained[name].save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = without_names(probe_texts(), trained[name])
    found = theirs(texts, add_special_tokens=False).input_ids
    for text, ids, expected in zip(texts, trained[name].encode_batch(texts), found, strict=True):
        assert ids.tolist() == expected, text[:80]


def normalized_alike(texts, tokenizer: Tokenizer) -> list[str]:
    """Texts that a bare `Precompiled` normalizes as SentencePiece does: T5Tokenizer and AlbertTokenizer make their
    normalizer anew of the table in tokenizer.json, and nothing can be added to it there."""
    if tokenizer.kind != "unigram":
        return texts
    bare = library_normalizer(plain(tokenizer.content["normalizer"]))
    ours = tokenizer.library.normalizer
    return [text for text in texts if bare.normalize_str(text) == ours.normalize_str(text)]


@pytest.mark.parametrize(("name", "kind"), CLASSES)
def test_the_class_of_the_family_gives_the_same_ids(name, kind, trained, texts, tmp_path):
    trained[name].save(tmp_path)
    general = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)
    tried = normalized_alike([*without_names(probe_texts(), trained[name]), *texts], trained[name])
    found = theirs(tried, add_special_tokens=False).input_ids
    for text, ids, expected in zip(tried, trained[name].encode_batch(tried), found, strict=True):
        assert ids.tolist() == expected, text[:80]
    assert len(theirs) == len(general)
    for role in ROLES:
        if getattr(general, role) is not None:
            assert getattr(theirs, role) == getattr(general, role), role
    # DebertaTokenizer puts two [SEP] between texts, where DeBERTa has one.
    if (general.sep_token is not None and kind != "DebertaTokenizer") or kind == "T5Tokenizer":
        assert theirs("return", "self").input_ids == general("return", "self").input_ids
    if general.mask_token is not None:
        masked = f"return {general.mask_token} self"
        assert theirs(masked).input_ids == general(masked).input_ids


def test_roberta_wraps_texts_as_published_and_its_mask_takes_the_space_before_it(trained, tmp_path):
    trained["RoBERTa"].save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encode = trained["RoBERTa"].encode
    begin, end, mask = theirs.bos_token_id, theirs.eos_token_id, theirs.mask_token_id
    one, two = encode("the self").tolist(), encode("is it").tolist()
    assert theirs("the self", "is it").input_ids == [begin, *one, end, end, *two, end]
    assert theirs("the <mask> self").input_ids == [begin, *encode("the").tolist(), mask, *encode(" self").tolist(), end]


def old_files(name: str, tokenizer: Tokenizer, folder: Path) -> None:
    """The files of a model's first release, without a tokenizer.json."""
    model = tokenizer.content["model"]
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    if name == "wordpiece":
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(vocabulary, key=vocabulary.get)))
    else:
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    model_type = {"RoBERTa": "roberta", "char-bpe": "openai-gpt", "wordpiece": "bert"}[name]
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.mark.parametrize("name", ["RoBERTa", "char-bpe", "wordpiece"])
def test_folders_of_first_releases_are_read(name, trained, texts, tmp_path):
    old_files(name, trained[name], tmp_path)
    again = read_tokenizer(tmp_path)
    assert again.kind == trained[name].kind
    for text in texts:
        assert again.encode(text).tolist() == trained[name].encode(text).tolist()
    if name != "char-bpe":  # GPT's has no end of a text
        assert again.special == trained[name].special


def test_a_bare_roberta_knows_what_masks_begins_and_separates(trained, tmp_path):
    trained["RoBERTa"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert load(tmp_path).special == trained["RoBERTa"].special


CHINESE = "北京大学在海淀区。学生们喜欢读书,也喜欢 Python 3.11 语言!㐀 𠀀 豈 ひらがなとカタカナ naïve\n"


@pytest.mark.parametrize("lowercase", [True, False])
def test_chinese_characters_are_words_as_in_berts_own_code(lowercase, tmp_path):
    tokenizer = train("wordpiece", [CHINESE], vocabulary=400, lowercase=lowercase)
    vocabulary = tokenizer.content["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(vocabulary, key=vocabulary.get)))
    theirs = BertTokenizerLegacy(tmp_path / "vocab.txt", do_lower_case=lowercase)
    for text in (CHINESE, "大学Python大3语.言", "喜欢喜", "𠀀㐀a", *CHINESE.split()):
        assert tokenizer.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
    tokens = [tokenizer.library.id_to_token(number) for number in tokenizer.encode("北京大学Python").tolist()]
    assert tokens[:4] == [*"北京大学"]
    # Nothing goes on with a Chinese character, so no ids are wasted on that.
    assert not {f"##{character}" for character in "北京大学"} & vocabulary.keys()
    assert "##ら" in vocabulary


def test_every_chinese_character_of_unicode_is_one():
    """But for 256 rare ones, which the tokenizers library forgets, and so all that is built on it."""
    from tokenizers import normalizers

    forgotten = range(0x2B820, 0x2B920)
    apart = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    is_chinese = transformers.models.bert.tokenization_bert_legacy.BasicTokenizer()._is_chinese_char
    for number in (*range(0xD800), *range(0xE000, 0x30000)):
        expected = is_chinese(number) and number not in forgotten
        assert (apart.normalize_str(chr(number)) == f" {chr(number)} ") == expected, hex(number)
