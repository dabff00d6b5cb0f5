"""Is this place of a Markdown text code? Backticks and fences, followed piece by piece."""
from __future__ import annotations

import re

__all__ = ['Code']

_EDGE = re.compile(r'`+|\n')


class Code:
    """Follows a text. Code between one or two backticks ends with its line at the latest, so that a stray backtick
    cannot hide what comes later; a fence (three or more) ends at a fence as long."""

    def __init__(self): self._open = self._run = 0

    def feed(self, text: str):
        "Go on by `text`."
        if self._run and text[:1] not in ('', '`'): self._turn()
        if not self._open and '`' not in text: return
        for m in _EDGE.finditer(text):
            if m.group() == '\n': self._open = self._open if self._open >= 3 else 0
            else:
                self._run += len(m.group())
                if m.end() < len(text): self._turn()

    @property
    def inside(self) -> bool:
        "Whether what comes next, which is no backtick, is code."
        if self._run: self._turn()
        return self._open > 0

    def _turn(self):
        run, self._run = self._run, 0
        if not self._open: self._open = run
        elif run == self._open or run > self._open >= 3: self._open = 0
