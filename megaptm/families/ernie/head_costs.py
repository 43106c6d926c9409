"""Costs of the heads of ERNIE."""

from __future__ import annotations

from megaptm.models.head_costs import RowClassHeadCosts, TokenClassHeadCosts


class SentenceDistanceHeadCosts(RowClassHeadCosts):
    """Costs of ERNIE's sentence distance head: neighbors, same document, or different documents (ERNIE 2.0,
    arXiv:1907.12412, 4.2.2)."""

    name = "sentence-distance"
    label_field = "sentence_distance"
    classes = 3


class DialogueHeadCosts(RowClassHeadCosts):
    """Costs of ERNIE's dialogue head: whether all turns are of one dialogue (ERNIE 1.0, arXiv:1904.09223, 3.3)."""

    name = "dialogue"
    label_field = "dialogue"


class DiscourseHeadCosts(RowClassHeadCosts):
    """Costs of ERNIE's discourse head: which of 174 connectives joined two texts, by labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3; Discovery, arXiv:1903.11850)."""

    name = "discourse"
    label_field = "discourse"
    classes = 174


class RelevanceHeadCosts(RowClassHeadCosts):
    """Costs of ERNIE's relevance head: whether a title was clicked for a query, only shown, or neither, by labels of
    a corpus (ERNIE 2.0, arXiv:1907.12412, 4.2.3)."""

    name = "relevance"
    label_field = "relevance"
    classes = 3


class SentenceReorderingHeadCosts(RowClassHeadCosts):
    """Costs of ERNIE's sentence reordering head: order of up to three segments of a document (ERNIE 2.0,
    arXiv:1907.12412, 4.2.2)."""

    name = "sentence-reordering"
    label_field = "sentence_reordering"
    classes = 9
    pooler_published = True


class CapitalizationHeadCosts(TokenClassHeadCosts):
    """Costs of ERNIE's capitalization head: whether a token's word is capitalized (ERNIE 2.0, arXiv:1907.12412,
    4.2.1)."""

    name = "capitalization"
    label_field = "capitalization"


class TokenDocumentHeadCosts(TokenClassHeadCosts):
    """Costs of ERNIE's token-document head: whether a token also occurs in the rest of its document (ERNIE 2.0,
    arXiv:1907.12412, 4.2.1)."""

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
