"""Conversations longer than the window: what is left out, and when. The system prompt is never part of it.

A history falls into groups, each a user's message with all that answers it; groups are kept or dropped whole, so that no
tool call loses its result.
"""
from __future__ import annotations

from .callbacks import ChatCallback
from .errors import BadRequest, ContextWindowExceededError
from .history import said, turns

__all__ = ['SlidingWindowCallback', 'groups', 'drop', 'recover_context']

SUMMARY = 'Summary of the earlier conversation: '


def groups(messages) -> list[list[dict]]:
    "The history cut before each user's message; what stands before the first is a group of its own."
    starts = sorted({0, *turns(messages)}) if messages else []
    return [messages[a:b] for a, b in zip(starts, [*starts[1:], len(messages)])]


class SlidingWindowCallback(ChatCallback):
    """Drops the oldest groups before a step whenever the prompt fills more than `at` (a share) of the window, until it
    fills at most `to`. `keep_first` and `keep_last` groups stay (the last always: it is being answered). `summarize`
    puts what was dropped into a few sentences, written by the model and kept in the first message that stays."""
    order = -30

    def __init__(self, at=.8, to=.5, keep_first=0, keep_last=1, summarize=False):
        if not 0 < to <= at <= 1: raise BadRequest(f'at={at}, to={to}: it must be 0 < to <= at <= 1.')
        self.at, self.to, self.keep_first, self.keep_last = at, to, keep_first, max(keep_last, 1)
        self.summarize, self.dropped = summarize, 0

    def before_step(self, chat, messages):
        if chat._size(messages) <= self.at * chat.ctx_limit: return None
        kept, gone = drop(chat, messages, self.to * chat.ctx_limit, self.keep_first, self.keep_last)
        if not gone: return None
        self.dropped += len(gone)
        return self._summed(chat, kept, gone) if self.summarize else kept

    def _summed(self, chat, kept, gone):
        text = '\n'.join(f'{m["role"]}: {said(m)}' for m in gone if said(m))[-2 * chat.ctx_limit:]
        try: short = str(chat.oneshot(f'Summarise this conversation in three sentences:\n\n{text}', max_output_tokens=120))
        except ContextWindowExceededError: return kept
        first = next(i for i, m in enumerate(kept) if m['role'] == 'user')
        note = dict(kept[first], content=f'{SUMMARY}{short}\n\n{said(kept[first])}')
        return [*kept[:first], note, *kept[first + 1:]]


def drop(chat, messages, budget, keep_first=0, keep_last=1):
    "Leave out the oldest groups until the prompt has at most `budget` tokens: `(kept, gone)` messages."
    parts, gone = groups(messages), []
    over = chat._size(messages) - budget
    while over > 0 and len(parts) > keep_first + keep_last:
        part = parts.pop(keep_first)
        gone += part
        over -= sum(chat.count_tokens(said(m)) for m in part)
        if over <= 0: over = chat._size(_flat(parts)) - budget
    return _flat(parts), gone


def _flat(parts): return [m for p in parts for m in p]


def recover_context(chat, messages) -> list[dict]:
    "`messages` without their oldest groups, so that they fit with room for an answer; what cannot be dropped stays."
    return drop(chat, messages, chat.ctx_limit * .6)[0]
