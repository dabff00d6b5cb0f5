"""Values that pass between the rooms: events, results, counts, options. No behaviour beyond adding and printing.

A turn is a stream of events; the last is always `Done`. Everything else (the returned `Resp`, the Markdown stream,
the notebook's view) is a fold over that stream.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Literal

from .errors import BadRequest

__all__ = ['Progress', 'ThinkingDelta', 'TextDelta', 'ToolCall', 'ApprovalNeeded', 'ToolResult', 'Done', 'Event',
           'FinishReason', 'Resp', 'resp_text', 'thought', 'notice', 'UsageStats', 'StepReport', 'CacheReport',
           'Preflight', 'Sampling']

FinishReason = Literal['stop', 'length', 'tool_calls', 'cancelled']


# --- events ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Progress:
    """Work before the first token. `done` of `total` are bytes (download), thousandths (load) or tokens (prefill);
    `wait` says that another request holds the engine. In prefill `total` is the whole prompt, of which `cached` tokens
    were held already; `done` counts from `cached`."""
    stage: Literal['wait', 'download', 'load', 'media', 'prefill']
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True)
class ThinkingDelta:
    "More of the model's thinking; `tokens` were generated since the delta before."
    text: str
    tokens: int = 1


@dataclass(frozen=True)
class TextDelta:
    "More of the answer; `tokens` were generated since the delta before."
    text: str
    tokens: int = 1


@dataclass(frozen=True)
class ToolCall:
    "The model asks for `name(**arguments)`; `raw` is what it wrote. `error` says why it cannot be run as written."
    name: str
    arguments: dict = field(default_factory=dict)
    id: str = ''
    raw: str = ''
    error: str = ''


@dataclass(frozen=True)
class ApprovalNeeded:
    "The turn waits for somebody to approve or deny `call`."
    call: ToolCall


@dataclass(frozen=True)
class ToolResult:
    "`content` goes back to the model; `error` is set when the call failed or was denied."
    call: ToolCall
    content: str
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    "The end of a turn, whatever ended it."
    resp: Resp
    usage: UsageStats
    report: CacheReport
    finish_reason: FinishReason


Event = Progress | ThinkingDelta | TextDelta | ToolCall | ApprovalNeeded | ToolResult | Done


# --- results --------------------------------------------------------------------------------------------------------
class Resp(dict):
    "The assistant's turn as it stands in `hist`: `role`, `content`, maybe `thinking`, `tool_calls` and `meta`."

    def __repr__(self): return f'Resp({dict.__repr__(self)})'
    def __str__(self): return resp_text(self)

    def _repr_markdown_(self):
        t = thought(self)
        quoted = '> **🧠 Thinking**\n>\n' + '\n'.join('> ' + o for o in t.splitlines()) + '\n\n' if t else ''
        return quoted + (resp_text(self) or (f'*{notice(self)}*' if notice(self) else ''))


def resp_text(r) -> str:
    "The answer of `r`, without its thinking."
    return (r or {}).get('content') or ''


def notice(r) -> str:
    "Why there is no answer although the model ended by itself, or ''."
    return (r or {}).get('meta', {}).get('notice', '')


def thought(r) -> str:
    "What the model thought before it answered, or ''."
    return (r or {}).get('thinking') or ''


@dataclass(frozen=True)
class UsageStats:
    """Token counts of one or more turns; they add up with `+`.
    `prompt_tokens` are all tokens of the prompts, of which `cached_tokens` were not evaluated again."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    turns: int = 0

    @property
    def total_tokens(self): return self.prompt_tokens + self.completion_tokens

    def __add__(self, o): return UsageStats(*(getattr(self, f.name) + getattr(o, f.name) for f in fields(self)))
    def __radd__(self, o): return self if o == 0 else self + o

    def __str__(self):
        s = f'total={self.total_tokens}|in={self.prompt_tokens}|out={self.completion_tokens}|turns={self.turns}'
        return s + (f'|cached={self.cached_tokens}' if self.cached_tokens else '')
    __repr__ = __str__


