"""A text cut where its sentences begin."""

from itertools import pairwise

from data_pipeline.annotate.sentences import sentence_starts


def split_sentences(text: str, form: str = "prose") -> list[str]:
    """Pieces that put end to end are the text: sentences of prose, lines of code."""
    return [text[start:stop] for start, stop in pairwise([*sentence_starts(text, form).tolist(), len(text)])]
