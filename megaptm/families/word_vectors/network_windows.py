"""Windows of words and their labels, for networks of word vectors. Positions outside the document hold the begin
token."""

# B sequences, S tokens of a sequence, N windows, W words of a window

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families.word_vectors import TAG_DISTANCES, TAG_FILTER, WordSpec
from megaptm.objectives.vocabulary import SpecialTokens

LabeledWindows = tuple[Tensor, Tensor]
"""Windows of words, int64 [N, W], and for each the next word, or a replacement of its middle word: int64 [N]."""


def outside_token(special: SpecialTokens) -> int:
    """Return the token that stands outside a document in a window of words."""
    outside = next((id_ for id_ in (special.begin, special.pad, special.end) if id_ is not None), None)
    if outside is None:
        raise UserError(
            "windows at the border of a document need a begin token, and the tokenizer has none: build the corpus with "
            "tokenizer.kind=words, which has `<s>`."
        )
    return outside


def next_words(batch: dict[str, Tensor], spec: WordSpec, outside: int) -> LabeledWindows:
    """Return NNLM's windows of words and the next words for `causal-lm` sequences."""
    tokens_BS, labels_BS = batch["tokens"], batch["labels"]
    windows_BSW = _windows_around(tokens_BS, _document_ids(batch), spec.window - 1, 0, outside)
    labeled = labels_BS != IGNORED
    return windows_BSW[labeled], labels_BS[labeled]


def ranked_windows(
    batch: dict[str, Tensor], spec: WordSpec, outside: int, dictionary: Tensor, unknown: int
) -> LabeledWindows:
    """Return C&W's windows around words of the dictionary (int64 ids), and another word of it for each, for
    `window-ranking` sequences.

    Words that are not in the dictionary become `unknown`.
    """
    known = torch.isin(batch["tokens"], dictionary)
    tokens_BS = torch.where(known, batch["tokens"], unknown)
    windows_BSW = _windows_around(tokens_BS, _document_ids(batch), spec.size.before, spec.size.after, outside)
    sampled = (batch["replacement_uniforms"][known].double() * len(dictionary)).long()
    return windows_BSW[known], dictionary[sampled]


def tagged_words(batch: dict[str, Tensor], outside: int, dictionary: Tensor, unknown: int) -> LabeledWindows:
    """Return C&W's windows around each word, and its tag, for `window-ranking` sequences."""
    tokens_BS = torch.where(torch.isin(batch["tokens"], dictionary), batch["tokens"], unknown)
    reach = TAG_DISTANCES // 2 + TAG_FILTER // 2
    windows_BSW = _windows_around(tokens_BS, _document_ids(batch), reach, reach, outside)
    return windows_BSW.flatten(0, 1), batch["tags"].flatten()


def _document_ids(batch: dict[str, Tensor]) -> Tensor:
    """Return the document ids of a sequence of words, [B, S]; all 0 if the batch has none."""
    return batch["document_ids"] if "document_ids" in batch else torch.zeros_like(batch["tokens"])


def _windows_around(tokens_BS: Tensor, documents_BS: Tensor, before: int, after: int, outside: int) -> Tensor:
    """Return windows of words around each position, itself included, int64 [B, S, before + 1 + after]."""

    def pad_documents(rows_BS: Tensor, fill: int) -> Tensor:
        sides = [rows_BS.new_full((len(rows_BS), number), fill) for number in (before, after)]
        width = before + 1 + after
        return torch.cat([sides[0], rows_BS, sides[1]], 1).unfold(1, width, 1)

    same_document = pad_documents(documents_BS, -1) == documents_BS[:, :, None]
    return torch.where(same_document, pad_documents(tokens_BS, outside), outside)
