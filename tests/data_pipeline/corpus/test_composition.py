from data_pipeline.corpus.composition import Composition, TextSize, composition_of
from data_pipeline.document import Document


def composition(*lengths: int, origin: str = "text books") -> Composition:
    made = Composition()
    for number, tokens in enumerate(lengths):
        made.add(Document("", f"{number}.txt", origin=origin), tokens, 4 * tokens)
    return made


def test_sizes_add_up_by_source_format_and_length():
    web = composition(3, 1, origin="json-lines crawl/*.jsonl with spaces")
    whole = composition_of([composition(5, 4), web, composition(7)])
    assert whole.sources == {"books": TextSize(3, 16, 64), "crawl/*.jsonl with spaces": TextSize(2, 4, 16)}
    assert whole.formats == {"text": TextSize(3, 16, 64), "json-lines": TextSize(2, 4, 16)}
    assert whole.lengths == {1: 1, 2: 3, 4: 16}
    assert whole.largest[0] == (7, "0.txt")


def test_one_giant_document_is_told():
    [warning] = composition(100_000, *[10] * 99).warnings()
    assert warning.startswith("one document has half of all tokens, of 100 documents (0.txt: 100,000): ")
    assert "`documents: line`" in warning


def test_a_few_giant_documents_are_told_across_shards():
    [warning] = composition_of([composition(1000, *[1] * 500), composition(900, *[1] * 500)]).warnings()
    assert warning.startswith("2 documents have half of all tokens, of 1,002 documents (0.txt: 1,000)")


def test_a_usual_spread_of_lengths_is_not_told():
    assert composition(*range(1, 500)).warnings() == []


def test_of_few_documents_none_is_a_giant():
    assert composition(1000, 1, 1).warnings() == []
