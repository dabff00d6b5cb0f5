"""Idle prefill: while nobody asks, the prompt of the next turn is evaluated as far as it is known. Opt-in.

A template may rewrite the turn that has just ended (most drop its thinking), and then the next turn pays for its answer
again; here that is done before it is asked for. The work goes in small batches, each queued behind whatever came
meanwhile, and a request that comes during one breaks it off. Nothing of anybody else's is moved for it.
"""
from __future__ import annotations

import weakref

from . import snapshots
from .encode import Encoded, encode
from .engine import END, PoolFull
from .errors import RishiError
from .kv import choose, common_prefix_len
from .owner import Stop

__all__ = ['begin', 'end']

BATCH = 32                       # tokens: what a request may cost the work that it breaks off
PROBES = ('Why?', '7 of them')   # what all next messages share is what two different ones share


def begin(chat):
    "A turn of `chat` has ended: go on with the next one while the engine has nothing else to do."
    if not chat.idle_prefill or chat._key is None: return
    chat._idle = work = _Work(chat)
    chat.engine.owner.later(work.run)


def end(chat):
    "A turn of `chat` begins: the work is given up, and what it has rewritten counts as known."
    work, chat._idle = chat._idle, None
    if work is None: return
    work.over = True
    if work.complete and chat._known is work.base: chat._known, chat._had = work.wanted, len(work.wanted.ids)


class _Work:
    "`wanted` is the known prefix of the next prompt; `base` what the chat knew when it was rendered."

    def __init__(self, chat):
        self.chat, self.engine, self.key = weakref.ref(chat), chat.engine, chat._key
        self.messages, self.base, self.wanted = list(chat.hist), chat._known, None
        self.over = self.complete = False

    def run(self):
        "One batch on the engine's thread, then to the end of the queue."
        owner, chat = self.engine.owner, self.chat()
        if self.over or chat is None or owner.closed or self.key not in self.engine.keys: return
        owner.aside = stop = Stop()
        try: more = owner.busy or self._batch(chat, stop)
        except RishiError: return            # a template that refuses, an engine that fails: the next turn tells
        finally: owner.aside = None
        if more: owner.later(self.run)

    def _batch(self, chat, stop) -> bool:
        "Evaluate some tokens; True when there is more to do."
        if self.wanted is None: self.wanted = self._prefix(chat)
        eng, ids = self.engine, list(self.wanted.ids)
        choice = choose(eng.slots, self.key, [*ids, END], eng.can_trim, False)
        if not ids or choice.how != 'own' or choice.slot.seq is None: return False
        slot = eng._place([*ids, END], self.key, branch=False)
        edges = snapshots.edges(ids, eng.is_eog, eng.is_control) if eng.snaps else set()
        at = len(slot.cells)
        to = min(at + min(BATCH, eng.batch), len(ids), *(e for e in edges if e > at))
        if at < to and not self._eval(slot, ids[at:to], stop):
            return stop.is_set() or (eng._spare(slot) and eng._make_room(slot))
        if to in edges: snapshots.keep(eng, slot)
        self.complete = to == len(ids)
        return not self.complete

    def _eval(self, slot, tokens, stop) -> bool:
        "Evaluate `tokens`; False when it was broken off or there is no room."
        eng, at = self.engine, len(slot.cells)
        try: whole = eng._eval(tokens, slot.seq, at, eng._never if eng.snaps else stop)
        except PoolFull: return False
        if whole: slot.cells.extend(tokens)
        else: eng._cut(slot, at)
        return whole

    def _prefix(self, chat) -> Encoded:
        "What the prompts of all next turns begin with; nothing when that would fill the window."
        a, b = (self._prompt(chat, text) for text in PROBES)
        n = common_prefix_len(a.ids, b.ids)
        size = sum(len(chat.engine.piece(i)) for i in a.ids[:n])
        if n > chat.ctx_limit * 7 // 8 or a.data[:size] != b''.join(map(chat.engine.piece, a.ids[:n])): return Encoded()
        return Encoded(a.data[:size], a.ids[:n], tuple(m for m in a.marks if m[1] < n))

    def _prompt(self, chat, text):
        messages = chat._messages([*self.messages, {'role': 'user', 'content': text}])
        return encode(chat._render(messages), self.base, chat.engine)
