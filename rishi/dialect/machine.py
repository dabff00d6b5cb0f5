"""Reading marks in a growing text, for all families: text up to the next mark, the mark, a call being caught."""
from __future__ import annotations

from .marks import find

__all__ = ['Machine']


class Machine:
    """Base of what goes through the raw text of one step. `step` goes on in a buffer and says where it is and whether
    it waits for more; `end` returns what is to be read again. A family says which `_marks` count, what becomes of a
    mark (`_mark`), of the text before it (`_take`) and of a capture that has ended (`_caught`)."""

    def __init__(self, out, tools):
        self.out, self.tools, self.capture, self.plain = out, tools, None, False

    def step(self, buf, pos, final):
        if self.capture: return self._captured(*self.capture.step(buf, pos, final))
        mark, at = find(self._marks(), buf, pos, final)
        self._take(buf[pos:at])
        if mark is None: return at, True
        self._mark(mark)
        return at + len(mark), False

    def end(self):
        rest = ''
        if self.capture:
            verdict, rest = self.capture.end()
            self._captured(0, verdict)
        self.plain = True
        return rest

    def _captured(self, pos, verdict):
        if verdict in ('go', 'wait'): return pos, verdict == 'wait'
        capture, self.capture = self.capture, None
        self._caught(capture, verdict)
        return pos, False
