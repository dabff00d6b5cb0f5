"""Raw text in, thinking and answer out, whatever the chunking; cost linear in the text's length.

The rules: an opening mark starts thinking only while this step has not finished thinking before and the mark does
not stand in code (backticks or a fence); otherwise it is text like any other. What may still become a mark is held
back; `end` lets it go. White space around thinking is dropped, as the templates that render it do.
"""
from __future__ import annotations

import re

__all__ = ['Splitter']

_EDGE = re.compile(r'`+|\n[ \t]*\n')


class Splitter:
    "Feed it pieces of one step's raw text; it returns `(kind, text)` pairs with kind 'think' or 'text'."

    def __init__(self, dialect, start='unset'):
        self.open, self.close = dialect.think
        self.state = 'think' if start == 'open' else 'text'
        self.may_think = start == 'unset'
        self._buf, self._code, self._fresh, self._gap = '', 0, self.state == 'think', ''

    def feed(self, text: str) -> list[tuple[str, str]]:
        "The events that `text` completes; adjacent ones of a kind are joined."
        self._buf += text
        out = []
        while self._advance(out): pass
        return _join(out)

    def end(self) -> list[tuple[str, str]]:
        "What was held back, when no more will come."
        out, rest, self._buf = [], self._buf, ''
        if rest: self._emit(rest, out)
        return _join(out)

    def _advance(self, out):
        mark = self.close if self.state == 'think' else self.open if self.may_think else None
        at = self._find(mark)
        if at is None:
            keep = _held(self._buf, mark, self.state)
            ready, self._buf = self._buf[:len(self._buf) - keep], self._buf[len(self._buf) - keep:]
            if ready: self._emit(ready, out)
            return False
        ready, self._buf = self._buf[:at], self._buf[at + len(mark):]
        if ready: self._emit(ready, out)
        self._turn()
        return True

    def _find(self, mark):
        "Where `mark` stands in the buffer; in the answer, marks inside code do not count."
        if mark is None: return None
        code, start = self._code, 0
        while (at := self._buf.find(mark, start)) >= 0:
            if self.state == 'text': code = _code_after(code, self._buf[start:at])
            if self.state == 'think' or not code: return at
            start = at + len(mark)
        return None

    def _turn(self):
        self.state, self.may_think = ('text', False) if self.state == 'think' else ('think', False)
        self._fresh, self._gap, self._code = True, '', 0

    def _emit(self, text, out):
        if self._fresh:
            text = text.lstrip()
            if not text: return
            self._fresh = False
        if self.state == 'think':
            body = text.rstrip()
            text, self._gap = (self._gap + body, text[len(body):]) if body else ('', self._gap + text)
        else: self._code = _code_after(self._code, text)
        if text: out.append((self.state, text))


def _code_after(code, text):
    "How many backticks hold the code open after `text`, given how many did before it; 0 is prose."
    if not code and '`' not in text: return 0
    for m in _EDGE.finditer(text):
        run = m.group()
        if run[0] == '\n': code = 0 if code < 3 else code
        elif not code: code = len(run)
        elif len(run) == code or len(run) > code >= 3: code = 0
    return code


def _held(buf, mark, state):
    "How many last characters of `buf` may still turn out to be something else."
    if mark is None: return 0
    n = next((k for k in range(min(len(mark) - 1, len(buf)), 0, -1) if mark.startswith(buf[-k:])), 0)
    if n or state == 'think': return n
    return len(buf) - len(buf.rstrip('`\n \t')) if buf[-1:] in '`\n \t' else 0


def _join(parts):
    out = []
    for kind, text in parts:
        if out and out[-1][0] == kind: out[-1] = (kind, out[-1][1] + text)
        else: out.append((kind, text))
    return out
