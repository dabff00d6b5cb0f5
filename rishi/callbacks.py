"""What hangs on a turn: small objects with hooks, run in `order`. What a hook returns replaces what it was given, for
the callbacks after it too; None leaves it.

| hook | when | may return |
|---|---|---|
| `before_turn(chat, message)` | a message came | another message |
| `before_step(chat, messages)` | before each prompt | other messages: they become the history |
| `after_tool(chat, result)` | a tool call was answered | another ToolResult |
| `after_answer(chat, more, messages)` | the model has answered | a text that goes on, as if the user had said it; Say |
| `after_turn(chat, resp)` | the turn is history | |

Messages are never changed in place: a hook that raises ends the turn, and the conversation is as it was before.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .errors import BadRequest
from .history import turns
from .tools import clip
from .types import UsageStats

__all__ = ['ChatCallback', 'UsageCallback', 'ToolReminderCallback', 'TruncationCallback', 'Say', 'hooks', 'listed',
           'defaults']


class ChatCallback:
    "Base of all callbacks; those with a lower `order` come first. Override what is wanted. A fork gets copies."
    order = 0

    def before_turn(self, chat, message): pass
    def before_step(self, chat, messages): pass
    def after_tool(self, chat, result): pass
    def after_answer(self, chat, more, messages): pass
    def after_turn(self, chat, resp): pass

    def __repr__(self): return f'{type(self).__name__}()'


@dataclass(frozen=True)
class Say:
    """What `after_answer` may return: `text` goes to the model, after `events` to the reader; the turn goes on or ends.
    `what` says in the history what the text follows."""
    text: str
    what: str = 'answer'
    events: tuple = ()
    go_on: bool = True


def hooks(cbs, name, chat, value, *rest):
    "Hand `value` through the hook `name` of all `cbs`; what one returns goes to the next."
    for cb in sorted(cbs, key=lambda c: c.order):
        out = getattr(cb, name)(chat, value, *rest)
        if out is not None: value = out
    return value


def listed(cbs) -> list[ChatCallback]:
    "One callback or several as a list; a class stands for `cls()`. Raises BadRequest for what is none."
    several = () if cbs is None else [cbs] if isinstance(cbs, (ChatCallback, type)) or callable(cbs) else cbs
    out = [c() if isinstance(c, type) and issubclass(c, ChatCallback) else c for c in several]
    for c in out:
        if not isinstance(c, ChatCallback): raise BadRequest(f'{c!r} is no callback: derive it from ChatCallback.')
    return out


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
        n = chat.tool_max_len if self.max_len is None else self.max_len
        return None if n is None else replace(result, content=clip(result.content, n))


class ToolReminderCallback(ChatCallback):
    "A model that writes a tool call as prose, and calls nothing all turn, is told so, once a turn."
    order = 30

    def __init__(self): self.told = False
    def before_turn(self, chat, message): self.told = False

    def after_answer(self, chat, more, messages):
        if more is not None or self.told or not chat.toolbox: return None
        if any(m.get('tool_calls') for m in messages[max(turns(messages), default=0):]): return None
        name = _written(messages[-1]['content'], chat.toolbox.names)
        if name is None: return None
        self.told = True
        return f'You wrote about calling {name}, and did not call it. Make the call, or answer without it.'


_CODE = re.compile(r'(`+).*?\1', re.S)


def _written(text, names):
    "The first of `names` that `text` calls outside of code: `name(` or the JSON of a call."
    text = _CODE.sub('', text)
    return next((n for n in names if re.search(rf'(?<![\w.]){re.escape(n)}\(|"name":\s*"{re.escape(n)}"', text)), None)


def defaults() -> list[ChatCallback]:
    "The callbacks of every chat, unless it is made with `default_cbs=False`."
    return [UsageCallback(), TruncationCallback(), ToolReminderCallback()]
