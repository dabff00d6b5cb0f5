"""The turn loop: one message in, events out, the history committed or left as it was. There is one loop, here.

A turn is a list of steps: the model writes, its tool calls are run, it writes again. It works on a list of its own;
the chat's history changes only at the end. So an error leaves no trace, and an interrupt keeps what was written: the
partial answer goes into the history, marked `finish_reason: cancelled`, and a call without a result gets one that
says so.
"""
from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace

from . import history, kv
from .callbacks import Say, hooks
from .context import recover_context
from .dialect import Splitter
from .encode import encode, extend
from .engine import Step, Token
from .errors import BadRequest, ContextWindowExceededError
from .tools import asks, check, decide, failed, interrupted, run_many
from .types import (
    ApprovalNeeded,
    CacheReport,
    Done,
    Event,
    Resp,
    StepReport,
    TextDelta,
    ThinkingDelta,
    ToolResult,
    UsageStats,
)

__all__ = ['run', 'first_prompt', 'inside', 'Turn']

SPENT = 'the tool budget of this turn is spent'
NO_ANSWER = 'The model stopped inside its thinking, without an answer.'


class _Whole:
    "In the place of a Splitter for constrained answers: whatever they hold is the answer."
    def feed(self, text): return [('text', text)] if text else []
    def end(self): return []


def run(chat, message: dict | None, sampling, stop, cbs) -> Iterator[Event]:
    "One turn of `chat`; `message` None goes on from the history. Returns the last event, `Done`."
    turn = Turn(chat, message, cbs)
    try:
        yield from turn.go(sampling, stop)
        turn.commit()
        return Done(turn.resp, chat.use, chat._report, turn.finish)
    except (GeneratorExit, KeyboardInterrupt):
        turn.cut_off()
        turn.commit()
        raise


def first_prompt(chat, message: dict | None, max_tokens, cbs) -> list[int]:
    "The ids that `run` would send first. Raises ContextWindowExceededError when there is no room for them."
    turn = Turn(chat, message, [copy(cb) for cb in cbs])      # what a callback counts is counted in the turn alone
    turn.before()
    return list(turn._prompt(max_tokens)[1].ids)


inside: ContextVar[tuple] = ContextVar('rishi_turns', default=())      # the chats whose tools run here


@contextmanager
def _inside(chat):
    token = inside.set((*inside.get(), chat))
    try: yield
    finally: inside.reset(token)


