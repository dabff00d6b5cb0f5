"""What hangs on a turn: small objects with hooks, run in `order`. A hook that returns a value replaces what it was given.

| hook | when | may return |
|---|---|---|
| `before_turn(chat, message)` | a message came | another message |
| `before_step(chat, messages)` | before each prompt | other messages: they become the history |
| `after_tool(chat, result)` | a tool call was answered | another ToolResult |
| `after_answer(chat, more, messages)` | the model has answered | text to go on with, as if the user had said it |
| `after_turn(chat, resp)` | the turn is history | |
"""
from __future__ import annotations

from dataclasses import replace

from .tools import clip
from .types import UsageStats

__all__ = ['ChatCallback', 'UsageCallback', 'ToolReminderCallback', 'TruncationCallback', 'hooks', 'defaults']


class ChatCallback:
    "Base of all callbacks; those with a lower `order` come first. Override what is wanted."
    order = 0

    def before_turn(self, chat, message): pass
    def before_step(self, chat, messages): pass
    def after_tool(self, chat, result): pass
    def after_answer(self, chat, more, messages): pass
    def after_turn(self, chat, resp): pass

    def __repr__(self): return f'{type(self).__name__}()'


def hooks(cbs, name, chat, value, *rest):
    "Hand `value` through the hook `name` of all `cbs`; what one returns goes to the next."
    for cb in sorted(cbs, key=lambda c: c.order):
        out = getattr(cb, name)(chat, value, *rest)
        if out is not None: value = out
    return value


class UsageCallback(ChatCallback):
    "Adds up the turns: `total`."
    order = -20

    def __init__(self): self.total = UsageStats()
    def after_turn(self, chat, resp): self.total += chat.use


class TruncationCallback(ChatCallback):
    "Cuts tool results to `max_len` characters, by default the chat's `tool_max_len`; the cut says how much is gone."
    order = -10

    def __init__(self, max_len=None): self.max_len = max_len

    def after_tool(self, chat, result):
        n = self.max_len or chat.tool_max_len
        return replace(result, content=clip(result.content, n)) if n else None


class ToolReminderCallback(ChatCallback):
    "A model that writes about calling a tool, and does not call it, is told so, once a turn."
    order = 10

    def __init__(self): self.told = False
    def before_turn(self, chat, message): self.told = False

    def after_answer(self, chat, more, messages):
        text = messages[-1].get('content') or ''
        named = next((n for n in chat.toolbox.names if f'{n}(' in text or f'"name": "{n}"' in text), None)
        called = any(m.get('tool_calls') for m in messages[_last_user(messages):])
        if named is None or called or self.told: return None
        self.told = True
        return f'You wrote about calling {named}, and did not call it. Make the call, or answer without it.'


def _last_user(messages): return max((i for i, m in enumerate(messages) if m['role'] == 'user'), default=0)


def defaults() -> list[ChatCallback]:
    "The callbacks of every chat, unless it is made with `default_cbs=False`."
    return [UsageCallback(), TruncationCallback(), ToolReminderCallback()]
