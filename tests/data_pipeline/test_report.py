import io

from rich.console import Console

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


def test_terminal_shows_first_message_per_reason():
    console = Console(record=True, width=40, file=io.StringIO())
    REPORT.print(console)
    assert "dropped 2 <script> (a.txt): the first has no `text`, but <b>: name it" in console.export_text()
