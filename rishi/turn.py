"""The turn loop: one message in, events out, the history committed or left as it was. There is one loop, here.

A turn works on a list of its own; the chat's history changes only at the end. So an error leaves no trace, and an
interrupt keeps what was written: the partial answer goes into the history, marked `finish_reason: cancelled`.
"""
from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import replace

from . import kv
from .dialect import Splitter
from .encode import encode, extend
from .engine import Step, Token
from .errors import BadRequest, ContextWindowExceededError
from .types import CacheReport, Done, Event, Resp, StepReport, TextDelta, ThinkingDelta, UsageStats

__all__ = ['run']


def run(chat, message: dict | None, sampling, stop) -> Iterator[Event]:
    "One turn of `chat`; `message` None goes on from the history. The last event is `Done`."
    turn = _Turn(chat, message)
    try:
        yield from turn.step(sampling, stop)
        turn.commit()
        yield Done(turn.resp, chat.use, chat._report, turn.finish)
    except (GeneratorExit, KeyboardInterrupt):
        turn.finish = 'cancelled'
        turn.commit()
        raise


class _Turn:
    "What one turn has gathered so far; `messages` is the history with its own additions."

    def __init__(self, chat, message):
        self.chat, self.messages = chat, list(chat.hist)
        if message: self.messages.append(message)
        if not self.messages or self.messages[-1]['role'] == 'assistant':
            raise BadRequest('There is nothing to answer: give a message.')
        self.text = self.thinking = ''
        self.finish, self.steps, self.resp, self.done = 'cancelled', [], None, False

    def step(self, sampling, stop):
        "Render, evaluate what is new, generate, and tell thinking from text."
        chat, eng = self.chat, self.chat.engine
        eng.check_open()
        wanted = chat._messages(self.messages)
        prompt = chat._render(wanted)
        enc = encode(prompt, chat._known, eng)
        room = min(chat.ctx_limit, eng.n_ctx) - len(enc.ids)
        if room < 1: raise ContextWindowExceededError(len(enc.ids), len(enc.ids) + room)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        split = Splitter(chat.dialect, chat.dialect.thinking(prompt[-200:]))
        step, seen = Step(), []
        try: yield from self._read(eng.stream(list(enc.ids), sampling, stop, step), split, seen)
        except (GeneratorExit, KeyboardInterrupt):
            list(self._events(split.end(), 0))
            self._account(enc, step, seen, wanted)
            raise
        self.finish = step.finish
        self._account(enc, step, seen, wanted)

    def _read(self, stream, split, seen):
        "The engine's pieces as events; `seen` gathers the tokens that were read."
        decode, n = codecs.getincrementaldecoder('utf-8')('replace').decode, 0
        try:
            for item in stream:
                if not isinstance(item, Token):
                    yield item
                    continue
                seen.append(item)
                n += 1
                for e in self._events(split.feed(decode(item.data)), n):
                    n = 0
                    yield e
            yield from self._events(split.feed(decode(b'', True)) + split.end(), n)
        finally: stream.close()          # waits until the engine has let go, so that `step` is final

    def _events(self, parts, tokens):
        for kind, text in parts:
            if kind == 'think': self.thinking += text
            else: self.text += text
            yield (ThinkingDelta if kind == 'think' else TextDelta)(text, tokens)
            tokens = 0

    def _account(self, enc, step, seen, wanted):
        "Remember what was evaluated, and why."
        chat = self.chat
        why, lost = self._why(enc, step, wanted)
        chat._known = extend(enc, b''.join(t.data for t in seen), [t.id for t in seen], chat.engine)
        chat._had, chat._seen = step.held, wanted
        self.steps.append(StepReport(
            prompt_tokens=len(enc.ids), cached=step.cached, evaluated=step.evaluated, generated=len(step.generated),
            ttft=step.ttft, prefill_s=step.prefill_s, decode_s=step.decode_s, why=why, lost=lost,
            did='thought' if self.thinking and not self.text else 'answered'))

    def _why(self, enc, step, wanted):
        chat = self.chat
        shared = kv.common_prefix_len(chat._known.ids, enc.ids)
        return kv.reason(chat._seen, wanted, kept=step.cached, had=chat._had, shared=shared,
                         settings=chat._settings_changed(), changed_at=lambda: chat._message_at(wanted, enc, shared))

    def commit(self):
        "The turn becomes history, unless the model wrote nothing at all."
        if self.done: return
        self.done, chat = True, self.chat
        meta = {'finish_reason': self.finish, 'model': chat.engine.name}
        self.resp = Resp(role='assistant', content=self.text, **({'thinking': self.thinking} if self.thinking else {}),
                         meta=meta)
        if self.text or self.thinking:
            chat.hist[:] = [*self.messages, dict(self.resp)]
            if chat._seen: chat._seen = [*chat._seen, chat.hist[-1]]
        last = self.steps[-1] if self.steps else StepReport()
        chat.use = UsageStats(last.prompt_tokens, last.generated, last.cached, 1)
        chat._report = CacheReport(tuple(self.steps), chat.ctx_limit, chat.engine.n_tokens, chat._kv_bytes())
        chat.turn_res = self.resp
