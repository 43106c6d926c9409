import math

import pytest

from data_pipeline.clean.language import CLASSIFIED_CHARACTERS, KeepLanguage, TagLanguage, identify_language
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run
from tests.data_pipeline.fasttext_models import write_fasttext

pytest.importorskip("py3langid")

ENGLISH = "The quick brown fox jumps over the lazy dog while the children of the village are playing in the garden."
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund, während die Kinder des Dorfes im Garten spielen."
CHINESE = "这是一个关于语言识别的句子\uff0c它应该被认出来是中文\uff0c而不是别的语言。"


def test_tag_language_adds_note():
    retained, dropped = run(TagLanguage(), ENGLISH, GERMAN, CHINESE, notes={"url": "here"})
    assert [document.notes for document in retained] == [
        {"url": "here", "language": name} for name in ("en", "de", "zh")
    ]
    assert not dropped.counts


def test_other_languages_are_dropped():
    retained, dropped = run(KeepLanguage(languages=("en", "zh")), ENGLISH, GERMAN, CHINESE)
    assert [document.notes["language"] for document in retained] == ["en", "zh"]
    assert dropped.counts == {"keep-language: not en or zh": 1}
    assert dropped.examples["keep-language: not en or zh"] == [("1.txt", GERMAN)]


def test_uncertain_languages_are_dropped():
    assert reason(KeepLanguage(), "yes it is") == "en with a probability below 0.65"
    assert reason(KeepLanguage(min_probability=0.0), "yes it is") is None


def test_only_start_of_text_is_classified():
    long = ENGLISH * (CLASSIFIED_CHARACTERS // len(ENGLISH) + 1)
    assert reason(KeepLanguage(), long + GERMAN * 100) is None


def test_unknown_language_is_rejected():
    with pytest.raises(UserError, match="keep-language: language `english` is not known: use ace, af, "):
        run(KeepLanguage(languages=("english",)), ENGLISH)


def test_invalid_language_options_are_rejected():
    with pytest.raises(UserError, match="languages is empty"):
        KeepLanguage(languages=())
    with pytest.raises(UserError, match=r"min_probability \(65\) must be from 0 to 1"):
        KeepLanguage(min_probability=65)


WORDS = {"the": 1.0, "hund": -1.0, "und": 0.0}
"""Numbers of a model of fastText with the labels of GlotLID."""


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("fasttext")
    return str(write_fasttext(tmp_path / "model.bin", WORDS, {"eng_Latn": 2.0, "deu_Latn": -2.0}))


def test_fasttext_models_name_languages(model):
    retained, _ = run(TagLanguage(model), "the und\nthe", "hund hund", "nothing known")
    assert [document.notes["language"] for document in retained] == ["eng_Latn", "deu_Latn", "unknown"]
    assert identify_language("the the und", model) == (
        "eng_Latn",
        pytest.approx(1 / (1 + math.exp(-4 * 2 / 3)), abs=1e-4),
    )
    assert TagLanguage(model).input_files() == (model,)


@pytest.mark.parametrize("as_file", [False, True])
def test_thresholds_by_language(model, as_file, tmp_path):
    """The same text is kept or dropped by the threshold of its language; others have `min_probability`."""
    table = {"eng_Latn": 0.95, "deu_Latn": 0.6}
    if as_file:
        lines = "".join(f"{language}\t{threshold}\n" for language, threshold in table.items())
        (tmp_path / "thresholds.tsv").write_text("# FineWeb-2\n\n" + lines)
    step = KeepLanguage(thresholds=str(tmp_path / "thresholds.tsv") if as_file else table, model=model)
    retained, dropped = run(step, "the the und", "hund hund und", "nothing")
    assert [document.notes["language"] for document in retained] == ["deu_Latn"]
    assert dropped.counts == {
        "keep-language: eng_Latn with a probability below 0.95": 1,
        "keep-language: not eng_Latn or deu_Latn": 1,
    }
    assert run(KeepLanguage(("eng_Latn",), 0.9, {"deu_Latn": 0.1}, model), "the the und")[0]


def by_length(text):
    return ("short" if len(text) < 10 else "long"), 1


def uncertain(text):
    return "en", math.nan


def test_a_probability_that_is_no_number_is_too_low():
    assert reason(KeepLanguage(model=f"{__name__}:uncertain"), "text") == "en with a probability below 0.65"


def test_messages_name_the_step_and_the_first_language():
    with pytest.raises(UserError, match=r"^tag-language: missing\.bin cannot be read"):
        run(TagLanguage("missing.bin"), ENGLISH)
    with pytest.raises(UserError, match="language `qa` is not known"):
        run(KeepLanguage(languages=("qc", "qa", "qb")), ENGLISH)


def test_functions_name_languages():
    retained, dropped = run(KeepLanguage(languages=("long",), model=f"{__name__}:by_length"), "a long text", "text")
    assert [document.notes["language"] for document in retained] == ["long"]
    assert dropped.counts == {"keep-language: not long": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": {"en": 2.0}}, r"thresholds \(en: 2\.0\) must be from 0 to 1"),
        ({"thresholds": "missing.tsv"}, "missing.tsv cannot be read"),
        ({"thresholds": {"xx": 0.5}}, "language `xx` is not known"),
        ({"model": "missing.bin"}, "missing.bin cannot be read"),
    ],
)
def test_invalid_thresholds_and_models_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        run(KeepLanguage(**options), ENGLISH)


def test_unknown_language_of_a_model_is_rejected(model):
    with pytest.raises(UserError, match="language `en` is not known: use deu_Latn, eng_Latn"):
        run(KeepLanguage(model=model), ENGLISH)
