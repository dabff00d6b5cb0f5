"""A turn as it grows: a pure fold over the events. No input, no clock: `apply` is told the seconds since the start."""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from rishi.errors import RishiError
from rishi.types import ApprovalNeeded, Done, Progress, TextDelta, ThinkingDelta, ToolCall, ToolResult, resp_text

__all__ = ['Header', 'Thought', 'Said', 'Answer', 'Card', 'State', 'apply', 'decide', 'stop', 'fail']


@dataclass(frozen=True)
class Header:
    "Whose turn it is: names as they are shown, the window in tokens, a note such as 'turn 2 replaced'."
    chat: str = 'main'
    model: str = ''
    turn: int = 0
    window: int = 0
    note: str = ''


@dataclass(frozen=True)
class Thought:
    "A stretch of thinking; it began and ended at these seconds of the turn."
    text: str = ''
    began: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class Said:
    "A stretch of the answer."
    text: str = ''


@dataclass(frozen=True)
class Answer:
    "What a person says to a tool call: run it, or not and `why`; `always` means from now on."
    ok: bool
    always: bool = False
    why: str = ''


@dataclass(frozen=True)
class Card:
    "A tool call; `asked` while somebody has to approve it, then their `answer`; `result` once it ran or was refused."
    call: ToolCall
    began: float = 0.0
    asked: bool = False
    answer: Answer | None = None
    result: ToolResult | None = None


@dataclass(frozen=True)
class State:
    """A turn so far. `phase` is start, wait, download, load, media, prefill, thinking, answering, tool, approval, done,
    stopped or error, since second `since`; `tokens` were generated since `first`, when a step's first token came.
    `about` says in a line what each tool does; `buttons` are drawn below a question once clicks are known to arrive."""
    header: Header = field(default_factory=Header)
    fmt: str = 'markdown'
    reasoning: bool = True
    stats: bool = True
    about: dict = field(default_factory=dict)
    buttons: bool = False
    phase: str = 'start'
    t: float = 0.0
    since: float = 0.0
    progress: Progress | None = None
    prompt: Progress | None = None
    parts: tuple = ()
    tokens: int = 0
    first: float = 0.0
    done: Done | None = None
    error: tuple[str, bool, str] | None = None      # class, whether it is one of rishi's, message

    @property
    def over(self): return self.phase in ('done', 'stopped', 'error')


def apply(state, event, t) -> State:
    "`state` after `event`, which came `t` seconds into the turn."
    match event:
        case Progress(): return _progress(state, event, t)
        case ThinkingDelta(): return _grow(state, 'thinking', event, t)
        case TextDelta(): return _grow(state, 'answering', event, t)
        case ToolCall(): return _card(_to(state, 'tool', t), Card(event, t))
        case ApprovalNeeded(): return _card(_to(state, 'approval', t), Card(event.call, t, asked=True))
        case ToolResult(): return _result(state, event, t)
        case Done(): return _end(state, event, t)
    raise TypeError(f'{type(event).__name__} is no event of a turn.')


def _to(state, phase, t, **changes):
    if phase != 'thinking': state = _close_thought(state, t)
    return replace(state, phase=phase, t=t, since=state.since if phase == state.phase else t, **changes)


def _close_thought(state, t):
    last = state.parts[-1] if state.parts else None
    if state.phase != 'thinking' or not isinstance(last, Thought): return state
    return replace(state, parts=(*state.parts[:-1], replace(last, ended=t)))


def _progress(state, event, t):
    new = dict(progress=event)
    if event.stage == 'prefill': new |= dict(prompt=event, tokens=0)
    return _to(state, event.stage, t, **new)


def _grow(state, phase, event, t):
    kind = Thought if phase == 'thinking' else Said
    if state.phase != phase and not event.text: return replace(state, t=t, tokens=state.tokens + event.tokens)
    first = state.first if state.tokens else t
    state = _to(state, phase, t, tokens=state.tokens + event.tokens, first=first)
    last = state.parts[-1] if state.parts else None
    if isinstance(last, kind): part, kept = replace(last, text=last.text + event.text), state.parts[:-1]
    else: part, kept = (Thought(event.text, t) if kind is Thought else Said(event.text)), state.parts
    return replace(state, parts=(*kept, part))


def _at(state, call):
    "Where the open card of `call` is, or None."
    open_ = (i for i, p in enumerate(state.parts) if isinstance(p, Card) and p.result is None)
    return next((i for i in open_ if state.parts[i].call == call), None)


def _card(state, card):
    i = _at(state, card.call)
    before, after = (state.parts, ()) if i is None else (state.parts[:i], state.parts[i + 1:])
    return replace(state, parts=(*before, card, *after))


def _result(state, event, t):
    i = _at(state, event.call)
    card = Card(event.call, t) if i is None else state.parts[i]
    return _card(_to(state, 'tool', t), replace(card, asked=False, result=event))


def decide(state, call, answer, t) -> State:
    "`state` after a person answered to `call`; None when nobody did."
    i = _at(state, call)
    return _card(_to(state, 'tool', t), replace(state.parts[i], began=t, asked=False, answer=answer))


def _end(state, event, t):
    said = any(isinstance(p, Said) for p in state.parts)
    whole = () if said or not resp_text(event.resp) else (Said(resp_text(event.resp)),)
    state = _to(state, 'stopped' if event.finish_reason == 'cancelled' else 'done', t, done=event)
    return replace(state, parts=state.parts + whole)


def stop(state, t) -> State:
    "A turn that was cut off without a `Done`."
    return _to(state, 'stopped', t)


def fail(state, error, t) -> State:
    "A turn that an exception ended."
    return _to(state, 'error', t, error=(type(error).__name__, isinstance(error, RishiError), str(error).strip()))
