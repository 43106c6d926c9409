"""Character-based word vectors, for words in or outside the vocabulary (ELMo)."""

# L layers, S words of a text, D width of a direction

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megaptm.batch import LONGEST_WORD
from megaptm.errors import UserError
from megaptm.inference.loaded_model import LoadedModel
from megaptm.models.every_layer import every_layer
from megaptm.objectives.spelling import TEXT_BEGINS, TEXT_ENDS, spelled

ENDS = {"<begin>": TEXT_BEGINS, "<end>": TEXT_ENDS}


def layers_of_words(loaded: LoadedModel, texts: Sequence[str], *, batch: int = 16) -> list[Tensor]:
    """Return [L + 1, S, 2 D] of each text, float32 on the CPU: character-based word embeddings, twice, then both
    directions of each layer. Each text is processed alone, between begin and end marks, which are not returned."""
    if not loaded.spec.family.reads_characters:
        raise UserError(f"{loaded.spec.name} reads tokens of a table, not words by their characters: let it encode.")
    rows = [_letters(loaded, text, number) for number, text in enumerate(texts)]
    if not rows:
        raise UserError("texts is empty: give at least one.")
    return [one for at in range(0, len(rows), batch) for one in _layers(loaded, rows[at : at + batch])]


def _letters(loaded: LoadedModel, text: str, number: int) -> np.ndarray:
    """Return character ids, int16 [S + 2, C]."""
    words = words_of(loaded, text)
    if not words:
        raise UserError(f"texts[{number}] is empty: a model says nothing of no text.")
    begin, end = spelled(ENDS, ENDS)
    return np.concatenate([begin[None], spelled(words), end[None]])


def words_of(loaded: LoadedModel, text: str) -> list[str]:
    """Return the words of a text as the tokenizer splits it, before the vocabulary lookup."""
    library = loaded.tokenizer.library
    text = library.normalizer.normalize_str(text) if library.normalizer is not None else text
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)] if library.pre_tokenizer else text.split()


def _layers(loaded: LoadedModel, rows: Sequence[np.ndarray]) -> list[Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    characters = torch.zeros(len(rows), int(lengths.max()), LONGEST_WORD, dtype=torch.int16)
    for place, row in enumerate(rows):
        characters[place, : len(row)] = torch.from_numpy(row)
    with torch.no_grad():  # not inference mode: the result may be used to train a classifier
        said = every_layer(loaded.model, characters.to(loaded.device), lengths.to(loaded.device)).float().cpu()
    return [said[:, row, 1 : length - 1] for row, length in enumerate(lengths.tolist())]
