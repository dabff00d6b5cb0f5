"""A turn's events as Markdown pieces: thinking as a blockquote, tool calls as lines, then the answer."""
from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from .types import Event, TextDelta, ThinkingDelta, ToolCall, ToolResult

__all__ = ['markdown', 'display_stream', 'Markdown']


class Markdown(str):
    "Text that a notebook shows as Markdown."
    def _repr_markdown_(self): return str(self)


def markdown(events: Iterable[Event]) -> Iterator[str]:
    "The visible text of `events`, piece by piece."
    last = None
    try:
        for e in events:
            gap = '\n\n' if last and (type(e) is not last or last in (ToolCall, ToolResult)) else ''
            match e:
                case ThinkingDelta(text):
                    head = '' if last is ThinkingDelta else gap + '> **🧠 Thinking**\n>\n> '
                    yield head + text.replace('\n', '\n> ')
                case TextDelta(text): yield gap + text
                case ToolCall(): yield f'{gap}⏳ `{_call(e)}`'
                case ToolResult(): yield f'{gap}→ `{_one_line(e.error or e.content)}`'
                case _: continue
            last = type(e)
    finally: events.close()


def _call(c): return f'{c.name}({", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in c.arguments.items())})'


def _one_line(text, most=200):
    line = ' '.join(text.split()).replace('`', "'")
    return line if len(line) <= most else line[:most] + '…'


def display_stream(pieces: Iterable[str]) -> Markdown:
    "Show the pieces of `chat(msg, stream=True)` as they come, rendered where a notebook is; returns the whole text."
    text, show = '', _notebook() or _terminal
    show = show()
    for p in pieces:
        text += p
        show(p, text)
    return Markdown(text)


def _terminal(): return lambda piece, text: print(piece, end='', flush=True)


def _notebook():
    "Something that updates a display, when this runs in a kernel; IPython is there already then."
    ipython = sys.modules.get('IPython')
    shell = ipython.get_ipython() if ipython else None
    if getattr(shell, 'kernel', None) is None: return None
    def start():
        handle = ipython.display.display({'text/plain': ''}, raw=True, display_id=True)
        return lambda piece, text: handle.update(Markdown(text))
    return start
