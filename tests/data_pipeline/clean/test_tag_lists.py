"""Taggers by list: words of a category and personal numbers, by language."""

import pytest

from data_pipeline.clean.personal import TABLE, TagPersonal, read_patterns
from data_pipeline.clean.tag_lists import TagLists
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import run


@pytest.fixture
def lists(tmp_path):
    (tmp_path / "en.txt").write_text("Darn\nholy moly\n")
    (tmp_path / "de.txt").write_text("mist\n")
    (tmp_path / "all.txt").write_text("grr\n坏话\n")
    return {"en": str(tmp_path / "en.txt"), "de": str(tmp_path / "de.txt"), "*": str(tmp_path / "all.txt")}


@pytest.mark.parametrize(
    ("language", "text", "share"),
    [
        ("en", "Well, DARN! Holy Moly, no.", 0.6),
        ("en", "Mist is on the hills", 0.0),
        ("de", "So ein Mist", 0.333333),
        (None, "darn mist grr grr", 0.5),
        ("zh", "他说坏话", 0.5),
        ("fr", "grr", 1.0),
    ],
)
def test_share_of_listed_words_by_language(lists, language, text, share):
    [document], _ = run(TagLists(lists), text, notes={"language": language} if language else {})
    assert document.notes["toxicity"] == share
    assert document.text == text


def test_documents_above_the_share_are_dropped(lists):
    step = TagLists(lists, max_share=0.3, note="rude")
    retained, dropped = run(step, "darn it all", "darn it", notes={"language": "en"})
    assert (retained, dropped.counts) == ([], {"tag-lists: rude above 0.3": 2})
    assert run(TagLists(lists, max_share=0.5), "darn it", notes={"language": "en"})[0]
    assert step.input_files() == tuple(lists.values())


def test_documents_without_a_list_have_no_note(lists):
    [document], _ = run(TagLists({"en": lists["en"]}), "darn", notes={"language": "fr"})
    assert document.notes == {"language": "fr"}


def test_invalid_lists_are_rejected(lists):
    with pytest.raises(UserError, match="lists is empty"):
        TagLists({})
    with pytest.raises(UserError, match=r"max_share \(2\) must be a share"):
        TagLists(lists, max_share=2)
    with pytest.raises(UserError, match=r"tag-lists: lists .* cannot be read"):
        run(TagLists({"en": "missing.txt"}), "text", notes={"language": "en"})


# Valid numbers are examples of the standards, from the documentation of python-stdnum.
NUMBERS = [
    ("en", "iban", "GB82 WEST 1234 5698 7654 32", "GB82 WEST 1234 5698 7654 33"),
    ("ja", "card", "4111 1111 1111 1111", "4111 1111 1111 1112"),
    ("en", "us-ssn", "536-90-4399", "666-90-4399"),
    ("en", "canada-sin", "SIN: 123-456-782", "SIN: 123-456-783"),
    ("en", "aadhaar", "Aadhaar no. 2341 2341 2346", "Aadhaar no. 2341 2341 2347"),
    ("de", "tax-id", "Steuer-ID: 36 574 261 809", "Steuer-ID: 36 574 261 808"),
    ("fr", "nir", "2 95 10 99 126 111 93", "2 95 10 99 126 111 94"),
    ("es", "dni", "54362315-K", "54362315-A"),
    ("es", "nie", "X-2482300W", "X-2482300A"),
    ("it", "codice-fiscale", "RCCMNL83S18D969H", "RCCMNL83S18D969I"),
    ("pt", "cpf", "390.533.447-05", "390.533.447-06"),
    ("nl", "bsn", "BSN: 111222333", "BSN: 111222334"),
    ("zh", "resident-id", "360426199101010071", "360426199101010072"),
    ("ko", "resident-number", "971013-9019902", "971013-9019903"),
    ("pl", "pesel", "PESEL 44051401359", "PESEL 44051401358"),
    ("sv", "personnummer", "880320-0016", "880320-0018"),
    ("fi", "hetu", "131052-308T", "131052-308U"),
    ("da", "cpr", "CPR-nr. 211062-5629", "CPR-nr. 991362-5629"),
    ("tr", "kimlik", "T.C. Kimlik No: 17291716060", "T.C. Kimlik No: 17291716050"),
]