class Turn:
    "What one turn has gathered so far; `messages` is the history with its own additions."

    def __init__(self, chat, message, cbs):
        self.chat, self.cbs, self.messages = chat, cbs, list(chat.hist)
        if message: self.messages.append(hooks(cbs, 'before_turn', chat, message))
        if not self.messages or self.messages[-1]['role'] == 'assistant':
            raise BadRequest('There is nothing to answer: give a message.')
        self.left, self.steps, self.resp, self.wrote, self.done = chat.max_steps, [], None, False, False
        self._fresh()

    def _fresh(self):
        self.text, self.thinking, self.calls, self.open, self.finish = '', '', [], [], 'cancelled'

    def go(self, sampling, stop):
        "Steps and tools until the model has answered."
        told = False
        while True:
            yield from self.step(sampling, stop)
            if stop.is_set() or self.finish == 'cancelled': return self.cut_off()
            calls = self.close_step()
            if calls:
                yield from self.answer(calls, stop)
                if stop.is_set(): return self.cut_off()
                if told: return
                if told := self.left <= 0: self._say(self.chat.final_prompt, 'budget')
            elif (more := self._more()) is None: return
            else:
                yield from more.events
                self._say(more.text, more.what)
                if not more.go_on: return

    def _say(self, text, what): self.messages.append(history.follow_up(text, what))

    def _more(self):
        "What callbacks say to a whole answer."
        if self.finish != 'stop' or self.messages[-1]['role'] != 'assistant': return None
        more = hooks(self.cbs, 'after_answer', self.chat, None, self.messages)
        return more if more is None or isinstance(more, Say) else Say(more)

    # --- one step -----------------------------------------------------------------------------------------------------
    def before(self):
        "Callbacks look at the messages of the next prompt; what they make of them is a valid conversation too."
        new = hooks(self.cbs, 'before_step', self.chat, self.messages)
        if new is not self.messages: self.messages = history.checked(new)

    def step(self, sampling, stop):
        "Render, evaluate what is new, generate, and tell thinking, text and calls apart."
        chat, eng = self.chat, self.chat.engine
        self._fresh()
        eng.check_open()
        self.before()
        wanted, enc, start, room = self._prompt(sampling.max_tokens)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
        constraint, step, seen = chat._constraint(), Step(), []
        split = self._splitter(constraint, start)
        stream = eng.stream(list(enc.ids), sampling, stop, step, constraint, owner=chat._key,
                            branch=bool(chat._seen) and not kv.extends(chat._seen, wanted))
        try: yield from self._read(stream, split, seen)
        except (GeneratorExit, KeyboardInterrupt):
            list(self._events(split.end(), 0))
            self._account(enc, step, seen, wanted)
            raise
        self.finish = step.finish
        self._account(enc, step, seen, wanted)

    def _prompt(self, max_tokens):
        "The messages and their encoding, where the model starts, and the tokens left; shortened when that is needed."
        chat = self.chat
        limit = chat.ctx_limit
        for again in (True, False):
            wanted = chat._messages(self.messages)
            prompt, start = chat._prompt(wanted)
            enc = encode(prompt, chat._known, chat.engine)
            room = limit - len(enc.ids)
            if room >= min(max_tokens or limit, max(limit // 8, 1)): break
            if again: self.messages = recover_context(chat, self.messages)
        if room < 1: raise ContextWindowExceededError(len(enc.ids), limit)
        return wanted, enc, start, room

    def _splitter(self, constraint, start):
        return _Whole() if constraint else Splitter(self.chat.dialect, start, self.chat.toolbox.schemas)

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
        for kind, value in parts:
            if kind == 'call':
                value = replace(value, id=self._id(value))
                self.calls.append(value)
                yield value
                continue
            if kind == 'think': self.thinking += value
            else: self.text += value
            yield (ThinkingDelta if kind == 'think' else TextDelta)(value, tokens)
            tokens = 0

    def _id(self, call):
        "The model's own id where it gives one, else ours; unique in its step."
        taken = {c.id for c in self.calls}
        return call.id if call.id and call.id not in taken else f'call_{len(self.messages)}_{len(self.calls) + 1}'

    def close_step(self):
        "The step becomes an assistant's turn, unless the model wrote nothing; returns its calls, now open."
        self.open, self.calls = self.calls, []
        if self.finish == 'stop' and self.open: self.finish = 'tool_calls'
        meta = {'finish_reason': self.finish, 'model': self.chat.engine.name}
        if raw := [c.raw for c in self.open if c.error]: meta['raw'] = raw      # what could not be read stays visible
        if self.thinking and not self.text and not self.open and self.finish == 'stop': meta['notice'] = NO_ANSWER
        m = history.assistant(self.text, self.thinking, self.open, **meta)
        self.resp = Resp(m)
        if self.text or self.thinking or self.open:
            self.messages, self.wrote = [*self.messages, m], True
            if self.chat._seen: self.chat._seen = [*self.chat._seen, m]
        self.text = self.thinking = ''
        return list(self.open)

    # --- tools --------------------------------------------------------------------------------------------------------
    def answer(self, calls, stop):
        "Ask for approval, run what may run, answer every call, in order."
        chat = self.chat
        allowed = calls[:max(self.left, 0)]
        self.left -= len(allowed)
        groups = [allowed] if chat.parallel_tools else [[c] for c in allowed]
        for group in groups: yield from self._run(group, stop)
        for call in calls[len(allowed):]: yield self._close(failed(call, SPENT))

    def _run(self, calls, stop):
        refused, chat = {}, self.chat
        for call in calls:
            no = interrupted(call) if stop.is_set() else check(call, chat.toolbox)
            if no is None:
                if asks(call, chat.approve): yield ApprovalNeeded(call)
                with _inside(chat): no = decide(call, chat.approve, stop)
            if no is not None: refused[call.id] = no
        ready = run_many([c for c in calls if c.id not in refused], chat.toolbox, parallel=chat.parallel_tools,
                         max_parallel=chat.max_parallel_tools, stop=stop)
        for call in calls:
            if call.id not in refused:
                with _inside(chat): refused[call.id] = next(ready)
            yield self._close(refused[call.id])

    def _close(self, result: ToolResult):
        result = hooks(self.cbs, 'after_tool', self.chat, result)
        self.open = [c for c in self.open if c.id != result.call.id]
        self.messages.append(history.tool(result.call, result.content))
        return result

    # --- the end ------------------------------------------------------------------------------------------------------
    def cut_off(self):
        "Close what an interrupt or a stop left open."
        self.finish = 'cancelled'
        if not self.open and (self.text or self.thinking or self.calls or self.resp is None): self.close_step()
        for call in self.open: self.messages.append(history.tool(call, interrupted(call).content))
        self.open = []
        mine = next((m for m in reversed(self.messages) if m['role'] == 'assistant'), None)
        if self.wrote: mine['meta']['finish_reason'] = 'cancelled'

    def commit(self):
        "The turn becomes history, unless the model wrote nothing at all."
        if self.done: return
        self.done, chat = True, self.chat
        was = list(chat.hist), chat.use, chat._report, chat.turn_res
        if self.wrote: chat.hist[:] = self.messages
        chat.use = sum((UsageStats(s.prompt_tokens, s.generated, s.cached) for s in self.steps), UsageStats(turns=1))
        chat._report = CacheReport(tuple(self.steps), chat.ctx_limit, chat._had, chat._kv_bytes())
        chat.turn_res = self.resp
        try: hooks(self.cbs, 'after_turn', chat, self.resp)
        except BaseException:
            chat.hist[:], chat.use, chat._report, chat.turn_res = was
            raise

    # --- accounts -----------------------------------------------------------------------------------------------------
    def _account(self, enc, step, seen, wanted):
        "Remember what was evaluated, and why."
        chat = self.chat
        why, lost = self._why(enc, step, wanted)
        chat._known = extend(enc, b''.join(t.data for t in seen), [t.id for t in seen], chat.engine)
        chat._had, chat._seen = min(step.held, len(chat._known.ids)), wanted     # what was not read is not had
        self.steps.append(StepReport(
            prompt_tokens=len(enc.ids), cached=step.cached, evaluated=step.evaluated, generated=len(step.generated),
            ttft=step.ttft, prefill_s=step.prefill_s, decode_s=step.decode_s, why=why, lost=lost, did=self._did()))

    def _did(self):
        done = ['thought'] if self.thinking else []
        if self.calls: done.append('called ' + ', '.join(c.name or '?' for c in self.calls))
        if self.text or not done: done.append('answered')
        return ', '.join(done)

    def _why(self, enc, step, wanted):
        chat = self.chat
        shared = kv.common_prefix_len(chat._known.ids, enc.ids)
        return kv.reason(chat._seen, wanted, kept=step.cached, had=chat._had, shared=shared,
                         settings=chat._settings_changed(), can_trim=not step.rigid,
                         changed_at=lambda: chat._message_at(wanted, enc, shared))