@dataclass(frozen=True)
class StepReport:
    """One prompt and what was generated from it. Counts are tokens, times are seconds.
    `media` counts media tokens evaluated, and is not part of `evaluated`."""
    prompt_tokens: int = 0
    cached: int = 0
    evaluated: int = 0
    generated: int = 0
    media: int = 0
    media_encoded: int = 0
    media_reused: int = 0
    ttft: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    why: str = ''
    lost: bool = False
    did: str = 'answered'


@dataclass(frozen=True)
class CacheReport:
    """What the KV cache did in one turn. `evaluated` and `generated` are sums over the steps; `prompt_tokens` and
    `cached` are those of the last step; `window_used` of `window` tokens are in use at the end; `kv_bytes` is what
    the tokens in use take of the cache's memory. `lost` marks a prefix that had to be paid for again."""
    steps: tuple[StepReport, ...] = ()
    window: int = 0
    window_used: int = 0
    kv_bytes: int = 0

    def _sum(self, name): return sum(getattr(s, name) for s in self.steps)
    def _last(self, name, default=0): return getattr(self.steps[-1], name) if self.steps else default

    @property
    def prompt_tokens(self): return self._last('prompt_tokens')
    @property
    def cached(self): return self._last('cached')
    @property
    def evaluated(self): return self._sum('evaluated')
    @property
    def generated(self): return self._sum('generated')
    @property
    def media(self): return self._sum('media')
    @property
    def media_encoded(self): return self._sum('media_encoded')
    @property
    def media_reused(self): return self._sum('media_reused')
    @property
    def why(self): return self.steps[0].why if self.steps else ''
    @property
    def lost(self): return any(s.lost for s in self.steps)
    @property
    def ttft(self): return self.steps[0].ttft if self.steps else 0.0
    @property
    def prefill_tps(self): return _rate(self.evaluated + self.media, self._sum('prefill_s'))
    @property
    def decode_tps(self): return _rate(self.generated, self._sum('decode_s'))

    def to_dict(self):
        "Plain numbers under the names that llama-server reports (`cache_n`, `prompt_n`, `predicted_n`), and the rest."
        names = ('prompt_tokens', 'media', 'media_encoded', 'media_reused', 'ttft', 'prefill_tps', 'decode_tps',
                 'window', 'window_used', 'kv_bytes', 'why')
        return dict(cache_n=self.cached, prompt_n=self.evaluated, predicted_n=self.generated,
                    **{n: getattr(self, n) for n in names}, steps=[asdict(s) for s in self.steps])


@dataclass(frozen=True)
class Preflight:
    """What a turn would send, told before it runs: `prompt_tokens` of which `cached` are held and `evaluated` would be
    new, in a `window` of tokens; without `fits` the turn would raise ContextWindowExceededError."""
    prompt_tokens: int
    cached: int
    evaluated: int
    window: int
    fits: bool = True


def _rate(n, seconds): return n / seconds if n and seconds > 0 else 0.0


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. `temp=0` is greedy; `None` leaves a choice to the model's own metadata, then to
    llama.cpp's common defaults (temp 0.8, top_k 40, top_p 0.95, min_p 0.05). `seed=None` draws a new one each turn;
    the same seed draws the same tokens where the prompt is computed in the same way, cold or warm."""
    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self):
        rules = dict(temp=(0, None), top_k=(0, None), top_p=(0, 1), min_p=(0, 1), max_tokens=(1, None),
                     repeat_penalty=(0, None))
        for name, (low, high) in rules.items():
            v = getattr(self, name)
            if v is None: continue
            if isinstance(v, bool) or not isinstance(v, (int, float)) or v < low or (high is not None and v > high):
                span = f'at least {low}' if high is None else f'from {low} to {high}'
                raise BadRequest(f'{name}={v!r} cannot be used: it must be a number {span}.')
