"""Speakers of a dialogue and the starts of their turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ROLES = ("other", "system", "user", "assistant", "tool")
"""Roles of speakers that a corpus distinguishes. Any other name is `other`."""
ROLE_ALIASES = {"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
ROLE_ALIASES |= {"function": "tool", "developer": "system"}
"""Names of roles in published dialogue data sets -> role."""

BETWEEN = "\n"


def role_index(role: str) -> int:
    """Return the index of a speaker's role in `ROLES`."""
    name = role.lower()
    name = ROLE_ALIASES.get(name, name)
    return ROLES.index(name) if name in ROLES else 0


def text_and_turns(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[list[Any]]]:
    """Join the messages of a conversation with newlines; return the text and the note `turns`: [start, role] of each
    message.

    A message is {"role": ..., "content": ...} or {"from": ..., "value": ...}. Of a content list, the texts are used.
    Raises KeyError or TypeError for any other structure. A message without text is not a turn.
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
