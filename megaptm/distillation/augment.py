"""Data augmentation for distillation (TinyBERT, arXiv:1909.10351, algorithm 1). Words of a sentence are replaced by
likely words of a masked language model. Words of several subwords are replaced by words with similar vectors."""

# W masked words of a text, S tokens of a sequence, V vocabulary

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megaptm.errors import UserError
from megaptm.inference.trained_model import TrainedModel

_FUNCTION_WORDS = """
a an and are as at be been but by can could did do does for from had has have he her his i if in into is it its may me
might must my no nor not of on or our shall she should so than that the their them then there these they this those to
too us was we were what when where which who whom will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English function words, which are not replaced, as in the released code."""
PARTS = re.compile(r"\w+|\W+")
"""Pattern of words, and of the characters between them."""
BATCH = 64
"""Number of sequences per forward pass of the masked language model that augments text."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Settings of data augmentation; the defaults are the paper's (section 4.2)."""

    copies: int = 20
    """Number of augmented copies of a sentence, before equal ones are removed."""
    candidates: int = 15
    """Number of candidates from which the replacement of a word is sampled."""
    probability: float = 0.4
    """Probability of replacing a word of a sentence."""
    retained: frozenset[str] = FUNCTION_WORDS
    """Words in lower case that are not replaced."""

    def __post_init__(self) -> None:
        for name in ("copies", "candidates"):
            if (number := getattr(self, name)) < 1:
                raise UserError(f"{name} ({number}) must be 1 or more.")
        if not 0 <= self.probability <= 1:
            raise UserError(f"probability ({self.probability:g}) must be from 0 to 1.")


PAPER = Augmentation()


def augment(
    loaded: TrainedModel,
    text: str,
    nearest: Callable[[str, int], Sequence[str]] | None = None,
    *,
    settings: Augmentation = PAPER,
    seed: int = 0,
) -> list[str]:
    """Augment a sentence: return sentences that differ from `text` and each other, in the order of their creation, a
    function of text, seed and model.

    `nearest(word, number)`: words with the most similar vectors. Without it, words of several subwords and unknown
    words are not replaced. The masked language model reads the text with a mask, followed by the original text.
    """
    parts = PARTS.findall(text)
    pieces = [loaded.tokenizer.encode(part).tolist() for part in parts]
    replaceable = [
        index
        for index, part in enumerate(parts)
        if part[0].isalnum() and pieces[index] and part.lower() not in settings.retained
    ]
    unknown = loaded.tokenizer.unknown
    single_token = [index for index in replaceable if len(pieces[index]) == 1 and pieces[index] != [unknown]]
    likely = _predict_words(loaded, pieces, single_token, settings.candidates)
    if nearest is not None:
        likely |= {index: [*nearest(parts[index], settings.candidates)] for index in replaceable if index not in likely}
    candidates = {index: likely[index] for index in replaceable if index in likely}
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    copies = dict.fromkeys(_replace_words(parts, candidates, settings.probability, rng) for _ in range(settings.copies))
    return [sentence for sentence in copies if sentence != text]


def _replace_words(
    parts: Sequence[str], candidates: dict[int, list[str]], probability: float, rng: np.random.Generator
) -> str:
    replaced = [*parts]
    for index, words in candidates.items():
        if words and rng.random() <= probability:
            replaced[index] = words[rng.integers(len(words))]
    return "".join(replaced)


def _predict_words(
    loaded: TrainedModel, pieces: list[list[int]], indices: list[int], number: int
) -> dict[int, list[str]]:
    """Predict replacements: return index of a single-token word -> most likely whole words there."""
    special, tokenizer, family = loaded.tokenizer.special, loaded.tokenizer, loaded.spec.family
    if tokenizer.kind != "wordpiece" or "mlm" not in family.heads or special.mask is None:
        raise UserError(
            f"{loaded.folder} is not a masked language model with a WordPiece tokenizer, which marks parts of words: "
            "use a run of bert or a similar family."
        )
    ids = [id_ for word in pieces for id_ in word]
    starts = np.cumsum([0, *map(len, pieces)])
    length = 2 * len(ids) + 3
    if loaded.spec.max_text_length is not None and length > loaded.spec.max_text_length:
        raise UserError(
            f"the text has {len(ids)} tokens. The model reads it twice, as a sequence of {length} tokens, but has only "
            f"{loaded.spec.max_text_length} positions: split the text."
        )
    # No punctuation, no special tokens, and no continuation subwords, which start with ##.
    is_word = [tokenizer.name(id_).isalnum() for id_ in range(tokenizer.vocabulary)]
    rows = torch.tensor([special.cls, *ids, special.sep, *ids, special.sep]).repeat(len(indices), 1)
    masked = torch.tensor([1 + int(starts[index]) for index in indices], dtype=torch.long)
    rows.scatter_(1, masked[:, None], special.mask)
    segments = (torch.arange(length) > len(ids) + 1).long().clamp(max=max(0, family.segments - 1))
    predictions: dict[int, list[str]] = {}
    for start in range(0, len(indices), BATCH):
        tokens, masked_W = rows[start : start + BATCH], masked[start : start + BATCH]
        batch = {"tokens": tokens, "segments": segments.expand_as(tokens)}
        with torch.inference_mode():
            logits = loaded.model.logits({name: field.to(loaded.device) for name, field in batch.items()})["mlm"]
        logits_WV = logits[torch.arange(len(tokens)), masked_W, : tokenizer.vocabulary].float().cpu()
        logits_WV[:, ~torch.tensor(is_word)] = -torch.inf
        best_WK = logits_WV.topk(min(number, sum(is_word))).indices
        for index, best in zip(indices[start : start + BATCH], best_WK.tolist(), strict=True):
            predictions[index] = [tokenizer.name(id_) for id_ in best]
    return predictions
