from data_pipeline.corpus.composition import Composition, TextSize, sum_compositions
from data_pipeline.document import Document


def composition(*lengths: int, origin: str = "text books") -> Composition:
    made = Composition()
    for number, tokens in enumerate(lengths):
        made.add(Document("", f"{number}.txt", origin=origin), tokens, 4 * tokens)
    return made


def test_composition_sums():
    web = composition(3, 1, origin="json-lines crawl/*.jsonl with spaces")
    uncut = sum_compositions([composition(5, 4), web, composition(7)])
    assert uncut.sources == {"books": TextSize(3, 16, 64), "crawl/*.jsonl with spaces": TextSize(2, 4, 16)}
    assert uncut.formats == {"text": TextSize(3, 16, 64), "json-lines": TextSize(2, 4, 16)}
    assert uncut.lengths == {1: 1, 2: 3, 4: 16}
    assert uncut.largest[0] == (7, "0.txt")


def test_one_giant_document_gives_warning():
    [warning] = composition(100_000, *[10] * 99).warnings()
    assert warning.startswith("one document has half of the tokens of 100 documents (0.txt: 100,000): ")
    assert "`documents: line`" in warning


def test_giant_documents_across_shards_give_warning():
    [warning] = sum_compositions([composition(1000, *[1] * 500), composition(900, *[1] * 500)]).warnings()
    assert warning.startswith("2 documents have half of the tokens of 1,002 documents (0.txt: 1,000)")


def test_usual_lengths_give_no_warning():
    assert composition(*range(1, 500)).warnings() == []


def test_few_documents_give_no_warning():
    assert composition(1000, 1, 1).warnings() == []
