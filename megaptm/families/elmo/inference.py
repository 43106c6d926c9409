"""Character-based word vectors, for words in or outside the vocabulary (ELMo), as uses of a loaded model."""

# L layers, S words of a text, D width of a direction

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.elmo.every_layer import all_layer_outputs
from megaptm.families.elmo.spec import MAX_WORD_LENGTH, CharacterInput
from megaptm.families.elmo.spelling import TEXT_END, TEXT_START, character_ids
from megaptm.inference.encode import check_encode_options, pool_states
from megaptm.inference.loaded_model import LoadedModel
from megaptm.inference.trained_model import TrainedModel

ENDS = {"<begin>": TEXT_START, "<end>": TEXT_END}


def _layers_of_words(loaded: TrainedModel, texts: Sequence[str], *, batch: int = 16) -> list[Tensor]:
    """Return the outputs of every layer of ELMo for each text, [L + 1, S, 2 D], float32 on the CPU: character-based
    word embeddings, twice, then both directions of each layer. Each text is processed alone, between begin and end
    marks, which are not returned."""
    sequences = [_character_ids(loaded, text, index) for index, text in enumerate(texts)]
    if not sequences:
        raise UserError("texts is empty: give at least one text.")
    starts = range(0, len(sequences), batch)
    return [layers_LSD for start in starts for layers_LSD in _batch_layers(loaded, sequences[start : start + batch])]


def _character_ids(loaded: TrainedModel, text: str, index: int) -> np.ndarray:
    """Return the character ids of the words of a text, int16 [S + 2, C]."""
    words = split_words(loaded, text)
    if not words:
        raise UserError(f"texts[{index}] is empty: remove it, or give a text.")
    begin, end = character_ids(ENDS, ENDS)
    return np.concatenate([begin[None], character_ids(words), end[None]])


def split_words(loaded: TrainedModel, text: str) -> list[str]:
    """Split a text into words for ELMo, as the tokenizer does before the vocabulary lookup."""
    library = loaded.tokenizer.library
    text = library.normalizer.normalize_str(text) if library.normalizer is not None else text
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)] if library.pre_tokenizer else text.split()


def _batch_layers(loaded: TrainedModel, sequences: Sequence[np.ndarray]) -> list[Tensor]:
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    characters = torch.zeros(len(sequences), int(lengths.max()), MAX_WORD_LENGTH, dtype=torch.int16)
    for index, sequence in enumerate(sequences):
        characters[index, : len(sequence)] = torch.from_numpy(sequence)
    with torch.no_grad():  # not inference mode: the result may be used to train a classifier
        layers_LBSD = (
            all_layer_outputs(loaded.model, characters.to(loaded.device), lengths.to(loaded.device)).float().cpu()
        )
    return [layers_LBSD[:, index, 1 : length - 1] for index, length in enumerate(lengths.tolist())]


class CharacterModel(LoadedModel):
    """Trained bidirectional language model that reads characters."""

    models = "bidirectional language models (ELMo)"

    @classmethod
    def fits(cls, model: TrainedModel) -> bool:
        return model.spec.family.find_input(CharacterInput) is not None

    def encode(self, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
        """Return ELMo's vector of each text, as `LoadedModel.encode`, from the mean of all layers, with one vector per
        word and none for begin and end marks."""
        check_encode_options(pool, batch)
        return pool_states([layers_LSD.mean(0) for layers_LSD in self.layers(texts, batch=batch)], pool)

    def layers(self, texts: str | Sequence[str], *, batch: int = 16) -> list[Tensor]:
        """Return the outputs of every layer of ELMo for the words of each text, float32 [layers + 1, words, 2 x width]
        on the CPU.

        The first layer holds character-based word embeddings. `megaptm.families.elmo.every_layer.ScalarMix` is a
        trainable weighted sum of layers.
        """
        return _layers_of_words(self, [texts] if isinstance(texts, str) else texts, batch=batch)


LOADED_MODEL = CharacterModel
