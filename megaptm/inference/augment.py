"""Sentences that are made of one, for a student to learn a task from: some words give way to what a masked language
model holds likely in their place, or, where they are several pieces, to words whose vectors are near (TinyBERT,
arXiv:1909.10351, algorithm 1)."""

# W words of a text that are asked about, S tokens of a row, V vocabulary

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
"""Words of English that say how others belong together: as the released code does, they are left as they are."""
PARTS = re.compile(r"\w+|\W+")
"""Words, and what stands between them."""
AT_ONCE = 64
"""Rows."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How many sentences are made, and how; the defaults are the paper's (section 4.2)."""

    copies: int = 20
    """Times that the sentence is gone through; copies that are alike are one."""
    candidates: int = 15
    """Words among which one is drawn in the place of each."""
    probability: float = 0.4
    """Of each word, that one is drawn."""
    kept: frozenset[str] = FUNCTION_WORDS
    """Words, in lower case, that are left as they are."""

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
    """Sentences that differ from `text` and from each other, in the order in which they were made: a function of the
    text, the seed and the model.

    `nearest`: the words that are nearest to one, so many of them; without it words of several pieces, or of none, are
    left as they are. The masked language model reads the text with a mask, and behind it the text as it is.
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
    """Place of a word of one piece -> the likeliest whole words there."""
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
    # No marks, no special tokens, and no pieces that go on with a word, which begin with ##.
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
