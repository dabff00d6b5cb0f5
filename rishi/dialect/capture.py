"""One call while it is being written: from its opening mark to its end, whatever the pieces."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..types import ToolCall
from .calls import guess
from .marks import find, skip_space
from .scan import Plain

__all__ = ['Body', 'Form', 'Capture', 'WINDOW']

WINDOW = 200            # characters that must be enough to tell what follows


@dataclass(frozen=True)
class Body:
    """A way of writing a call: `starts(first characters)` tells whether this is one (None: too early to say),
    `scan(closes, first characters)` makes the scanner that finds its end, `parse(text, tools, closed)` reads it."""
    starts: Callable
    scan: Callable
    parse: Callable


@dataclass(frozen=True)
class Form:
    """The marks around a call, and what may stand between them. `lead` is what of the opening mark belongs to the call
    itself; a form without an opening mark stands for a whole answer, and is text again if it is no call after all."""
    open: str
    close: tuple[str, ...]
    bodies: tuple[Body, ...]
    lead: str = ''


class Capture:
    "Takes text until the call ends. `stop` is a mark that ends it unfinished; `plain` trusts the first closing mark."

    def __init__(self, form: Form, tools, *, seed=None, stop='', plain=False):
        self.form, self.tools, self.stop, self.plain = form, tools, stop, plain
        self.seed = form.open if seed is None else seed
        self.raw, self.body, self.scan, self.cut_off = [self.seed], None, None, False

    @property
    def text(self) -> str:
        "All that was taken."
        return ''.join(self.raw)

    def step(self, buf: str, pos: int, final: bool) -> tuple[int, str]:
        """Go on in `buf` from `pos`. Returns where it stands and 'go', 'wait' (for more text), 'call' (complete),
        'text' (no call at all) or 'stop' (before the stop mark)."""
        if self.scan is None: return self._begin(buf, pos, final)
        if self.scan.asks: return self._look(buf, pos, final)
        marks = (*self.scan.marks, self.stop) if self.stop else self.scan.marks
        mark, at = find(marks, buf, pos, final)
        self.raw.append(buf[pos:at])
        if mark is None: return at, 'wait'
        if mark == self.stop: return at, 'stop'
        self.raw.append(mark)
        self.scan.mark(mark)
        return at + len(mark), 'call' if self.scan.done else 'go'

    def _begin(self, buf, pos, final):
        at = self._space(buf, pos)
        s = buf[at:at + WINDOW]
        if not s: return at, 'wait'
        for body in self.form.bodies:
            fits = body.starts(s)
            if fits is None and not final: return at, 'wait'
            if fits:
                self.body = body
                self.scan = Plain(self.form.close) if self.plain else body.scan(self.form.close, s)
                return at, 'go'
        return at, 'text'

    def _look(self, buf, pos, final):
        at = self._space(buf, pos)
        s = buf[at:at + WINDOW]
        took = self.scan.look(s, final) if s else None
        if took is None: return at, 'wait'
        self.raw.append(buf[at:at + took])
        return at + took, 'call' if self.scan.done else 'go'

    def _space(self, buf, pos):
        at = skip_space(buf, pos)
        self.raw.append(buf[pos:at])
        return at

    def end(self) -> tuple[str, str]:
        "Nothing follows: 'call' or 'text', and what must be read again because it was not part of the call after all."
        if self.scan is None: return 'text', ''
        if self.scan.whole: return 'call', ''
        text = self.text
        ends = [at + len(c) for c in self.form.close if (at := text.find(c, len(self.seed))) >= 0]
        if not ends or self.plain:
            self.cut_off = True
            return 'call', ''
        self.raw = [text[:min(ends)]]
        return 'call', text[min(ends):]

    def calls(self) -> list[ToolCall]:
        "What was asked for; a call that cannot be run says why in `error`."
        raw = self.text.strip()
        inner = self.form.lead + self.text[len(self.form.open):].rstrip()
        if self.cut_off: return [ToolCall(guess(inner), {}, '', raw, 'the call was cut off before it ended')]
        inner = next((inner[:-len(c)] for c in self.form.close if inner.endswith(c)), inner)
        try: found = self.body.parse(inner, self.tools, True)
        except (ValueError, RecursionError) as e:
            return [ToolCall(guess(inner), {}, '', raw, f'the call cannot be read: {e}')]
        return [replace(c, raw=c.raw if len(found) > 1 and c.raw else raw) for c in found]
