"""Tokenizers by script: ids, round trip and unknown tokens of each kind, in five forms of the text.

    python benchmarks/scripts.py --page docs/tokenizer-scripts.md

Each tokenizer is trained on a few sentences in 13 scripts, all composed (NFC). Then it encodes each sentence composed,
decomposed, in the two compatibility forms, and in upper case. megaptm's ids are compared with those of
`AutoTokenizer` on the saved folder, and with a reference:

- `unigram`, `bpe` and folders with a SentencePiece model: SentencePiece, after the folds of the authors' Python code
  (ALBERT, XLNet);
- lower-case `wordpiece` and `words`: BERT's Python code;
- others: the family's class in transformers.

| part of a cell | meaning |
|---|---|
| `=`, `≠` | all ids are equal, or not |
| `text` | decoding gives the same text |
| `folded` | decoding gives the normalized text, apart from white space |
| `lost` | neither |
| % | share of unknown tokens |

Two cells differ from BERT's Python code, which lower-cases a final sigma as ς; the tokenizers library, and therefore
every BERT in transformers, lower-cases it as σ. Only `unigram` composes decomposed text. A vocabulary trained on
composed text does not contain decomposed letters, here as in published tokenizers.
"""

# ruff: noqa: RUF001

from __future__ import annotations

import io
import json
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from common.options import Options
from sentencepiece import sentencepiece_model_pb2
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, BertTokenizerLegacy

from megaptm.hub.tokenizer import read_tokenizer
from megaptm.tokenizers import Tokenizer, train_tokenizer_on_texts

