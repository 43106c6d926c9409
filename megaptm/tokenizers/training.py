"""Learn a vocabulary from text: BPE (Llama), byte-level BPE (GPT-2), WordPiece (BERT), Unigram (T5).

The same texts give the same vocabulary, ids included, on any machine and number of threads: a corpus built twice must
be the same corpus.
"""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from megaptm.errors import UserError
from megaptm.tokenizers.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BPE_SPECIALS = ("<unk>", "<s>", "</s>")
UNIGRAM_SPECIALS = ("<pad>", "</s>", "<unk>")

# Characters rarer than this share of the text do not get ids of their own (SentencePiece's default).
CHARACTER_COVERAGE = 0.9995
# SentencePiece sums probabilities per thread, so their number is part of the result.
SENTENCEPIECE_THREADS = 2
# A longer line is cut: it would cost quadratic time and teaches nothing about words.
LONGEST_LINE = 10_000


def train(
    kind: str, texts: Iterable[str], *, vocabulary: int, lowercase: bool = True, sentinels: int = 100
) -> Tokenizer:
    """A tokenizer with at most `vocabulary` ids, special ones included; fewer where the text has no more to give.

    `lowercase` is WordPiece's (BERT uncased), `sentinels` Unigram's (T5 has 100).
    """
    if kind not in KINDS:
        raise UserError(f"tokenizer kind `{kind}` is not known: use one of {', '.join(KINDS)}.")
    texts = iter(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise UserError("there is no text to train a tokenizer on: give a source with at least one non-empty document.")
    texts = itertools.chain([first], texts)
    if kind == "bpe":
        return _train_bpe(texts, vocabulary)
    if kind == "byte-bpe":
        return _train_byte_bpe(texts, vocabulary)
    if kind == "wordpiece":
        return _train_wordpiece(texts, vocabulary, lowercase)
    return _train_unigram(texts, vocabulary, sentinels)


def _train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Llama's: unknown, begin, end, 256 bytes for what has no id of its own, characters, then merges.

    A text begins with a space that is not there, so that a word is the same token at the beginning and within.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    # Lines, as SentencePiece does: the end of a line is a byte, never part of a word.
    lines = list(_lines(texts, lambda line: line))
    first = [*BPE_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = ["▁", *_alphabet(lines)]
    _require(vocabulary, len(first) + len(alphabet), f"3 special tokens, 256 bytes and {len(alphabet)} characters")
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    library.train_from_iterator(lines, trainer)
    library = _without_added_bytes(library)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # No `<s>` around a text, as Llama's would put there: no objective here shows a model one.
    library.add_special_tokens(list(BPE_SPECIALS))
    return _finish(library, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _without_added_bytes(library: Any) -> Any:
    """The trainer marks what it was told first as special; bytes are tokens like others."""
    from tokenizers import Tokenizer as Library

    return Library.from_str(json.dumps({**json.loads(library.to_str()), "added_tokens": []}))


def _train_byte_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """GPT-2's: 256 bytes, then merges, then the end of text."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    _require(vocabulary, 257, "256 bytes and the end of text")
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocabulary - 1, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens([END_OF_TEXT])
    return _finish(library, eos_token=END_OF_TEXT)


def _train_wordpiece(texts: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """BERT's: five special tokens, characters, their `##` forms, then what words are made of."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    texts = [normalizer.normalize_str(text) for text in texts]
    alphabet = _alphabet(texts)
    # The trainer numbers `##` characters in the order of a randomly seeded hash table, and breaks ties by number. Told
    # every character beforehand, it has nothing left to number.
    first = [*WORDPIECE_SPECIALS, *alphabet, *(f"##{character}" for character in alphabet)]
    _require(vocabulary, len(first), f"5 special tokens and two forms of the {len(alphabet)} characters of this text")
    teacher = Library(models.WordPiece(unk_token="[UNK]"))
    teacher.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    teacher.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=vocabulary, special_tokens=first, limit_alphabet=len(alphabet), show_progress=False
        ),
    )
    library = Library(models.WordPiece(teacher.get_vocab(), unk_token="[UNK]"))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(list(WORDPIECE_SPECIALS))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    # Else transformers would drop the segments.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return _finish(library, **{f"{role}_token": token for role, token in roles.items()}, model_input_names=inputs)


def _train_unigram(texts: Iterable[str], vocabulary: int, sentinels: int) -> Tokenizer:
    """T5's: pad, end, unknown, pieces, then sentinels with the first one last.

    SentencePiece trains (as for T5); Hugging Face's trainer depends on a randomly seeded hash table and gives other
    scores each time. Hugging Face encodes, with these pieces and scores.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UserError("training a unigram tokenizer needs SentencePiece: `pip install megaptm[corpus]`.") from None
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library

    normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, normalizer.normalize_str),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary - sentinels,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            character_coverage=CHARACTER_COVERAGE,
            max_sentence_length=8 * LONGEST_LINE,
            num_threads=SENTENCEPIECE_THREADS,
            minloglevel=2,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
        )
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise UserError(
            f"a unigram vocabulary of {vocabulary} (with {sentinels} sentinels) cannot be learnt from this text "
            f"({why}): change the vocabulary or give more text."
        ) from None
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    scored = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.get_piece_size())]
    library = Library(models.Unigram(scored, unk_id=UNIGRAM_SPECIALS.index("<unk>")))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", UNIGRAM_SPECIALS.index("</s>"))]
    )
    library.add_special_tokens([*UNIGRAM_SPECIALS, *(f"<extra_id_{i}>" for i in reversed(range(sentinels)))])
    return _finish(library, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


KINDS: tuple[str, ...] = ("bpe", "byte-bpe", "wordpiece", "unigram")


def _alphabet(texts: list[str]) -> list[str]:
    """The characters that make up nearly all of the text, in code order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    counts = Counter({character: n for character, n in counts.items() if not character.isspace()})
    rest = sum(counts.values()) * CHARACTER_COVERAGE
    kept = []
    for character, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if rest <= 0:
            break
        kept.append(character)
        rest -= n
    return sorted(kept)


def _lines(texts: Iterable[str], normalize: Callable[[str], str]) -> Iterable[str]:
    for text in texts:
        for line in text.splitlines():
            for start in range(0, len(line), LONGEST_LINE):
                if piece := normalize(line[start : start + LONGEST_LINE]):
                    yield piece


def _require(vocabulary: int, least: int, what: str) -> None:
    if vocabulary < least:
        raise UserError(f"vocabulary ({vocabulary}) has no room for {what}: ask for more than {least}.")


def _finish(library: Any, **config: Any) -> Tokenizer:
    # transformers' general class reads tokenizer.json as it stands; the classes of one family rebuild parts of it.
    return Tokenizer(
        json.loads(library.to_str()),
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config},
    )
