"""Tokenizer classes of transformers read saved folders and give the same ids."""

import json
from pathlib import Path

import pytest
import transformers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from megaptm.hub.tokenizer import read_tokenizer
from megaptm.tokenizers import Tokenizer, load_tokenizer, train_tokenizer_on_texts
from megaptm.tokenizers.normalization import collapse_precompiled, make_library_normalizer
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
    """Return the texts without names of special tokens, which transformers would convert to their ids."""
    names = [token["content"] for token in tokenizer.content["added_tokens"]]
    return [text for text in texts if not any(name in text for name in names)]


@pytest.mark.parametrize("name", VARIANTS)
def test_general_class_gives_same_ids(name, trained, tmp_path):
    trained[name].save(tmp_path)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = without_names(probe_texts(), trained[name])
    hf_ids = hf_tokenizer(texts, add_special_tokens=False).input_ids
    for text, ids, expected in zip(texts, trained[name].encode_batch(texts), hf_ids, strict=True):
        assert ids.tolist() == expected, text[:80]


def same_with_bare_table(texts, tokenizer: Tokenizer) -> list[str]:
    """Return the texts that a bare `Precompiled` normalizes as SentencePiece does.

    T5Tokenizer and AlbertTokenizer make their normalizer from the table in tokenizer.json, without our components.
    """
    if tokenizer.kind != "unigram":
        return texts
    bare = make_library_normalizer(collapse_precompiled(tokenizer.content["normalizer"]))
    expanded = tokenizer.library.normalizer
    return [text for text in texts if bare.normalize_str(text) == expanded.normalize_str(text)]


@pytest.mark.parametrize(("name", "class_name"), CLASSES)
def test_family_class_gives_same_ids(name, class_name, trained, texts, tmp_path):
    trained[name].save(tmp_path)
    general = transformers.AutoTokenizer.from_pretrained(tmp_path)
    of_family = getattr(transformers, class_name).from_pretrained(tmp_path)
    all_texts = same_with_bare_table([*without_names(probe_texts(), trained[name]), *texts], trained[name])
    hf_ids = of_family(all_texts, add_special_tokens=False).input_ids
    for text, ids, expected in zip(all_texts, trained[name].encode_batch(all_texts), hf_ids, strict=True):
        assert ids.tolist() == expected, text[:80]
    assert len(of_family) == len(general)
    for role in ROLES:
        if getattr(general, role) is not None:
            assert getattr(of_family, role) == getattr(general, role), role
    # DebertaTokenizer puts two [SEP] between texts, but DeBERTa has one.
    if (general.sep_token is not None and class_name != "DebertaTokenizer") or class_name == "T5Tokenizer":
        assert of_family("return", "self").input_ids == general("return", "self").input_ids
    if general.mask_token is not None:
        masked = f"return {general.mask_token} self"
        assert of_family(masked).input_ids == general(masked).input_ids


def test_roberta_adds_published_special_tokens(trained, tmp_path):
    """The mask token includes the space before it."""
    trained["RoBERTa"].save(tmp_path)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encode = trained["RoBERTa"].encode
    begin, end, mask = hf_tokenizer.bos_token_id, hf_tokenizer.eos_token_id, hf_tokenizer.mask_token_id
    the, space_self = encode("the").tolist(), encode(" self").tolist()
    pair = hf_tokenizer("the self", "is it").input_ids
    assert pair == [begin, *encode("the self").tolist(), end, end, *encode("is it").tolist(), end]
    assert hf_tokenizer("the <mask> self").input_ids == [begin, *the, mask, *space_self, end]


def write_old_files(name: str, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files of a model's first release, which had no tokenizer.json."""
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
def test_files_of_first_releases_are_read(name, trained, texts, tmp_path):
    write_old_files(name, trained[name], tmp_path)
    loaded = read_tokenizer(tmp_path)
    assert loaded.kind == trained[name].kind
    for text in texts:
        assert loaded.encode(text).tolist() == trained[name].encode(text).tolist()
    if name != "char-bpe":  # GPT has no end-of-text token
        assert loaded.special == trained[name].special


def test_roberta_without_roles_in_config_has_usual_roles(trained, tmp_path):
    trained["RoBERTa"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert load_tokenizer(tmp_path).special == trained["RoBERTa"].special


CHINESE = "北京大学在海淀区。学生们喜欢读书,也喜欢 Python 3.11 语言!㐀 𠀀 豈 ひらがなとカタカナ naïve\n"


@pytest.mark.parametrize("lowercase", [True, False])
def test_chinese_characters_are_words_as_in_bert(lowercase, tmp_path):
    tokenizer = train_tokenizer_on_texts("wordpiece", [CHINESE], vocabulary=400, lowercase=lowercase)
    vocabulary = tokenizer.content["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(vocabulary, key=vocabulary.get)))
    reference = BertTokenizerLegacy(tmp_path / "vocab.txt", do_lower_case=lowercase)
    for text in (CHINESE, "大学Python大3语.言", "喜欢喜", "𠀀㐀a", *CHINESE.split()):
        assert tokenizer.encode(text).tolist() == reference.encode(text, add_special_tokens=False)
    tokens = [tokenizer.library.id_to_token(id_) for id_ in tokenizer.encode("北京大学Python").tolist()]
    assert tokens[:4] == [*"北京大学"]
    # A Chinese character never continues a word, so no ids are wasted on `##` forms.
    assert not {f"##{character}" for character in "北京大学"} & vocabulary.keys()
    assert "##ら" in vocabulary


def test_every_chinese_character_of_unicode_is_a_word():
    """Except 256 rare characters, which the tokenizers library omits."""
    from tokenizers import normalizers

    omitted = range(0x2B820, 0x2B920)
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    is_chinese = transformers.models.bert.tokenization_bert_legacy.BasicTokenizer()._is_chinese_char
    for code in (*range(0xD800), *range(0xE000, 0x30000)):
        expected = is_chinese(code) and code not in omitted
        assert (normalizer.normalize_str(chr(code)) == f" {chr(code)} ") == expected, hex(code)
