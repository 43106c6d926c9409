import pytest

from data_pipeline.clean.language import CLASSIFIED_CHARACTERS, KeepLanguage, TagLanguage
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import reason, run

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
