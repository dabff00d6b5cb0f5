"""The harmony format (gpt-oss): a step is a row of messages, each with a header that names its channel.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

`analysis` is thinking, `final` and `commentary` are text, whatever has a recipient is a call. The prompt ends after
`<|start|>assistant`, so the first header may begin with a recipient.
"""
from __future__ import annotations

import re

from .calls import from_header
from .capture import WINDOW, Body, Capture, Form
from .machine import Machine
from .marks import skip_space
from .scan import Braces, Plain, begins

__all__ = ['Channels']

_ENDS = ('<|call|>', '<|end|>', '<|return|>')
_MARKS = (*_ENDS, '<|start|>', '<|channel|>', '<|message|>', '<|constrain|>')
_CHANNEL = re.compile(r'<\|channel\|>\s*(\w+)')
_JSON = Body(begins('{'), lambda closes, s: Braces(closes), from_header)
_OTHER = Body(lambda s: True, lambda closes, s: Plain(closes, free=True), from_header)
_FORM = Form('', _ENDS, (_JSON, _OTHER))
_HEADER = begins(' to=', 'to=', '<|')


class Channels(Machine):
    "Goes through the messages of one step."

    def __init__(self, dialect, out, start, tools):
        super().__init__(out, tools)
        self.kind, self.header, self.first = 'think' if start == 'open' else 'text', None, start == 'unset'

    def step(self, buf, pos, final):
        return self._begin(buf, pos, final) if self.first and not self.capture else super().step(buf, pos, final)

    def _marks(self): return _MARKS

    def _begin(self, buf, pos, final):
        "A header, or an answer without one?"
        at = skip_space(buf, pos)
        fits = _HEADER(buf[at:at + 8]) if at < len(buf) else None
        if fits is None and not final: return at, True
        self.first, self.header = False, '' if fits else None
        return at, False

    def _take(self, text):
        "Content, a header, or what is too long for one; text that no header began is for the reader."
        if self.header is None: return self.out.say(self.kind, text)
        self.header += text
        if len(self.header) <= WINDOW: return
        self.kind, text, self.header = 'text', self.header, None
        self.out.say('text', text)

    def _mark(self, mark):
        if mark in _ENDS: self._next(None)
        elif mark == '<|start|>' or mark == '<|channel|>' and self.header is None: self._next(mark)
        elif mark == '<|message|>' and self.header is not None: self._message()
        else: self._take(mark)

    def _next(self, header):
        self.out.cut(self.kind)
        if self.kind == 'text': self.out.say('text', '\n')
        self.kind, self.header = 'text', header

    def _message(self):
        head, self.header = self.header, None
        channel = _CHANNEL.search(head)
        if 'to=' in head: self.capture = Capture(_FORM, self.tools, seed=head + '<|message|>', plain=self.plain)
        elif channel and channel[1] == 'analysis': self.kind = 'think'

    def _caught(self, capture, verdict):
        for call in capture.calls() if verdict == 'call' else (): self.out.call(call)
        self._next(None)
