"""Report of a build as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.corpus.composition import TextSize
from data_pipeline.report import CorpusReport, sort_by_tokens
from megaptm.html import escape, full_page, html_bars, html_table, html_tiles, titled_bars

PAGE = "report.html"
LARGEST = 5
"""Number of largest documents listed on the report page."""


def write_corpus_page(report: CorpusReport, folder: Path) -> None:
    """Write the report page beside the corpus."""
    (folder / PAGE).write_text(corpus_page(report), encoding="utf-8")


def corpus_page(report: CorpusReport) -> str:
    """Return the report page of a corpus as HTML."""
    reused = f"; {report.reused_jobs:,} jobs were reused from an earlier build" if report.reused_jobs else ""
    body = [
        f"<h1>Corpus {escape(report.folder)}</h1>",
        f"<p class=faint>id <code>{report.id}</code>; {escape(_describe_tokenizer(report))}</p>",
        html_tiles({column: f"{report.sum_over_splits(column):,}" for column in COUNTS}),
        *(f"<p class=note>{escape(note)}</p>" for note in report.notes),
        "<h2>Splits</h2>",
        html_table(
            ("split", *COUNTS),
            ([name, *(f"{counts[column]:,}" for column in COUNTS)] for name, counts in report.splits.items()),
        ),
        "<h2>From files to documents</h2>",
        f"<p>{report.documents_read:,} documents in {report.files:,} files; {report.sum_over_splits('documents'):,} in "
        "the corpus.</p>",
        html_bars(report.dropped, share_of=report.documents_read, lost=True)
        if report.dropped
        else "<p>No document was dropped.</p>",
        *_example_lists(report.examples, report.messages),
        *titled_bars("Languages", report.languages),
        *_unknown_words(report),
        *_size_table("source", report.composition.sources),
        *_size_table("format", report.composition.formats),
        "<h2>Documents by length in tokens</h2>",
        html_bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.lengths.items())}),
        "<h2>Tokens by length of their document</h2>",
        html_bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.composition.lengths.items())}),
        "<h2>Largest documents</h2>",
        html_bars({name: tokens for tokens, name in report.composition.largest[:LARGEST]}, form="{:,} tokens"),
        "<h2>Time</h2>",
        html_bars(report.seconds, form="{:,.1f} s"),
        f"<p class=faint>{escape(report.executor)}{reused}</p>",
    ]
    return full_page(report.folder, body)


COUNTS = ("documents", "tokens", "bytes", "shards")


def _describe_tokenizer(report: CorpusReport) -> str:
    ids = f"{report.tokenizer['kind']} tokenizer of {report.tokenizer['vocabulary']:,} ids"
    return f"{ids}, {report.tokens_per_byte:.3f} tokens per byte"


def _size_table(title: str, sizes: Mapping[str, TextSize]) -> list[str]:
    rows = (
        (name, f"{size.documents:,}", f"{size.tokens:,}", f"{size.bytes:,}") for name, size in sort_by_tokens(sizes)
    )
    return [f"<h2>By {title}</h2>", html_table((title, "documents", "tokens", "bytes"), rows)] if sizes else []


def _unknown_words(report: CorpusReport) -> list[str]:
    if not report.unknown_words:
        return []
    rows = (
        [name, f"{count.words:,}", f"{count.unknown:,}", f"{count.share:.1%}"]
        for name, count in report.unknown_words.items()
    )
    return ["<h2>Words unknown to the tokenizer</h2>", html_table(("language", "words", "unknown", "share"), rows)]


def _example_lists(examples: Mapping[str, Sequence[Sequence[str]]], messages: Mapping[str, str]) -> list[str]:
    def shown(reason: str, source: str, beginning: str) -> str:
        of = "duplicate of " if reason.endswith("duplicate") else ""
        return f"<code>{escape(source)}</code><pre>{of}{escape(beginning)}</pre>"

    def message(reason: str, few: Sequence[Sequence[str]]) -> str:
        """Return the message about the first example of a drop reason, unless the examples already contain it."""
        if reason not in messages or any(beginning == messages[reason] for _, beginning in few):
            return ""
        return f"<p>The first {escape(messages[reason])}.</p>"

    return [
        f"<details><summary>{escape(reason)}: examples</summary>{message(reason, few)}"
        f"{''.join(shown(reason, *example) for example in few)}</details>"
        for reason, few in examples.items()
    ]
