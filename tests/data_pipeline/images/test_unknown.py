"""A build of images with texts warns of words that the tokenizer does not know."""

from data_pipeline.corpus.unknown import UnknownWords
from data_pipeline.recipe import TokenizerRecipe
from megaptm.tokenizers import train_tokenizer_on_texts
from tests.data_pipeline.images.pictures import build, picture


def test_unknown_words_of_captions_give_a_warning(tmp_path):
    text = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs."
    train_tokenizer_on_texts("wordpiece", [text], vocabulary=120, specials="roberta").save(tmp_path / "tokenizer")
    (source := tmp_path / "source").mkdir()
    for number, text in enumerate(["a brown fox", "한국어 텍스트"]):
        (source / f"{number}.jpg").write_bytes(picture(seed=number))
        (source / f"{number}.txt").write_text(text)
    tokenizer = TokenizerRecipe(folder=str(tmp_path / "tokenizer"))
    report = build(source, tmp_path / "corpus", texts=True, tokenizer=tokenizer, validation=0.0)
    assert report.unknown_words == {"Hangul": UnknownWords(2, 2, "한국어"), "Latin": UnknownWords(3, 0, "")}
    [note] = report.notes
    assert note.startswith("100.0% of the words in Hangul documents are unknown to the tokenizer and lost")
    assert f"<p class=note>{note[:40]}" in (tmp_path / "corpus/report.html").read_text()
