"""Unigram: pieces with probabilities (T5, ALBERT). A text is divided into its most likely pieces.

SentencePiece trains, as for T5, because Hugging Face's trainer depends on a hash table with a random seed and gives
different scores each time. Hugging Face encodes, with these pieces and scores. The same function normalizes the text
for both: the normalizer in tokenizer.json.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from megaptm.errors import UserError
from megaptm.tokenizers.kinds.characters import CHARACTER_COVERAGE, LONGEST_LINE, normalize_lines
from megaptm.tokenizers.kinds.request import VocabularyRequest
from megaptm.tokenizers.normalization import expand_precompiled, make_library_normalizer, make_nmt_nfkc

# SentencePiece sums probabilities per thread, so the number of threads affects the result.
SENTENCEPIECE_THREADS = 2


def train_unigram(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train a Unigram vocabulary: pieces, the most likely first."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    assert request.unknown is not None
    # ALBERT's folds, applied before the table.
    quotes = [{"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")]
    folds = [*quotes, *({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase"))] if request.lowercase else []
    table = make_nmt_nfkc()
    normalizer = make_library_normalizer(
        expand_precompiled({"type": "Sequence", "normalizers": [*folds, table]} if folds else table)
    )
    pieces = _train_pieces(normalize_lines(texts, normalizer.normalize_str), request)
    # A special token must not be a piece, even if its name is frequent in the text.
    names = {*request.first, *request.last}
    scored = [*((name, 0.0) for name in request.first), *(piece for piece in pieces if piece[0] not in names)]
    if request.unknown in request.last:
        scored += [(name, 0.0) for name in request.last]
    library = Library(models.Unigram(scored, unk_id=[name for name, _ in scored].index(request.unknown)))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    library.decoder = decoders.Metaspace()
    return library


def _train_pieces(lines: Iterable[str], request: VocabularyRequest) -> list[tuple[str, float]]:
    """Return Unigram pieces and their log probabilities, trained by SentencePiece on normalized lines."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="unigram",
            vocab_size=request.trained_size,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            character_coverage=CHARACTER_COVERAGE,
            max_sentence_length=8 * LONGEST_LINE,
            split_digits=request.digits,
            num_threads=SENTENCEPIECE_THREADS,
            minloglevel=2,
            # Reserves ids for special tokens, under names with a space, which no piece has.
            control_symbols=[f"special {index}" for index in range(1, len(request.first))],
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"SentencePiece cannot train a unigram vocabulary of {request.vocabulary} ids ({len(request.last)} of them "
            f"special tokens at the end) on this text ({reason}): change the vocabulary or give more text."
        ) from None
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())  # type: ignore[attr-defined]  # generated
    return [(piece.piece, piece.score) for piece in proto.pieces[len(request.first) :]]
