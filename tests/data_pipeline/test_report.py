import html.parser
import io

from rich.console import Console

from data_pipeline.page import write_corpus_page
from data_pipeline.report import CorpusReport

REPORT = CorpusReport(
    folder="corpora/<odd> & sons",
    id="12",
    files=3,
    splits={"train": {"documents": 6, "tokens": 60, "bytes": 240, "shards": 2}},
    dropped={"empty": 1, "<script>": 2, "duplicate": 1},
    examples={
        "empty": [("c.txt", "is empty: remove it")],
        "<script>": [("a.txt", "<script>alert('no')</script>")],
        "duplicate": [("b.txt", "a.txt")],
    },
    messages={"empty": "is empty: remove it", "<script>": "has no `text`, but <b>: name it"},
    languages={"en": 5, "de": 1},
    lengths={8: 5, 16: 1},
    tokenizer={"kind": "byte-bpe", "vocabulary": 300},
    workers=2,
    reused_jobs=4,
    seconds={"read and clean": 1.5},
)


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.widths: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        self.widths += [value for name, value in attributes if name == "style"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_page_shows_report(tmp_path):
    write_corpus_page(REPORT, tmp_path)
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert reader.open == []
    text = " ".join(reader.words)
    assert "10 documents in 3 files; 6 in the corpus" in text
    assert "<script>alert('no')</script>" in text
    assert "duplicate of a.txt" in text
    assert text.count("is empty: remove it") == 1
    assert "4 jobs were reused" in text
    assert {"width:100.00%", "width:20.00%"} <= set(reader.widths)


def test_page_escapes_document_text(tmp_path):
    write_corpus_page(REPORT, tmp_path)
    assert "<script" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_terminal_shows_first_message_per_reason():
    console = Console(record=True, width=40, file=io.StringIO())
    REPORT.print(console)
    assert "dropped 2 <script> (a.txt): the first has no `text`, but <b>: name it" in console.export_text()
