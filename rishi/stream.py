"""A turn's events as Markdown pieces: thinking as a blockquote, tool calls as lines, then the answer."""
from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator

from .types import Done, Event, Progress, TextDelta, ThinkingDelta, ToolCall, ToolResult, notice

__all__ = ['markdown', 'display_stream', 'Markdown']

PAUSE = .05              # seconds at least between two updates of a display


class Markdown(str):
    "Text that a notebook shows as Markdown."
    def _repr_markdown_(self): return str(self)


def markdown(events: Iterable[Event]) -> Iterator[str]:
    "The visible text of `events`, piece by piece; what is not one text stands in paragraphs of its own."
    last, apart, events = None, False, iter(events)
    try:
        for e in events:
            apart = apart or isinstance(e, (Progress, ToolCall, ToolResult)) or type(e) is not last
            if (piece := _piece(e, not apart)) is None: continue
            yield '\n\n' + piece if apart and last else piece
            last, apart = type(e), False
    finally:
        if hasattr(events, 'close'): events.close()


def _piece(e, goes_on):
    match e:
        case ThinkingDelta('') | TextDelta(''): return None
        case ThinkingDelta(text): return ('' if goes_on else '> **🧠 Thinking**\n>\n> ') + text.replace('\n', '\n> ')
        case TextDelta(text): return text
        case ToolCall(): return f'⏳ `{_one_line(_call(e))}`'
        case ToolResult(): return f'→ `{_one_line(e.error or e.content)}`'
        case Done(resp) if notice(resp): return f'*{notice(resp)}*'


def _call(c):
    args = ', '.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in c.arguments.items())
    return f'{c.name}({args})'


def _one_line(text, most=200):
    line = ' '.join(text.split()).replace('`', "'")
    return line if len(line) <= most else line[:most] + '…'


def display_stream(pieces: Iterable[str]) -> Markdown:
    "Show the pieces of `chat(msg, stream=True)` as they come, rendered where a notebook is; returns the whole text."
    return Markdown((_rendered if _in_kernel() else _printed)(pieces))


def _printed(pieces):
    text = ''
    try:
        for p in pieces:
            print(p, end='', flush=True)
            text += p
    finally: print()
    return text


def _rendered(pieces):
    "Updated at most every PAUSE seconds: each update sends the text so far. IPython is loaded already in a kernel."
    handle = sys.modules['IPython'].display.display(Markdown(), display_id=True)
    text, shown, due = '', '', 0.0
    try:
        for p in pieces:
            text += p
            if time.monotonic() < due: continue
            handle.update(Markdown(text))
            shown, due = text, time.monotonic() + PAUSE
    finally:
        if shown != text: handle.update(Markdown(text))
    return text


def _in_kernel():
    ipython = sys.modules.get('IPython')
    return getattr(ipython.get_ipython() if ipython else None, 'kernel', None) is not None
