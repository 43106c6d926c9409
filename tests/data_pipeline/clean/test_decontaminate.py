import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean import run_steps
from data_pipeline.clean.comparable import comparable_text, comparable_text_with_offsets
from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.clean.hash_set import HashSet
from data_pipeline.clean.lines import DropLines
from data_pipeline.clean.predicate import KeepIf
from data_pipeline.clean.scrub import Scrub
from data_pipeline.document import Document, DropCounts
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run
from tests.data_pipeline.unspaced import WORDS as LANGUAGES
from tests.data_pipeline.unspaced import page, sentence

WORDS = [f"word{number}" for number in range(100)]
QUESTION = " ".join(WORDS[:20])
WHY = "contains evaluation text"


@pytest.fixture
def evaluation(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(f"{QUESTION}\ntoo short to count\n\nEight words are enough to be looked for.\n")
    return str(path)


def test_shared_ngram_ignores_case_and_punctuation(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, "Before: " + ", ".join(WORDS[3:16]).upper() + "! After.") == WHY
    assert reason(step, " ".join(WORDS[3:15])) is None
    assert reason(step, " ".join(WORDS[3:15]) + " another " + " ".join(WORDS[15:27])) is None


def test_short_evaluation_text_must_match_completely(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, "say, eight words are enough to be looked for here") == WHY
    assert reason(step, "eight words are enough to be looked at") is None
    assert reason(step, "it is too short to count, this") is None


def test_ngrams_do_not_span_documents(evaluation):
    retained, dropped = run(
        Decontaminate(against=(evaluation,)), " ".join(WORDS[:10]), " ".join(WORDS[10:20]), QUESTION
    )
    assert len(retained) == 2
    assert dropped.examples == {f"decontaminate: {WHY}": [("2.txt", QUESTION[:200])]}


def test_evaluation_texts_from_json_fields(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [{"question": " ".join(WORDS[:13]), "answer": " ".join(WORDS[20:33])}, {"question": "short", "id": 3}]
    path.write_text("\n".join(map(json.dumps, rows)))
    step = Decontaminate(against=(str(tmp_path / "*.jsonl"),), fields=("question", "answer"))
    assert step.input_files() == (str(path),)
    assert reason(step, " ".join(WORDS[:13])) == reason(step, " ".join(WORDS[20:33])) == WHY


def test_evaluation_file_as_one_text(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("\n".join([" ".join(WORDS[:7]), " ".join(WORDS[7:14])]))
    assert reason(Decontaminate(against=(str(path),), texts="file"), " ".join(WORDS[:14])) == WHY


def test_only_a_newline_ends_an_evaluation_text(tmp_path):
    """A line separator inside a text would make two pieces, each too short to be compared."""
    path = tmp_path / "a.txt"
    path.write_text(f"{QUESTION}\n{' '.join(WORDS[30:37])}\u2028{' '.join(WORDS[37:44])}\n")
    assert reason(Decontaminate(against=(str(path),)), " ".join(WORDS[30:44])) == WHY


@pytest.mark.parametrize("language", LANGUAGES)
def test_evaluation_text_without_spaces_is_found_within_a_page(language, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(sentence(language, 7))
    step = Decontaminate(against=(str(path),))
    assert reason(step, page(language, *range(20))) == WHY
    assert reason(step, page(language, *range(8, 28))) is None
    assert reason(step, page(language, 1, 2) + sentence(language, 7)[:16] + page(language, 3, 4)) is None


def test_cutting_keeps_distant_text(evaluation):
    step = Decontaminate(against=(evaluation,), cut=True, around=10, min_piece_characters=20)
    before, after = "é" * 40 + " ", " " + "b" * 50
    retained, dropped = run(step, before + QUESTION + after, notes={"url": "here"})
    assert [(document.text, document.source) for document in retained] == [
        ("é" * 31, "0.txt@0"),
        ("b" * 41, f"0.txt@{len(before + QUESTION) + 10}"),
    ]
    assert not dropped.counts
    retained, dropped = run(step, QUESTION, "short " + QUESTION)
    assert not retained
    assert dropped.counts == {f"decontaminate: {WHY}": 2}


def test_document_with_too_many_pieces_is_dropped(evaluation):
    step = Decontaminate(against=(evaluation,), cut=True, around=0, min_piece_characters=0, max_pieces=2)
    between = " and so on "
    assert len(run(step, between.join([QUESTION] * 3)[: -len(QUESTION)])[0]) == 2
    assert reason(step, between.join([QUESTION] * 4)) == f"{WHY}, cut into more than 2 pieces"


ENGLISH = "The quick brown fox jumps over the lazy dog while the old farmer sleeps by the open window."
FRENCH = "L'été dernier, nous avons déjà mangé des crêpes sucrées à l'hôtel près de la forêt enneigée."
TRADITIONAL = "漢字與頭髮發現。看著乾隆皇帝的乾燥頭髮。後來臺灣的朋友說這裡裏面什麼都沒有瞭解。"
SIMPLIFIED = "汉字与头发发现。看着乾隆皇帝的干燥头发。后来台湾的朋友说这里里面什么都没有了解。"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
KATAKANA = "ガギグゲゴ、パピプペポの文字列です"
HALF_WIDTH = "\uff76\uff9e\uff77\uff9e\uff78\uff9e\uff79\uff9e\uff7a\uff9e、" + "".join(
    f"{kana}\uff9f" for kana in "\uff8a\uff8b\uff8c\uff8d\uff8e"
)
KOREAN = "나는 어제 친구와 함께 오래된 시장에서 따뜻한 국수를 먹고 집으로 천천히 걸어서 돌아왔다"
GERMAN = "Straße und Fluß, Maße und Größe, alles ist so wie es immer schon war"
WIDE = str.maketrans({code: code + 0xFEE0 for code in range(0x21, 0x7F)})
LINKED = (
    "The [[quick brown fox|quick]] brown <ref name=a>See p. 3.</ref>fox '''jumps''' over the lazy [[dog]] while the old"
)


def nfd(text):
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(
    ("exam", "text"),
    [
        (TRADITIONAL, SIMPLIFIED),
        (SIMPLIFIED, TRADITIONAL),
        (nfd(FRENCH), FRENCH),
        (FRENCH, nfd(FRENCH)),
        (KOREAN, nfd(KOREAN)),
        (JAPANESE, nfd(JAPANESE)),
        (KATAKANA, HALF_WIDTH + "の文字列です"),
        (ENGLISH.replace("quick", "qu\xadick").replace("window", "win\xaddow"), ENGLISH),
        (
            ENGLISH,
            ENGLISH.replace("farmer", "far\u200bmer").replace("jumps", "\ufeffjumps\u2060").replace("o", "o\u200d"),
        ),
        (ENGLISH.translate(WIDE), ENGLISH),
        (ENGLISH, ENGLISH.translate(WIDE).replace(" ", "\u3000")),
        ("<p>" + ENGLISH.replace("quick", "<b class='x'>qu</b>ick").replace(" old", "&nbsp;old<br>") + "</p>", ENGLISH),
        (ENGLISH, ENGLISH.replace("fox", '<a href="https://example.org/a?b=c">fox</a>').replace("dog", "d&#111;g")),
        (LINKED, ENGLISH),
        (ENGLISH, ENGLISH.replace("brown fox", "[brown fox](https://example.org/fox)")),
        (ENGLISH.replace("fo", "\U0001d41f\U0001d428"), ENGLISH),
        (GERMAN.upper(), GERMAN),
        (
            "The o\ufb03ce of the \ufb01rst \ufb02oor \ufb01nds \ufb01ve \ufb01sh",
            "The office of the first floor finds five fish",
        ),
        (ENGLISH.replace(" ", "\n", 5), ENGLISH.replace(" ", "\r\n", 5)),
    ],
)
def test_equivalent_spellings_match(tmp_path, exam, text):
    path = tmp_path / "exam.jsonl"
    path.write_text(json.dumps({"text": exam}))
    assert reason(Decontaminate(against=(str(path),)), f"Before it. {text} And after.") == WHY


def test_unrelated_texts_are_retained(tmp_path):
    path = tmp_path / "exam.txt"
    path.write_text("\n".join([ENGLISH, FRENCH, TRADITIONAL, JAPANESE, KOREAN, LINKED]))
    other_items = [
        ENGLISH.replace("jumps", "leaps").replace("open", "closed"),
        FRENCH.replace("mangé", "mange"),  # a letter without its accent is another letter
        SIMPLIFIED[:10] + "不是" + SIMPLIFIED[20:25],
        JAPANESE[:10] + "、" + JAPANESE[20:30],
        "if a < b and c > d: return vector<int>(a, b, c, d) & mask[[0]] or the quick brown fox",
        "<p>See p. 3.</p> <ref name=a>The quick brown fox jumps over the lazy dog</ref>",
    ]
    retained, _ = run(Decontaminate(against=(str(path),)), *other_items)
    assert [document.text for document in retained] == other_items


def test_evaluation_texts_pass_earlier_steps(tmp_path):
    """Otherwise documents that the steps change would no longer share a run of words with the evaluation texts."""
    question = "Please write to jane.doe@mail.example.co.uk or call +1 (415) 555-2671 about the job before Monday."
    words = ENGLISH.split()
    poem = f"{' '.join(words[:6])}\nShare on Facebook\n{' '.join(words[6:13])}"
    path = tmp_path / "exam.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in (question, poem)))
    last = Decontaminate(against=(str(path),))
    dropped = DropCounts()
    assert not list(run_steps([Scrub(), DropLines(), last], [Document(question, "a"), Document(poem, "b")], dropped))
    assert dropped.counts == {f"decontaminate: {WHY}": 2}
    # A step that only drops documents is not run on evaluation texts: this one would fail.
    assert list(run_steps([KeepIf(call="os.path:no_such_function"), last], [], DropCounts())) == []


def test_cutting_uses_offsets_of_original_text(evaluation):
    step = Decontaminate(against=(evaluation,), cut=True, around=0, min_piece_characters=1)
    written = nfd("<i>Ünïcödé</i> &amp; 한국어 \ufb03\uff61 ")
    question = QUESTION.replace("word1 ", "<b>wo\xadrd</b>1 ")
    retained, _ = run(step, written + question + "!" + written)
    assert [document.text for document in retained] == [written, "!" + written]


ODD = [
    "<b>",
    "</b>",
    "<p>",
    "&amp;",
    "&lt;",
    "漢字",
    "한",
    "e\u0301",
    "\ufb01",
    "\xad",
    "ß",
    "\uff76\uff9e",
    "[[a|",
    "]]",
]


@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from([*ODD, *map(nfd, ODD)]))))
def test_comparable_text_offsets(pieces):
    text = "".join(pieces)
    compared, starts, ends = comparable_text_with_offsets(text)
    assert compared == comparable_text(text)
    assert len(starts) == len(ends) == len(compared)
    assert (starts < ends).all()
    assert (starts[1:] >= starts[:-1]).all()


@given(known=st.sets(st.integers(0, 2**64 - 1)), requested=st.lists(st.integers(0, 2**64 - 1)))
def test_hash_set_finds_known_hashes(known, requested):
    requested = requested + list(known)
    result = HashSet(np.array(sorted(known), np.uint64)).indexes_of(np.array(requested, np.uint64))
    assert result.tolist() == [location for location, value in enumerate(requested) if value in known]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": ("nowhere.txt",)}, r"against \(nowhere.txt\) is not a file: correct the path"),
        ({"against": ()}, "against is empty"),
        ({"against": ("a",), "ngram": 7}, r"ngram \(7\) must be 8 words or more"),
        ({"against": ("a",), "texts": "words"}, r"texts \(words\) must be `line` or `file`"),
    ],
)
def test_invalid_decontaminate_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        run(Decontaminate(**options), "text")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short.txt", "a few words\n", "have no text of 8 words or more"),
        ("bad.jsonl", "{\n", r"bad.jsonl:1 is not JSON"),
        ("other.jsonl", '\n{"question": "x"}\n', r"other.jsonl:2 has no text in `text`: set `fields`"),
    ],
)
def test_invalid_evaluation_files_are_rejected(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        run(Decontaminate(against=(str(tmp_path / name),)), "text")


def test_changed_evaluation_file_is_reread(evaluation):
    step = Decontaminate(against=(evaluation,))
    assert reason(step, QUESTION) == WHY
    with open(evaluation, "w") as file:
        file.write("another text of as many as eight words\n")
    assert reason(step, QUESTION) is None


def test_evaluation_text_that_fails_is_not_an_error_of_documents(tmp_path):
    """Else each document would be dropped as one on which the step failed."""
    path = tmp_path / "exam.txt"
    path.write_text("a" + "\u0301" * 2000)
    documents = [Document("a text", "a.txt")]
    with pytest.raises(UserError, match=r"decontaminate: a text of .*exam\.txt cannot be compared \(ValueError: more"):
        list(run_steps([Decontaminate((str(path),))], documents, DropCounts(), "skip"))
