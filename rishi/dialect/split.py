"""Raw text in, thinking, answer and tool calls out, whatever the chunking; cost linear in the text's length.

What is decided here, for all families:
- An opening mark starts thinking once a step at most, and not in code (backticks or a fence); otherwise it is text.
  A closing mark before any answer is dropped; elsewhere it is text.
- A call's mark counts when what follows it looks like a call, and not in code; otherwise it is text.
- A call ends where its arguments end: a closing mark inside a string is part of the string.
- A call inside thinking is thought, not asked for, if thinking or an answer follows it. If nothing does, because the
  model forgot to close its thinking, it is run.
- A call that cannot be read is still a call, with an empty `arguments` and the reason in `error`.
- Text is held back only while it may still become a mark, or is white space that may turn out to end the answer.
"""
from __future__ import annotations

from .capture import Capture
from .channels import Channels
from .code import Code
from .machine import Machine
from .out import Out

__all__ = ['Splitter']


class Splitter:
    """Feed it pieces of one step's raw text; it returns `(kind, value)` pairs: 'think' and 'text' with a text, 'call'
    with a ToolCall. `start` is what `dialect.thinking` says of the prompt. `tools` are the schemas on offer: they give
    untyped arguments their types, and without them ([]) an answer that is JSON is never taken for a call."""

    def __init__(self, dialect, start: str = 'unset', tools: list[dict] | None = None):
        self._out, self._buf = Out(exact=start == 'unset'), ''
        self._machine = (Channels if dialect.channels else _Marks)(dialect, self._out, start, tools)

    def feed(self, text: str) -> list[tuple]:
        "The parts that `text` completes; neighbours of a kind are one."
        return self._run(text, False)

    def end(self) -> list[tuple]:
        "What was held back, when no more will come."
        parts, again = self._run('', True), self._machine.end()
        while again:
            parts += self._run(again, True)
            again = self._machine.end()
        self._out.end()
        return _join(parts + self._out.take())

    def _run(self, text, final):
        buf, pos, waits = self._buf + text, 0, False
        while not waits: pos, waits = self._machine.step(buf, pos, final)
        self._buf = buf[pos:]
        return self._out.take()


class _Marks(Machine):
    "Text with marks in it: all families but harmony."

    def __init__(self, dialect, out, start, tools):
        super().__init__(out, tools)
        self.d = dialect
        self.forms = {f.open: f for f in dialect.calls if f.open}
        self.closers = tuple(c for f in dialect.calls for c in f.close)
        self.whole = next((f for f in dialect.calls if not f.open), None) if tools != [] else None
        self.kind, self.may_think = ('think', False) if start == 'open' else ('text', start == 'unset')
        self.code, self.thought = Code(), []
        self.said, self.called = False, False
        if self.kind == 'text': self._answer()

    def end(self):
        rest = super().end()
        if not rest:
            asked, self.thought = self.thought, []
            for capture in asked: self._call(capture)
        return rest

    def _answer(self):
        "The answer begins: it may be one call without marks."
        self.said = self.called = False
        if self.whole: self.capture = Capture(self.whole, self.tools)

    def _marks(self):
        marks = (*self.forms, *self.d.noise)
        if self.kind == 'think': return (self.d.think[1], *marks)
        if self.may_think: marks += self.d.think[:1]
        return marks + (() if self.said else self.d.think[1:]) + (self.closers if self.called else ())

    def _mark(self, mark):
        opens, closes = self.d.think
        if self._is_text(mark): self._take(mark)
        elif mark in self.forms: self._capture(self.forms[mark])
        elif mark == opens:
            self.kind, self.may_think = 'think', False
            self.out.cut('text')
        elif mark == closes:
            if self.kind == 'think': self.kind, self.code = 'text', Code()
            self.out.cut('text')
            self._answer()

    def _is_text(self, mark):
        if self.kind == 'think': return False
        late = mark == self.d.think[1] and self.said or mark in self.closers and not self.called
        return late or self.code.inside

    def _capture(self, form):
        thinks = self.kind == 'think'
        self.capture = Capture(form, self.tools, stop=self.d.think[1] if thinks else '', plain=self.plain)

    def _caught(self, capture, verdict):
        if verdict != 'call': self._take(capture.text)
        elif self.kind == 'think': self.thought.append(capture)
        else: self._call(capture)

    def _call(self, capture):
        calls, text = capture.calls(), capture.text
        if not capture.form.open and not all(self._offered(c) for c in calls): return self._take(text)
        self._only_thought()
        for call in calls: self.out.call(call)
        self.called = True
        self.out.say('text', text[len(text.rstrip()):])

    def _offered(self, call):
        names = {t.get('function', t).get('name') for t in self.tools or ()}
        return not call.error and (not names or call.name in names)

    def _take(self, text):
        if not text: return
        if text.isspace() and self.kind == 'think' and self.thought: return self.thought[-1].raw.append(text)
        if not text.isspace():
            self._only_thought()
            if self.kind == 'text': self.said, self.called = True, False
        if self.kind == 'text': self.code.feed(text)
        self.out.say(self.kind, text)

    def _only_thought(self):
        "Something follows the calls in the thinking: they are thinking."
        for capture in self.thought: self.out.say('think', capture.text)
        self.thought = []


def _join(parts):
    out = []
    for kind, value in parts:
        if out and out[-1][0] == kind != 'call': out[-1] = (kind, out[-1][1] + value)
        else: out.append((kind, value))
    return out
