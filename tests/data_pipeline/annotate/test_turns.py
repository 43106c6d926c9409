"""Messages become a text and the offsets where their speakers start."""

import pytest

from data_pipeline.annotate.turns import ROLES, role_index, text_and_turns


def test_messages_are_joined_by_newlines():
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image"}]},
        {"role": "assistant", "content": None},
        {"from": "gpt", "value": "Hi 😀"},
    ]
    text, turns = text_and_turns(messages)
    assert text == "Be kind.\nHello\nHi 😀"
    assert turns == [[0, "system"], [9, "user"], [15, "gpt"]]


@pytest.mark.parametrize(
    ("name", "role"), [("User", "user"), ("human", "user"), ("gpt", "assistant"), ("ROMEO", "other"), ("tool", "tool")]
)
def test_role_aliases(name, role):
    assert ROLES[role_index(name)] == role


def test_invalid_message_raises():
    with pytest.raises(KeyError):
        text_and_turns([{"speaker": "a"}])
