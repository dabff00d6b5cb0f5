"""Conversations longer than the window: what is left out, and when. The system prompt is never part of it.

A history falls into groups, each a user's message with all that answers it; groups are kept or dropped whole, so that
no tool call loses its result.
"""
from __future__ import annotations

from bisect import bisect_left

from .callbacks import ChatCallback
from .errors import BadRequest, ContextWindowExceededError
from .history import follow_up, follows, said, turns
from .tools import clip

__all__ = ['SlidingWindowCallback', 'groups', 'drop', 'recover_context', 'transcript']

SUMMARY = 'Summary of the conversation before: '
CUTS = (2000, 500, 120)      # characters that are left of each tool result when all else is too long


def groups(messages) -> list[list[dict]]:
    "The history cut before each user's message; a summary, or what stands before the first, is a group of its own."
    notes = [i for i, m in enumerate(messages) if follows(m) == 'summary']
    starts = sorted({0, *turns(messages), *notes}) if messages else []
    return [messages[a:b] for a, b in zip(starts, [*starts[1:], len(messages)])]


class SlidingWindowCallback(ChatCallback):
    """Drops the oldest groups before a step whenever the prompt fills more than `at` (a share) of the window, until it
    fills at most `to`. The first `keep_first` and last `keep_last` groups stay (the last always: it is being answered).
    `summarize` puts a few sentences by the model in the place of what was dropped. `dropped` counts messages."""
    order = -30

    def __init__(self, at=.8, to=.5, keep_first=0, keep_last=1, summarize=False):
        if not 0 < to <= at <= 1: raise BadRequest(f'at={at}, to={to}: it must be 0 < to <= at <= 1.')
        self.at, self.to, self.keep_first, self.keep_last = at, to, keep_first, max(keep_last, 1)
        self.summarize, self.dropped = summarize, 0

    def before_step(self, chat, messages):
        if chat._size(messages) <= self.at * chat.ctx_limit: return None
        first, gone, rest = drop(chat, messages, self.to * chat.ctx_limit, self.keep_first, self.keep_last)
        if not gone: return None
        self.dropped += len(gone)
        return first + (self._note(chat, gone) if self.summarize else []) + rest

    def _note(self, chat, gone):
        ask = 'Summarise this conversation in three sentences:\n\n' + transcript(chat, gone)
        try: short = str(chat.oneshot(ask, sp='', max_output_tokens=max(chat.ctx_limit // 10, 1))).strip()
        except ContextWindowExceededError: short = ''
        return [follow_up(SUMMARY + short, 'summary')] if short else []


def drop(chat, messages, budget, keep_first=0, keep_last=1) -> tuple[list, list, list]:
    """What to leave out so that the prompt has at most `budget` tokens, or as near as that gets: `(first, gone, rest)`.
    As few of the oldest groups go as will do; system messages stay."""
    lead = next((i for i, m in enumerate(messages) if m['role'] != 'system'), len(messages))
    parts = groups(messages[lead:])
    first = messages[:lead] + _flat(parts[:keep_first])
    rest = parts[keep_first:]
    fits = lambda n: chat._size(first + _flat(rest[n:])) <= budget
    n = bisect_left(range(max(len(rest) - keep_last, 0)), True, key=fits)
    return first, _flat(rest[:n]), _flat(rest[n:])


def _flat(parts): return [m for p in parts for m in p]


def recover_context(chat, messages) -> list[dict]:
    """`messages` so that they fit with room for an answer, as far as that is possible: without their oldest groups,
    then with shorter tool results. The last group stays."""
    budget = chat.ctx_limit * .6
    first, _, rest = drop(chat, messages, budget)
    tries = (first + rest, *(_shorter(first + rest, n) for n in CUTS))
    return next((t for t in tries if chat._size(t) <= budget), tries[-1])


def _shorter(messages, n):
    cut = lambda m: m['role'] == 'tool' or follows(m)
    return [m | {'content': clip(said(m), n)} if cut(m) and len(said(m)) > n else m for m in messages]


def transcript(chat, messages, share=.6) -> str:
    "The conversation as text for `chat` to read: its newest part that fills at most `share` of the window."
    text, most = '\n'.join(f'{m["role"]}: {said(m)}' for m in messages if said(m)), chat.ctx_limit * share
    while (n := chat.count_tokens(text)) > most: text = text[len(text) - int(len(text) * most / n * .95):]
    return text