SCRIPTS = {
    "Latin": "All human beings are born free. A naïve café, ﬁne x² ½ Ⅷ, 3.14 and 2,024, "
    "don't ``quote'' Ærøskøbing Straße.",
    "Latin with stacked accents": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm. "
    "Gbogbo ènìyàn ni a bí ní òmìnira; ẹ̀tọ́ ọmọnìyàn. Ǖǘǚ ṩ ḗ.",
    "Greek": "Ὅλοι οἱ ἄνθρωποι γεννιοῦνται ἐλεύθεροι. "
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι, ο Οδυσσέας, ᾗ ΐ ΰ.",
    "Cyrillic": "Все люди рождаются свободными и равными в своём достоинстве; й ё. "
    "Всі люди народжуються вільними у своїй гідності.",
    "Arabic": "يُولَدُ جَمِيعُ النَّاسِ أَحْرَارًا مُتَسَاوِينَ فِي الكَرَامَةِ وَالحُقُوقِ. آمن ﻻ ٣٤",
    "Hebrew": "כָּל בְּנֵי הָאָדָם נוֹלְדוּ בְּנֵי חוֹרִין וְשָׁוִים בְּעֶרְכָּם וּבִזְכֻיּוֹתֵיהֶם.",
    "Devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। क़ ख़ ज़ फ़",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ น้ำ",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 값 ㄱㄴ",
    "Japanese": "すべての人間は、生まれながらにして自由であり、ガラスとパン。ｶﾞﾗｽ ㍍",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。他們賦有理性和良心。豈 ｆｕｌｌ",
    "Emoji": "👩‍👩‍👧‍👦 👍🏽 🇫🇷 ❤️‍🔥 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☺️ ok",
    "White space": "one  two\tthree\u00a0four\u3000five\u2003six\u200bseven\ufeff eight\u00ad.",
}
FORMS: dict[str, Callable[[str], str]] = {
    **{form: lambda text, form=form: unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "upper case": str.upper,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unigram (T5)": ("unigram", {"sentinels": 3}),
    "unigram, lowercase (ALBERT)": ("unigram", {"specials": "albert", "lowercase": True}),
    "unigram, deberta": ("unigram", {"specials": "deberta"}),
    "unigram, digits": ("unigram", {"digits": True, "sentinels": 3}),
    "bpe (Llama)": ("bpe", {}),
    "bpe, digits (PaLM)": ("bpe", {"digits": True}),
    "byte-bpe (GPT-2)": ("byte-bpe", {}),
    "byte-bpe, roberta": ("byte-bpe", {"specials": "roberta"}),
    "byte-bpe, deberta": ("byte-bpe", {"specials": "deberta"}),
    "char-bpe (GPT)": ("char-bpe", {}),
    "char-bpe, cased": ("char-bpe", {"lowercase": False}),
    "wordpiece (BERT)": ("wordpiece", {}),
    "wordpiece, cased": ("wordpiece", {"lowercase": False}),
    "words": ("words", {}),
    "words, lowercase": ("words", {"specials": "bert", "lowercase": True}),
}
IMPORTED: dict[str, dict[str, Any]] = {
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "mt5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "albert": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"},
    "xlnet": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"},
    "deberta-v2": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    | {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}
"""Family whose published folders have a SentencePiece model -> training options for its special tokens."""

Encode = Callable[[str], list[str]]
"""Function that returns the pieces of a text. Unknown pieces have their name in megaptm's tokenizer."""


@dataclass
class Case:
    """A tokenizer, and the reference for its pieces."""

    name: str
    tokenizer: Tokenizer
    reference: Encode
    folder: Path


def fold_as_xlnet(text: str) -> str:
    """Fold a text as XLNet's Python code does before SentencePiece."""
    text = unicodedata.normalize("NFKD", text.replace("``", '"').replace("''", '"'))
    return "".join(character for character in text if not unicodedata.combining(character))


def fold_as_albert(text: str) -> str:
    """Fold a text as ALBERT's Python code does before SentencePiece."""
    return fold_as_xlnet(text).lower()


FOLDS = {"albert": fold_as_albert, "xlnet": fold_as_xlnet}


def encode_with(model: sentencepiece.SentencePieceProcessor, unknown: str, fold: Callable[[str], str]) -> Encode:
    def encode(text: str) -> list[str]:
        ids = model.encode(fold(text))
        return [unknown if id_ == model.unk_id() else model.id_to_piece(id_) for id_ in ids]

    return encode


def make_sentencepiece(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    """Return SentencePiece with the pieces of megaptm's tokenizer, and with SentencePiece's normalization."""
    model, content = io.BytesIO(), tokenizer.content["model"]
    unigram = content["type"] == "Unigram"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"]),
        model_writer=model,
        model_type="unigram" if unigram else "bpe",
        vocab_size=20 if unigram else 280,
        hard_vocab_limit=False,
        byte_fallback=not unigram,
        normalization_rule_name="nmt_nfkc" if unigram else "identity",
        remove_extra_whitespaces=unigram,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    if unigram:
        scored = [tuple(entry) for entry in content["vocab"]]
    else:
        ranks = {"".join(merge): -float(rank) for rank, merge in enumerate(content["merges"])}
        ordered = sorted(content["vocab"], key=content["vocab"].__getitem__)
        scored = [(piece, ranks.get(piece, -float(len(ranks)))) for piece in ordered]
    special = {token["content"] for token in tokenizer.content["added_tokens"]}
    unknown = tokenizer.name(tokenizer.unknown)
    del proto.pieces[:]
    for piece, score in scored:
        kind = 2 if piece == unknown else 3 if piece in special else 6 if re.fullmatch("<0x..>", piece) else 1
        proto.pieces.add(piece=piece, score=score, type=kind)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def make_reference(tokenizer: Tokenizer, folder: Path, *, lowercase: bool) -> Encode:
    kind = tokenizer.kind
    if kind in ("unigram", "bpe"):
        fold = fold_as_albert if lowercase else str
        return encode_with(make_sentencepiece(tokenizer), tokenizer.name(tokenizer.unknown), fold)
    vocabulary = tokenizer.content["model"]["vocab"]
    if kind in ("wordpiece", "words") and not lowercase:
        # The Python code in transformers composes text first, unlike Google's code and the class of transformers.
        hf_tokenizer = transformers.BertTokenizer(
            vocab=vocabulary, unk_token=tokenizer.name(tokenizer.unknown), do_lower_case=False
        )
        steps, unknown = hf_tokenizer.backend_tokenizer, tokenizer.name(tokenizer.unknown)

        def split_words(text: str) -> list[str]:
            split = steps.pre_tokenizer.pre_tokenize_str(steps.normalizer.normalize_str(text))
            return [word if word in vocabulary else unknown for word, _ in split]

        return split_words if kind == "words" else lambda text: hf_tokenizer.tokenize(text)
    if kind == "wordpiece":
        file = folder / "vocab.txt"
        file.write_text("".join(f"{word}\n" for word in sorted(vocabulary, key=vocabulary.__getitem__)))
        legacy = BertTokenizerLegacy(file, do_lower_case=True)
        return lambda text: legacy.tokenize(text)
    if kind == "words":
        basic, unknown = BasicTokenizer(do_lower_case=True), tokenizer.name(tokenizer.unknown)
        return lambda text: [word if word in vocabulary else unknown for word in basic.tokenize(text)]
    name = {"byte-bpe": "GPT2Tokenizer", "char-bpe": "OpenAIGPTTokenizer"}[kind]
    if kind == "char-bpe" and not lowercase:
        name = "PreTrainedTokenizerFast"
    hf_tokenizer = getattr(transformers, name).from_pretrained(folder)
    return lambda text: hf_tokenizer.convert_ids_to_tokens(hf_tokenizer(text, add_special_tokens=False).input_ids)


def make_cases(folder: Path, names: list[str]) -> Iterator[Case]:
    texts = [unicodedata.normalize("NFC", text) for text in SCRIPTS.values()]
    for name, (kind, options) in VARIANTS.items():
        if names and name not in names:
            continue
        tokenizer = train_tokenizer_on_texts(kind, texts * 2, vocabulary=4000, **options)
        saved = folder / re.sub(r"\W+", "-", name)
        tokenizer.save(saved)
        lowercase = options.get("lowercase", kind in ("wordpiece", "char-bpe"))
        yield Case(name, tokenizer, make_reference(tokenizer, saved, lowercase=lowercase), saved)
    for family, options in IMPORTED.items():
        name = f"imported {family}"
        if names and name not in names:
            continue
        source, saved = folder / f"from-{family}", folder / family
        source.mkdir()
        file = source / ("spm.model" if family == "deberta-v2" else "spiece.model")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*texts, *map(fold_as_albert, texts)]),
            model_prefix=str(file.with_suffix("")),
            vocab_size=1200,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
            **options,
        )
        (source / "config.json").write_text(json.dumps({"model_type": family}))
        tokenizer = read_tokenizer(source)
        # The general class, as in an export: the class of a family would make its own normalizer.
        Tokenizer(tokenizer.content, {**tokenizer.config, "tokenizer_class": "PreTrainedTokenizerFast"}).save(saved)
        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        unknown = tokenizer.name(tokenizer.unknown)
        yield Case(name, tokenizer, encode_with(model, unknown, FOLDS.get(family, str)), saved)


