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
from megaptm.inference.loaded_model import LoadedModel

_FUNCTION_WORDS = """
a an and are as at be been but by can could did do does for from had has have he her his i if in into is it its may me
might must my no nor not of on or our shall she should so than that the their them then there these they this those to
too us was we were what when where which who whom will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English function words, which are not replaced, as in the released code."""
PARTS = re.compile(r"\w+|\W+")
"""Words, and the characters between them."""
AT_ONCE = 64
"""Sequences per forward pass."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Settings of augmentation; the defaults are the paper's (section 4.2)."""

    copies: int = 20
    """Number of passes over the sentence; equal results count once."""
    candidates: int = 15
    """Candidates from which the replacement of a word is sampled."""
    probability: float = 0.4
    """Probability of replacing a word."""
    kept: frozenset[str] = FUNCTION_WORDS
    """Words in lower case that are not replaced."""

    def __post_init__(self) -> None:
        for name in ("copies", "candidates"):
            if (number := getattr(self, name)) < 1:
                raise UserError(f"{name} ({number}) must be 1 or more.")
        if not 0 <= self.probability <= 1:
            raise UserError(f"probability ({self.probability:g}) must be from 0 to 1.")


PAPER = Augmentation()


def augment(
    loaded: LoadedModel,
    text: str,
    nearest: Callable[[str, int], Sequence[str]] | None = None,
    *,
    settings: Augmentation = PAPER,
    seed: int = 0,
) -> list[str]:
    """Return sentences that differ from `text` and each other, in the order of their creation: a function of text, seed
    and model.

    `nearest(word, number)`: words with the most similar vectors. Without it, words of several subwords and unknown
    words are not replaced. The masked language model reads the text with a mask, followed by the original text.
    """
    parts = PARTS.findall(text)
    pieces = [loaded.tokenizer.encode(part).tolist() for part in parts]
    changed = [
        at for at, part in enumerate(parts) if part[0].isalnum() and pieces[at] and part.lower() not in settings.kept
    ]
    unknown = loaded.tokenizer.unknown
    whole = [at for at in changed if len(pieces[at]) == 1 and pieces[at] != [unknown]]
    likely = _likely(loaded, pieces, whole, settings.candidates)
    if nearest is not None:
        likely |= {at: [*nearest(parts[at], settings.candidates)] for at in changed if at not in likely}
    candidates = {at: likely[at] for at in changed if at in likely}
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    made = dict.fromkeys(_copy(parts, candidates, settings.probability, rng) for _ in range(settings.copies))
    return [sentence for sentence in made if sentence != text]


def _copy(parts: Sequence[str], candidates: dict[int, list[str]], probability: float, rng: np.random.Generator) -> str:
    found = [*parts]
    for at, likely in candidates.items():
        if likely and rng.random() <= probability:
            found[at] = likely[rng.integers(len(likely))]
    return "".join(found)


def _likely(loaded: LoadedModel, pieces: list[list[int]], places: list[int], number: int) -> dict[int, list[str]]:
    """Return index of a single-token word -> most likely whole words there."""
    special, tokenizer, family = loaded.tokenizer.special, loaded.tokenizer, loaded.spec.family
    if tokenizer.kind != "wordpiece" or "mlm" not in family.heads or special.mask is None:
        raise UserError(
            f"{loaded.folder} is no masked language model on WordPiece, which tells whole words from parts: take a "
            "run of bert, or of one of its kind."
        )
    ids = [id_ for word in pieces for id_ in word]
    begins = np.cumsum([0, *map(len, pieces)])
    length = 2 * len(ids) + 3
    if loaded.spec.longest is not None and length > loaded.spec.longest:
        raise UserError(
            f"the text has {len(ids)} tokens, and is read twice: {length} are more than the {loaded.spec.longest} that "
            "the model reads; cut it up."
        )
    # No punctuation, no special tokens, and no continuation subwords, which start with ##.
    whole = [tokenizer.name(id_).isalnum() for id_ in range(tokenizer.vocabulary)]
    rows = torch.tensor([special.cls, *ids, special.sep, *ids, special.sep]).repeat(len(places), 1)
    at = torch.tensor([1 + int(begins[place]) for place in places], dtype=torch.long)
    rows.scatter_(1, at[:, None], special.mask)
    segments = (torch.arange(length) > len(ids) + 1).long().clamp(max=max(0, family.segments - 1))
    found: dict[int, list[str]] = {}
    for start in range(0, len(places), AT_ONCE):
        tokens, asked = rows[start : start + AT_ONCE], at[start : start + AT_ONCE]
        batch = {"tokens": tokens, "segments": segments.expand_as(tokens)}
        with torch.inference_mode():
            logits = loaded.model.logits({name: field.to(loaded.device) for name, field in batch.items()})["mlm"]
        logits_WV = logits[torch.arange(len(tokens)), asked, : tokenizer.vocabulary].float().cpu()
        logits_WV[:, ~torch.tensor(whole)] = -torch.inf
        best_WK = logits_WV.topk(min(number, sum(whole))).indices
        for place, best in zip(places[start : start + AT_ONCE], best_WK.tolist(), strict=True):
            found[place] = [tokenizer.name(id_) for id_ in best]
    return found
