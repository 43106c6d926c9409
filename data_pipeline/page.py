"""Report of a build as one HTML page: no scripts, no external resources, usable on phones and in dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from data_pipeline.corpus.composition import TextSize
from data_pipeline.report import CorpusReport, by_tokens

PAGE = "report.html"
LARGEST = 5
"""Number of largest documents listed on the report page."""

STYLE = """
:root { color-scheme: light dark; --bar: #4477aa; --lost: #cc6677; --line: #8884; --faint: #808080 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% }
td, th { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.chart { width: 50%; padding-right: 0 }
.bar { background: var(--bar); height: .9rem; margin-top: .3rem; min-width: 1px; border-radius: 2px }
.lost .bar { background: var(--lost) }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem } .tiles b { display: block; font-size: 1.4rem }
.faint, summary { color: var(--faint) } code, pre { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
pre { white-space: pre-wrap; margin: .2rem 0 .8rem } .note { color: var(--lost) }
.pictures { display: flex; flex-wrap: wrap; gap: .8rem; margin: .6rem 0 } figure { margin: 0; width: 7rem }
details { margin: .3rem 0 } .wide { overflow-x: auto }
@media (max-width: 34rem) { td, th { padding-right: .5rem } td.chart { width: 35% } .wide { font-size: .85rem } }
figcaption { font-size: .8rem; overflow-wrap: anywhere } img { max-width: 100%; background: var(--line) }
"""


def write_page(report: CorpusReport, folder: Path) -> None:
    """Write the report page beside the corpus."""
    (folder / PAGE).write_text(html(report), encoding="utf-8")


def html(report: CorpusReport) -> str:
    """Return the report page of a corpus as HTML."""
    body = [
        f"<h1>Corpus {escape(report.folder)}</h1>",
        f"<p class=faint>id <code>{report.id}</code>; {escape(_describe_tokenizer(report))}</p>",
        tiles({column: f"{report.sum_over_splits(column):,}" for column in ("documents", "tokens", "bytes", "shards")}),
        *(f"<p class=note>{escape(note)}</p>" for note in report.notes),
        "<h2>Splits</h2>",
        table(
            ("split", "documents", "tokens", "bytes", "shards"),
            ([name, *(f"{counts[column]:,}" for column in COUNTS)] for name, counts in report.splits.items()),
        ),
        "<h2>From files to documents</h2>",
        f"<p>{report.read:,} documents in {report.files:,} files; {report.sum_over_splits('documents'):,} in the "
        "corpus.</p>",
        bars(report.dropped, share_of=report.read, lost=True) if report.dropped else "<p>No document was dropped.</p>",
        *_example_lists(report.examples, report.messages),
        *titled_bars("Languages", report.languages),
        *_unknown_words(report),
        *_size_table("source", report.composition.sources),
        *_size_table("format", report.composition.formats),
        "<h2>Documents by length in tokens</h2>",
        bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.lengths.items())}),
        "<h2>Tokens by length of their document</h2>",
        bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.composition.lengths.items())}),
        "<h2>Largest documents</h2>",
        bars({name: tokens for tokens, name in report.composition.largest[:LARGEST]}, form="{:,} tokens"),
        "<h2>Time</h2>",
        bars(report.seconds, form="{:,.1f} s"),
        f"<p class=faint>{escape(report.executor)}{_reused_jobs(report)}</p>",
    ]
    return full_page(report.folder, body)


def full_page(title: str, body: Iterable[str]) -> str:
    """Return a complete HTML page with this title and body."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


COUNTS = ("documents", "tokens", "bytes", "shards")


def _describe_tokenizer(report: CorpusReport) -> str:
    ids = f"{report.tokenizer['kind']} tokenizer of {report.tokenizer['vocabulary']:,} ids"
    return f"{ids}, {report.tokens_per_byte:.3f} tokens per byte"


def _reused_jobs(report: CorpusReport) -> str:
    return f"; {report.reused_jobs:,} jobs were reused from an earlier build" if report.reused_jobs else ""


def _size_table(title: str, sizes: Mapping[str, TextSize]) -> list[str]:
    rows = ((name, f"{size.documents:,}", f"{size.tokens:,}", f"{size.bytes:,}") for name, size in by_tokens(sizes))
    return [f"<h2>By {title}</h2>", table((title, "documents", "tokens", "bytes"), rows)] if sizes else []


def _unknown_words(report: CorpusReport) -> list[str]:
    if not report.unknown_words:
        return []
    rows = (
        [name, f"{count.words:,}", f"{count.unknown:,}", f"{count.share:.1%}"]
        for name, count in report.unknown_words.items()
    )
    return ["<h2>Words unknown to the tokenizer</h2>", table(("language", "words", "unknown", "share"), rows)]


def tiles(values: Mapping[str, str]) -> str:
    """Return HTML of some large numbers with their names, for the top of a report page."""
    return f"<div class=tiles>{''.join(f'<div><b>{value}</b>{name}</div>' for name, value in values.items())}</div>"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with names in the first column and numbers in the others."""
    head = "".join(f"<th{_number_class(column)}>{escape(title)}</th>" for column, title in enumerate(titles))
    body = "".join(
        f"<tr>{''.join(f'<td{_number_class(column)}>{escape(cell)}</td>' for column, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _number_class(column: int) -> str:
    return " class=number" if column else ""


def bars(values: Mapping[str, float], *, form: str = "{:,}", share_of: int = 0, lost: bool = False) -> str:
    """Return HTML bars: a row per value, with a bar proportional to the largest."""
    largest = max(values.values(), default=0) or 1
    rows = []
    for name, value in values.items():
        share = f" <span class=faint>{value / share_of:.2%}</span>" if share_of else ""
        bar = f"<div class=bar style='width:{value / largest:.2%}'></div>"
        number = f"<td class=number>{form.format(value)}{share}</td>"
        rows.append(f"<tr><td>{escape(name)}</td>{number}<td class=chart>{bar}</td></tr>")
    return f"<table{' class=lost' if lost else ''}>{''.join(rows)}</table>"


def titled_bars(title: str, values: Mapping[str, float]) -> list[str]:
    """Return HTML bars below a title, in descending order; nothing if there are no values."""
    ordered = dict(sorted(values.items(), key=lambda item: (-item[1], item[0])))
    return [f"<h2>{title}</h2>", bars(ordered)] if values else []


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