def normalize(tokenizer: Tokenizer, text: str) -> str:
    normalizer = tokenizer.library.normalizer
    return text if normalizer is None else normalizer.normalize_str(text)


def compare_text(case: Case, general: Any, text: str) -> tuple[bool, str]:
    """Return whether the ids are equal, and the cell of the table."""
    ids = case.tokenizer.encode(text).tolist()
    pieces = [case.tokenizer.name(id_) for id_ in ids]
    equal = pieces == case.reference(text) and ids == general(text, add_special_tokens=False).input_ids
    decoded = case.tokenizer.decode(ids)
    is_folded = "".join(decoded.split()) == "".join(normalize(case.tokenizer, text).split())
    round_trip = "text" if decoded == text else "folded" if is_folded else "lost"
    unknown = ids.count(case.tokenizer.unknown) / max(1, len(ids)) if case.tokenizer.unknown is not None else 0.0
    return equal, f"{'=' if equal else '≠'} {round_trip} {unknown:.1%}"


def main() -> None:
    arguments = Options(__doc__)
    arguments.add(
        "--names", default=[], short=["unigram (T5)", "wordpiece (BERT)"], nargs="+", type=str, help="default: all"
    )
    arguments.add("--page", default="", short="", help="Markdown file to which the tables are written")
    options = arguments.read()
    rows: dict[str, list[str]] = {script: [] for script in SCRIPTS}
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in make_cases(Path(folder), options.names):
            general = transformers.AutoTokenizer.from_pretrained(case.folder)
            for script, text in SCRIPTS.items():
                cells = [compare_text(case, general, form(text)) for form in FORMS.values()]
                different += sum(not equal for equal, _ in cells)
                rows[script].append(f"| {case.name} | {' | '.join(content for _, content in cells)} |")
    head = f"| tokenizer | {' | '.join(FORMS)} |\n|---|{'---|' * len(FORMS)}"
    tables = "\n\n".join(f"## {script}\n\n{head}\n" + "\n".join(lines) for script, lines in rows.items())
    print(tables)
    if options.page:
        title, command, *explanation = (__doc__ or "").strip().split("\n\n")
        page = [f"# {title.rstrip('.')}", f"Printed by `{command.strip()}`.", *explanation, tables]
        Path(options.page).write_text("\n\n".join(page) + "\n", encoding="utf-8")
    print(f"METRIC scripts_cells_that_differ {different} cells goal <=2")


if __name__ == "__main__":
    main()
