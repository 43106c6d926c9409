"""Who speaks in a dialogue, from where on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ROLES = ("other", "system", "user", "assistant", "tool")
"""The roles that are told apart; any other name is `other`."""
ALSO = {"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
ALSO |= {"function": "tool", "developer": "system"}
"""What published sets of dialogues call them."""

BETWEEN = "\n"


def role_number(role: str) -> int:
    """Its place in `ROLES`."""
    name = role.lower()
    name = ALSO.get(name, name)
    return ROLES.index(name) if name in ROLES else 0


def text_and_turns(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[list[Any]]]:
    """The contents of messages on lines of their own, and [first character, role] of each: the note `turns`.

    A message is {"role": ..., "content": ...} or {"from": ..., "value": ...}; content that is a list keeps its texts.
    Raises KeyError or TypeError where it is something else. A message without text is not a turn.
    """
    texts: list[str] = []
    turns: list[list[Any]] = []
    at = 0
    for message in messages:
        role, content = (
            (message["role"], message["content"]) if "role" in message else (message["from"], message["value"])
        )
        if isinstance(content, list):
            content = BETWEEN.join(part["text"] for part in content if part.get("type") == "text")
        if not content:
            continue
        turns.append([at, role])
        texts.append(content)
        at += len(content) + len(BETWEEN)
    return BETWEEN.join(texts), turns
