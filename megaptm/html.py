"""Parts of HTML pages: no scripts, no external resources, usable on phones and in dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

__all__ = ["escape", "full_page", "html_bars", "html_table", "html_tiles", "titled_bars"]

STYLE = """
:root { color-scheme: light dark; --bar: #4477aa; --lost: #cc6677; --line: #8884; --faint: #808080 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% }
td, th { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.breaks td + td { overflow-wrap: anywhere }
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
svg { max-width: 100%; height: auto; background: white } mark { padding: 0 .15rem; border-radius: 2px }
"""


def full_page(title: str, body: Iterable[str]) -> str:
    """Return a complete HTML page with this title and body."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def html_tiles(values: Mapping[str, str]) -> str:
    """Return HTML of some large numbers with their names, for the top of a report page."""
    return f"<div class=tiles>{''.join(f'<div><b>{value}</b>{name}</div>' for name, value in values.items())}</div>"


def html_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, is_text: bool = False, breaks_words: bool = False
) -> str:
    """Return an HTML table with names in the first column, and numbers (or text) in the others. `breaks_words`: break
    long values, so that many columns fit the page."""
    kinds = ["" if is_text or not column else " class=number" for column in range(len(titles))]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, title in zip(kinds, titles, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    style = " class=breaks" if breaks_words else ""
    return f"<div class=wide><table{style}><tr>{head}</tr>{body}</table></div>"


def html_bars(
    values: Mapping[str, float],
    *,
    form: str = "{:,}",
    share_of: float = 0,
    largest: float | None = None,
    lost: bool = False,
) -> str:
    """Return HTML bars: a row per value, with a bar proportional to the largest value, or to `largest`."""
    largest = largest or max(values.values(), default=0) or 1
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
    return [f"<h2>{title}</h2>", html_bars(ordered)] if values else []