@pytest.mark.parametrize(("language", "kind", "valid", "invalid"), NUMBERS)
def test_numbers_with_valid_check_digits_are_counted(language, kind, valid, invalid):
    pytest.importorskip("stdnum")
    notes = {"language": language}
    first, second = run(TagPersonal(), f"It is {valid}, he said.", f"It is {invalid}, he said.", notes=notes)[0]
    assert first.notes["personal"] == {kind: 1}
    assert kind not in second.notes.get("personal", {})


def test_every_kind_is_tested():
    pytest.importorskip("stdnum")
    assert {pattern.kind for pattern in read_patterns(TABLE)} == {kind for _, kind, _, _ in NUMBERS}


def test_numbers_are_replaced():
    pytest.importorskip("stdnum")
    text = "Pay to GB82WEST12345698765432 or 4111-1111-1111-1111; my SIN: 123 456 782."
    [document], _ = run(TagPersonal(replace=True), text)
    assert document.text == "Pay to <iban> or <card>; my SIN: <canada-sin>."
    assert document.notes["personal"] == {"canada-sin": 1, "card": 1, "iban": 1}


def test_numbers_of_other_languages_are_not_searched():
    pytest.importorskip("stdnum")
    [document], _ = run(TagPersonal(), "54362315-K", notes={"language": "de"})
    assert "personal" not in document.notes
    [document], _ = run(TagPersonal(), "54362315-K")
    assert document.notes["personal"] == {"dni": 1}


def test_documents_with_many_numbers_are_dropped():
    pytest.importorskip("stdnum")
    retained, dropped = run(TagPersonal(max_count=1), "536-90-4399", "536-90-4399 and 536-90-4399")
    assert [document.source for document in retained] == ["0.txt"]
    assert dropped.counts == {"tag-personal: more than 1 numbers": 1}


def test_a_table_of_the_user(tmp_path):
    (tmp_path / "own.tsv").write_text("# staff\n*\tstaff\t\tstaff (?P<number>\\d+)\n")
    step = TagPersonal(table=str(tmp_path / "own.tsv"), replace=True)
    [document], _ = run(step, "staff 12 and GB82WEST12345698765432")
    assert document.text == "staff <staff> and GB82WEST12345698765432"
    assert step.input_files() == (str(tmp_path / "own.tsv"),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("*\tstaff", "line 1: 2 columns instead of language, kind, check and expression"),
        ("*\tstaff\t\t(", "line 1: the expression is invalid"),
        ("*\tstaff\tno_such\t1", "line 1: stdnum has no check no_such"),
        ("*\tstaff\tos;x\t1", "line 1: os;x is not a module of stdnum"),
    ],
)
def test_invalid_tables_are_rejected(line, message, tmp_path):
    pytest.importorskip("stdnum")
    (tmp_path / "own.tsv").write_text(line)
    with pytest.raises(UserError, match=message):
        run(TagPersonal(table=str(tmp_path / "own.tsv")), "1")


def test_unknown_kinds_are_rejected():
    pytest.importorskip("stdnum")
    with pytest.raises(UserError, match=r"kinds \(ibam\) is not in the table: use aadhaar, .*iban"):
        run(TagPersonal(kinds=("ibam",)), "1")


@pytest.mark.parametrize("gap", [0, 1, 63, 64, 65, 200])
def test_numbers_are_found_anywhere_in_a_text(gap):
    """Only text near digits is searched, and that changes no result."""
    pytest.importorskip("stdnum")
    numbers = (
        "a" * gap + " GB82 WEST 1234 5698 7654 32 " + "b" * gap + " Identifikationsnummer: 36 574 261 809 " + "c" * gap
    )
    text = f"{numbers}X{numbers}"
    [document], _ = run(TagPersonal(), text)
    [expected], _ = run(TagPersonal(table=TABLE), text)
    assert document.notes["personal"] == expected.notes["personal"]
    assert document.notes["personal"]["tax-id"] == 2
