"""Evaluation of word vectors: nearest words, and accuracy on analogies."""

from __future__ import annotations

from pathlib import Path

from megaptm.commands.output import echo, print_json
from megaptm.families.word_vectors.vectors import load_words, read_analogies

SKIPPED_WORDS = 100
"""Number of most frequent words that are not shown by default: their neighbors tell nothing."""


def evaluate_word_vectors(
    run: Path,
    *,
    step: int | None,
    as_json: bool,
    words: tuple[str, ...],
    analogies: Path | None,
) -> None:
    """Evaluate word vectors: print the nearest words of some words, and the accuracy on analogies."""
    vectors = load_words(run, step=step)
    if not words and not analogies:
        words = tuple(vectors.words[SKIPPED_WORDS : SKIPPED_WORDS + 5] or vectors.words[-5:])
    nearest = {word: vectors.nearest(word) for word in words}
    correct, known = vectors.count_solved_analogies(questions := read_analogies(analogies)) if analogies else (0, 0)
    if as_json:
        counts = {"correct": correct, "known": known, "total": len(questions)} if analogies else None
        print_json({"nearest": {word: dict(neighbors) for word, neighbors in nearest.items()}, "analogies": counts})
        return
    for word, neighbors in nearest.items():
        echo(f"{word}: {', '.join(f'{name} {cosine:.2f}' for name, cosine in neighbors)}")
    if analogies:
        share = f" ({correct / known:.1%})" if known else ""
        echo(f"{correct:,} of {known:,} analogies{share}; {len(questions) - known:,} more have words without a vector")
