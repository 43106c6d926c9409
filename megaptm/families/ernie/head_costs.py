"""Costs of the heads of ERNIE."""

from __future__ import annotations

from megaptm.models.head_costs import RowClassHeadCosts, TokenClassHeadCosts


class SentenceDistanceHeadCosts(RowClassHeadCosts):
    """Sentence distance: neighbors, same document, or different documents (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-distance"
    label_field = "sentence_distance"
    classes = 3


class DialogueHeadCosts(RowClassHeadCosts):
    """Dialogue language model: whether all turns are of one dialogue (ERNIE 1.0, arXiv:1904.09223, 3.3)."""

    name = "dialogue"
    label_field = "dialogue"


class DiscourseHeadCosts(RowClassHeadCosts):
    """Discourse relation: which of 174 connectives joined two texts, by labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3; Discovery, arXiv:1903.11850)."""

    name = "discourse"
    label_field = "discourse"
    classes = 174


class RelevanceHeadCosts(RowClassHeadCosts):
    """IR relevance: whether a title was clicked for a query, only shown, or neither, by labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3)."""

    name = "relevance"
    label_field = "relevance"
    classes = 3


class SentenceReorderingHeadCosts(RowClassHeadCosts):
    """Sentence reordering: order of up to three segments of a document (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-reordering"
    label_field = "sentence_reordering"
    classes = 9
    pooler_published = True


class CapitalizationHeadCosts(TokenClassHeadCosts):
    """Capitalization prediction: whether a token's word is capitalized (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "capitalization"
    label_field = "capitalization"


class TokenDocumentHeadCosts(TokenClassHeadCosts):
    """Token-document relation: whether a token also occurs in the rest of its document (ERNIE 2.0, arXiv:1907.12412,
    4.2.1)."""

    name = "token-document"
    label_field = "token_document"


HEADS = (
    SentenceDistanceHeadCosts,
    DialogueHeadCosts,
    DiscourseHeadCosts,
    RelevanceHeadCosts,
    SentenceReorderingHeadCosts,
    CapitalizationHeadCosts,
    TokenDocumentHeadCosts,
)
