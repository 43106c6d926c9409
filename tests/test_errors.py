"""Sentences of errors: quoted messages and messages of pydantic."""

from typing import Annotated

import pytest
from pydantic import AfterValidator, TypeAdapter, ValidationError

from data_pipeline.settings import parse_settings
from data_pipeline.sources import Source
from megaptm.errors import UserError, describe_invalid_value


@pytest.mark.parametrize("end", [":", ";", ",", "."])
def test_quoted_sentence_loses_its_period(end):
    error = UserError(f"a.json is damaged (it is empty: copy it again.){end} go on")
    assert str(error) == f"a.json is damaged (it is empty: copy it again){end} go on"


def test_lone_surrogate_is_described():
    with pytest.raises(UserError, match=r"^recipe: path must be valid Unicode, not '\\ud800'\.$"):
        parse_settings(Source, {"path": "\ud800"}, "recipe")


def refuse(value):
    raise ValueError("Nothing is good enough.")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (bytes, 3, "must be a valid bytes, not 3."),
        (Annotated[int, AfterValidator(refuse)], 3, "(3): nothing is good enough."),
        (int, "a", "must be an integer, not 'a'."),
    ],
)
def test_errors_of_pydantic_are_sentences(kind, value, message):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert describe_invalid_value(caught.value.errors()[0]) == message
