"""`ScriptedEngine`: a model that says what it is told, through the real parser and the real loop.

For tests of whatever is built on `Chat`, ours and yours: `Chat(engine=ScriptedEngine(['<think>hm</think>4', 'bye']))`.
"""
from __future__ import annotations

import re
import time

from .dialect import Template
from .engine import Engine
from .errors import EngineError

__all__ = ['ScriptedEngine']


class ScriptedEngine(Engine):
    """Gives `replies` (raw texts) one a step, in pieces of `size` characters, `delay` seconds apart; a reply that is an
    exception is raised. Its tokens are UTF-8 bytes and ChatML's marks; what it was asked is in `prompts`."""
    CONTROL = ('<|im_start|>', '<|im_end|>')

    def __init__(self, replies=(), *, template=None, n_ctx=8192, size=4, delay=0.0, batch=256):
        super().__init__('scripted')
        self.vocab_size, self.n_seq = 258, 8
        self.replies, self.size, self.delay, self.batch, self.n_ctx = list(replies), size, delay, batch, n_ctx
        self.template, self.n_threads, self.prompts, self._pieces = Template(template), 1, [], []

    def tokenize(self, data, first):
        out = []
        for part in re.split(b'(' + b'|'.join(re.escape(c.encode()) for c in self.CONTROL) + b')', data):
            known = part.decode(errors='replace')
            out += [256 + self.CONTROL.index(known)] if known in self.CONTROL else list(part)
        return out

    def piece(self, id):
        if id < 256: return bytes([id])
        return self.CONTROL[id - 256].encode() if id < 258 else self._pieces[id - 258].encode()

    def is_control(self, id): return 256 <= id < 258
    def is_eog(self, id): return id == 257
    def _trim(self, seq, n): return True
    def _copy(self, seq, to, n): pass
    def _kv_bytes(self, seq): return len(self.held)

    def _eval(self, tokens, seq, at, stop):
        if self.delay: time.sleep(self.delay)
        return not stop.is_set()

    def _sampler(self, sampling, constraint):
        self.prompts.append(b''.join(map(self.piece, self.held)).decode(errors='replace'))
        if not self.replies: raise EngineError('The script has ended: give ScriptedEngine one reply for each step.')
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException): raise reply
        pieces = iter([reply[i:i + self.size] for i in range(0, len(reply), self.size)])
        return lambda: self._next(next(pieces, None))

    def _next(self, piece):
        if piece is None: return 257
        self._pieces.append(piece)
        return 257 + len(self._pieces)
