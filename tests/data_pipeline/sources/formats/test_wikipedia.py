import bz2
import re
import time
import tracemalloc
from xml.sax.saxutils import escape

import pytest

from data_pipeline.sources.formats.wikipedia import _read_elements
from data_pipeline.sources.formats.wikitext import text_of_markup
from data_pipeline.sources.formats.wikitext_leftovers import _without_templates
from data_pipeline.sources.formats.wikitext_unclosed import without_unclosed
from tests.data_pipeline.sources.reading import reading, span_of, written

pytest.importorskip("mwparserfromhell")

MARKUP = """{{Short description|Structure over an obstacle}}
{{Infobox bridge|name=Old Bridge|length={{convert|12|m}}}}
[[File:Old Bridge.jpg|thumb|The [[arch]] at ''dawn'']]
[[Datei:Brücke.jpg|mini|Ein Bogen]]
An '''old bridge''' ({{IPA|/x/}}; ) is a [[structure]] over a [[river|wide river]].<ref name="a">{{cite|x}}</ref> \
It's said that l''''arche'' lasts &mdash; see [https://bridges.example the list].<!-- hidden -->

__NOTOC__
== History ==
The first one<ref>Nobody knows</ref> was built of<br/>stone, <math>x^2</math> and wood.

* a list of [[stone|stones]]
*# and woods
: an indented line
; term: definition

{| class="wikitable"
! Year !! Length
|-
| 1900 || 12
|}

=== Later ===
Others followed.

[[Category:Bridges]]
[[Kategorie:Brücken]]
"""
PROSE = """An old bridge is a structure over a wide river. It's said that l'arche lasts — see the list.

The first one was built of
stone, and wood.

Others followed."""
PREFIXES = {"file", "image", "category", "datei", "kategorie"}


def test_markup_is_removed():
    assert text_of_markup(MARKUP, ("headers", "lists", "tables"), PREFIXES) == PROSE


def test_headers_lists_and_tables_can_be_retained():
    text = text_of_markup(MARKUP, (), PREFIXES)
    for retained in ("\nHistory\n", "a list of stones\n", "and woods\n", "an indented line\n", "1900"):
        assert retained in text
    assert "History" not in text_of_markup(MARKUP, ("headers",), PREFIXES)
    assert "stones" not in text_of_markup(MARKUP, ("lists",), PREFIXES)
    assert "1900" not in text_of_markup(MARKUP, ("tables",), PREFIXES)


ALL = ("headers", "lists", "tables")


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("{{Infobox person\n| name = Ada\n| born = 1815\n\n'''Ada''' was a {{x}}writer.", "Ada was a writer."),
        ("Ada was. {{Infobox | name = Ada\n\nShe wrote. {{ok|a}} More.", "Ada was.\n\nShe wrote. More."),
        ("{{Infobox\n| spouse = {{marriage|Lord\n| born = 1815\nShe wrote.", "She wrote."),
        ("Text }} more }} end", "Text more end"),
        ("{{a" * 60 + "}}" * 60 + " tail", "tail"),
        ("Before\n{| class=w\n|-\n| a || b\n|\n{| class=i\n| c\n|}\n|-\n| d\n|}\nAfter", "Before\n\nAfter"),
        ("Before\n{| class=w\n|-\n| a || b\n\nAfter", "Before\n\nAfter"),
        ("Before\n{|\n|\n{|\n| inner\n|}\n! outer\n\nAfter", "Before\n\nAfter"),
        (":{|\n| a\n|}\nAfter", "After"),
        ("Text<ref>foo [[x]] more. <ref name=a /> end", "Textfoo x more. end"),
        ("a <!-- never closed", "a"),
        ("see [[foo|bar and [[baz]] x", "see bar and baz x"),
    ],
)
def test_unclosed_markup_is_removed(markup, text):
    assert text_of_markup(markup, ALL, PREFIXES) == text


