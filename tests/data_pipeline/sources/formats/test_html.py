"""HTML files: the main text, extracted as from pages in a WARC."""

import gzip

import pytest

from tests.data_pipeline.sources.reading import reading, written

pytest.importorskip("resiliparse")

PAGE = """{declared}<!doctype html><html><head>{head}<title>Bridges</title><style>p {{color: red}}</style></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
<main><article><h1>Of bridges</h1><p>{text} A bridge carries a road over a river, and its builders know the river
well before they begin.</p><p>Some of them stand for two thousand years, because stone that is pressed lasts.</p>
</article></main><footer>Copyright, all rights reserved</footer></body></html>"""
TEXT = "Съешь же ещё этих булок."


def page(text=TEXT, head="", declared="") -> str:
    return PAGE.format(text=text, head=head, declared=declared)


@pytest.mark.parametrize("name", ["a.html", "a.HTM", "a.xhtml", "a.html.gz"])
def test_html_files_give_main_content(name, tmp_path):
    content = page().encode()
    written(tmp_path / "site" / name, gzip.compress(content) if name.endswith("gz") else content)
    [document] = reading(tmp_path / "site").documents
    assert document.text.startswith(f"Of bridges\n\n{TEXT} A bridge carries")
    assert document.source == f"site/{name}"
    assert not any(word in document.text for word in ("<", "About us", "Copyright", "color"))
    [everything] = reading(tmp_path / "site", html="all").texts
    assert "About us" in everything


@pytest.mark.parametrize(
    ("codec", "content", "options"),
    [
        ("cp1251", page(head='<meta charset="windows-1251">'), {}),
        ("koi8-r", page(head='<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">'), {}),
        ("cp1251", page(declared='<?xml version="1.0" encoding="windows-1251"?>'), {}),
        ("utf-16", page(), {}),
        ("utf-8-sig", page(), {}),
        ("cp1251", page(), {"encoding": "cp1251"}),
    ],
)
def test_html_encoding(codec, content, options, tmp_path):
    [document] = reading(written(tmp_path / "a.html", content.encode(codec)), **options).documents
    assert TEXT in document.text


@pytest.mark.parametrize("text", ["Café au lait.", "Grüße 🙂 aus Köln. " * 20, TEXT])
def test_wrong_byte_in_a_page_is_replaced(text, tmp_path):
    """charset_normalizer's issue 516: one wrong byte garbled all other characters of a page, or lost it."""
    content = page(text).encode().replace(b"<title>", b"<title>\xe9")
    [document] = reading(written(tmp_path / "a.html", content)).documents
    assert document.text.startswith(f"Of bridges\n\n{text.strip()} A bridge")
    assert document.notes == {}


def test_html_without_text_is_dropped(tmp_path, monkeypatch, refusal):
    assert reading(written(tmp_path / "a.html", "<html><body></body></html>")).counts == {"no main content": 1}
    assert reading(written(tmp_path / "b.html", b"")).counts == {"empty file": 1}
    monkeypatch.setattr("data_pipeline.sources.formats.html.MAX_PAGE_BYTES", 100)
    path = written(tmp_path / "c.html", page())
    assert reading(path).counts == {"page too long": 1}
    assert "is longer than" in refusal(path)


def test_html_as_code(tmp_path):
    path = written(tmp_path / "a.html", page())
    assert reading(path, format="code").texts == [page()]


def test_costly_page_is_dropped(tmp_path, refusal):
    deep = written(tmp_path / "deep.html", "<div>" * 5000 + "text")
    assert reading(deep).counts == {"nested too deeply": 1}
    assert "has elements nested more than 4,096 deep" in refusal(deep)
    wide = written(tmp_path / "wide.html", "<p " + " ".join(f"a{number}=b" for number in range(5000)) + ">text</p>")
    assert reading(wide).counts == {"tag too long": 1}


def test_unclosed_elements_are_not_nested(tmp_path):
    many = "<p>A sentence that is long enough to be the main content of a page.<br>" * 5000
    long = f'<img alt="{"a word " * 9000}">'
    assert reading(written(tmp_path / "a.html", many + long), html="all").counts == {}
