import pytest

from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading


@pytest.fixture
def refusal():
    """The message of a build that is to stop at the first unreadable input: one sentence with the file's name."""

    def message(path, **options) -> str:
        with pytest.raises(UserError) as error:
            reading(path, on_error="fail", **options)
        sentence = str(error.value)
        assert str(path) in sentence
        assert "\n" not in sentence
        assert sentence.endswith("or skip such text with `on_error: skip`.")
        return sentence

    return message


@pytest.fixture
def chunk_bytes(monkeypatch):
    """Sets how much is read and decompressed at a time."""

    def set_to(size: int) -> None:
        for module in ("compression", "content"):
            monkeypatch.setattr(f"data_pipeline.sources.{module}.CHUNK_BYTES", size)

    return set_to