@pytest.mark.parametrize("opening", ["<!-- ", "<nowiki>", "<" + "a" * 100_000])
def test_unclosed_openings_take_linear_time(opening):
    """The pages of one opening took minutes: each opening was searched for its end."""
    before = time.process_time()
    without_unclosed(opening * (400_000 // len(opening)))
    assert time.process_time() - before < 5


def test_unclosed_table_cells_can_be_retained():
    markup = "Before\n{| class=w\n! Year !! Length\n|-\n| 1900 || style=x | 12\n\nAfter"
    assert text_of_markup(markup, ("lists",), PREFIXES) == "Before\nYear\tLength\n1900\t12\n\nAfter"


def test_literal_markup_is_retained():
    markup = "Write <nowiki>{{cite}} or [[link]]</nowiki>, or &lt;ref&gt; and &#123;&#123;x, or a | b, x < y, {z}!"
    assert (
        text_of_markup(markup, ALL, PREFIXES) == "Write {{cite}} or [[link]], or <ref> and {{x, or a | b, x < y, {z}!"
    )


def page(number: int, title: str, text: str, space: int = 0, redirect: str = "") -> str:
    return f"""  <page>
    <title>{title}</title><ns>{space}</ns><id>{number}</id>{redirect}
    <revision><id>{number}0</id><contributor><id>7</id></contributor>
      <text bytes="{len(text)}" xml:space="preserve">{escape(text)}</text>
    </revision>
  </page>
"""


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><sitename>Wikipedia</sitename><namespaces>
    <namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace></namespaces></siteinfo>
"""
DUMP = (
    HEAD
    + page(12, "Brücke", MARKUP)
    + page(13, "Bruecke", "#WEITERLEITUNG [[Brücke]]", redirect='<redirect title="Brücke" />')
    + page(14, "Diskussion:Brücke", "Was meint ihr?", space=1)
    + page(15, "Fluss", "Ein '''Fluss''' fließt.")
    + "</mediawiki>\n"
)


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("dewiki-20240101-pages-articles.xml", str.encode),
        ("dewiki-20240101-pages-articles1.xml-p1p9.bz2", lambda text: bz2.compress(text.encode())),
        ("dump.xml", str.encode),
    ],
)
def test_dump_articles(name, pack, tmp_path):
    path = written(tmp_path / name, pack(DUMP))
    result = reading(path)
    bridge, river = result.documents
    assert bridge.text.startswith("An old bridge is a structure over a wide river.")
    assert "Bogen" not in bridge.text
    assert (river.text, river.source, river.notes) == (
        "Ein Fluss fließt.",
        f"{name}@15",
        {"id": "15", "title": "Fluss"},
    )
    assert result.counts == {"redirect": 1, "not an article": 1}
    assert reading(path, on_error="fail").documents == result.documents


def test_truncated_dump_keeps_complete_articles(tmp_path, refusal):
    path = written(tmp_path / "dump.xml", DUMP[: DUMP.index("Fluss</title>")])
    result = reading(path)
    assert ([document.notes["id"] for document in result.documents], result.counts["not XML"]) == (["12"], 1)
    assert "dump.xml is not valid XML" in refusal(path)


def test_other_xml_is_dropped(tmp_path, refusal):
    path = written(tmp_path / "a.xml", "<project><page/></project>")
    assert reading(path).counts == {"not a Wikipedia dump": 1}
    assert "is XML of another kind (`project`)" in refusal(path)


def test_pages_are_freed(tmp_path):
    path = written(tmp_path / "dump.xml", HEAD + page(1, "River", "flows " * 2000) * 1000 + "</mediawiki>")
    tracemalloc.start()
    assert sum(element.tag == "page" for element in _read_elements(span_of(path))) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 2


TANGLES = {
    "templates": "{{a|",
    "links": "[[a|",
    "addresses": "[http://a ",
    "tables": "{|\n",
    "tags": "<div>",
    "half tags": "<ref name=",
    "quotes": '<ref name="a>b</ref> ',
    "deep templates": "{{",
}


@pytest.mark.parametrize("opening", TANGLES.values(), ids=TANGLES)
def test_unclosed_openings_are_hidden(opening, monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.formats.wikitext_unclosed.MAX_REREAD", 0)
    signs = ("{{", "[[", "[h", "{|", "<d", "<r")
    assert not [sign for sign in signs if sign in without_unclosed("Before.\n\n" + opening * 30)]


@pytest.mark.parametrize("opening", [opening for name, opening in TANGLES.items() if name != "quotes"])
def test_hiding_openings_keeps_text(opening, monkeypatch):
    markup = f"Before [[it|this]].\n\n{opening * 20}\n\nAfter {{{{it}}}} <b>that</b>."
    expected = text_of_markup(markup, (), PREFIXES)
    monkeypatch.setattr("data_pipeline.sources.formats.wikitext_unclosed.MAX_REREAD", 0)
    assert text_of_markup(markup, (), PREFIXES) == expected


def test_closed_markup_is_not_hidden(monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.formats.wikitext_unclosed.MAX_REREAD", 0)
    assert without_unclosed(MARKUP) == MARKUP
    assert text_of_markup(MARKUP, ("headers", "lists", "tables"), PREFIXES) == PROSE


@pytest.mark.parametrize(
    "text", ["{{" * 50 + "a" + "}}" * 50, "{{{a\n{{a}}\n}}", "{{x}{{y}}}", "a{{b{c}}}", "{{a}} }} {{b"]
)
def test_deep_templates_are_removed(text):
    expected, before = text, None
    while before != expected:
        before, expected = expected, re.sub(r"\{\{[^{}]*\}\}", "", expected)
    assert _without_templates(text) == expected


@pytest.mark.parametrize("setting", [{}, {"max_bytes": 1000}])
def test_too_long_article_is_dropped(setting, tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("data_pipeline.sources.formats.wikipedia.MAX_ARTICLE_BYTES", 1000)
    path = written(
        tmp_path / "a.xml", HEAD + page(1, "One", "a" * 2_000_000) + page(2, "Two", "short") + "</mediawiki>"
    )
    result = reading(path, **setting)
    assert (result.texts, result.counts) == (["short"], {"page too long": 1})
    assert "page 1 is longer than 1,000 bytes: raise `max_bytes` of its source" in refusal(path)
    assert reading(path, max_bytes=3_000_000).counts == {}
