"""Options of tokenizer_config.json: contradictions with tokenizer.json are named, and chat templates are kept."""

import json

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from megaptm.errors import UserError
from megaptm.hub.tokenizer import export_tokenizer, find_contradicted_text, read_tokenizer
from megaptm.objectives import OBJECTIVES
from megaptm.tokenizers import load_tokenizer
from tests.models.tiny import tiny_spec

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = {word: id_ for id_, word in enumerate([*SPECIAL, "the", "The", "cafe", "Café", "中", "国", "中国", "a", "b"])}
END = "<|endoftext|>"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_folder(folder, library, kind, **options):
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def write_bert(folder, *, lowercase, **options):
    library = Tokenizer(models.WordPiece(WORDS, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(SPECIAL)
    return write_folder(folder, library, "bert", tokenizer_class="BertTokenizer", **options)


def write_gpt2(folder, *, prefix, **options):
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    library = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([END])
    return write_folder(folder, library, "gpt2", tokenizer_class="GPT2Tokenizer", eos_token=END, **options)


@pytest.mark.parametrize(
    ("lowercase", "options", "text"),
    [
        (True, {"do_lower_case": True}, None),
        (False, {"do_lower_case": False}, None),
        (True, {"do_lower_case": False}, "Café The"),
        (False, {"do_lower_case": True}, "Café The"),
        (False, {"do_lower_case": False, "tokenize_chinese_chars": False}, "中国"),
    ],
)
def test_contradicting_options_of_bert(lowercase, options, text, tmp_path):
    """transformers' issue 10650 and others: the file that is followed depends on the class and its version."""
    folder = write_bert(tmp_path, lowercase=lowercase, **options)
    assert find_contradicted_text(folder, read_tokenizer(folder)) == text


@pytest.mark.parametrize(("prefix", "text"), [(False, None), (True, "Café The")])
def test_contradicting_prefix_of_gpt2(prefix, text, tmp_path):
    folder = write_gpt2(tmp_path, prefix=prefix, add_prefix_space=False)
    assert find_contradicted_text(folder, read_tokenizer(folder)) == text


@pytest.mark.parametrize("separate", [True, False])
def test_chat_template_is_exported(separate, tmp_path):
    """marin's issue 7406: an export without the template cannot be used for conversations."""
    folder = write_gpt2(tmp_path, prefix=False, **({} if separate else {"chat_template": TEMPLATE}))
    if separate:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    exported = export_tokenizer(
        read_tokenizer(folder), tiny_spec("gpt2"), objective=OBJECTIVES["causal-lm"], sequence=8
    )
    exported.save(tmp_path / "exported")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert loaded.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"


def test_chat_template_that_links_to_a_private_file_is_refused(tmp_path):
    folder = write_gpt2(tmp_path, prefix=False)
    (tmp_path / "secret").write_text("private")
    (folder / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"chat_template\.jinja is a link to .*secret: replace it by a copy\."):
        load_tokenizer(folder)
