"""A text split at its sentence starts."""

from itertools import pairwise

from data_pipeline.annotate.sentences import sentence_starts


def split_sentences(text: str, form: str = "prose") -> list[str]:
    """Pieces whose concatenation is the text: sentences of prose, lines of code."""
    return [text[start:stop] for start, stop in pairwise([*sentence_starts(text, form).tolist(), len(text)])]
