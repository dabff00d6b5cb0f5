"""A turn's events as Markdown pieces: thinking as a blockquote, then the answer."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from .types import Event, TextDelta, ThinkingDelta

__all__ = ['markdown']


def markdown(events: Iterable[Event]) -> Iterator[str]:
    "The visible text of `events`, piece by piece."
    thinking = False
    try:
        for e in events:
            match e:
                case ThinkingDelta(text):
                    head = '' if thinking else '> **🧠 Thinking**\n>\n> '
                    thinking = True
                    yield head + text.replace('\n', '\n> ')
                case TextDelta(text):
                    head = '\n\n' if thinking else ''
                    thinking = False
                    yield head + text
    finally: events.close()
