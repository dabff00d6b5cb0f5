"""`Chat`: a conversation with a model in this process. Its settings and state are here; `asking` and `turn` run it."""
from __future__ import annotations

import difflib
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from datetime import datetime
from importlib import import_module
from pathlib import Path

from . import callbacks, history
from .aio import AsyncChat
from .asking import ToolLoopMixin
from .batch import MapMixin
from .callbacks import ChatCallback, TruncationCallback
from .context import SlidingWindowCallback
from .dialect import detect
from .disk import DiskMixin
from .encode import Encoded, encode
from .engine import Engine
from .errors import BadRequest, ContextWindowExceededError
from .fence import PyFenceCallback, output_matches, task_complete
from .kv import common_prefix_len
from .oneshots import OneShotMixin
from .owner import finish
from .stream import display_stream
from .tools import Toolbox, hitl_policy
from .types import CacheReport, Progress, Resp, ToolCall, UsageStats, resp_text, thought

__all__ = ['Chat', 'AsyncChat', 'ChatCallback', 'SlidingWindowCallback', 'PyFenceCallback', 'TruncationCallback',
           'ToolLoopMixin', 'ContextWindowExceededError', 'Resp', 'ToolCall', 'UsageStats', 'checked',
           'common_prefix_len', 'display_stream', 'finish', 'get_model', 'get_runtime', 'hitl_policy', 'load_engine',
           'output_matches', 'resolve_runtime', 'resp_text', 'task_complete', 'thought']

FINAL_PROMPT = ("You've reached the tool-call budget for this turn. Stop calling tools and answer with what you "
                "already have.")
SETTINGS = ('think', 'temp', 'top_k', 'top_p', 'min_p', 'seed', 'max_output_tokens', 'comp_kw', 'approve',
            'tool_max_len', 'max_steps', 'parallel_tools', 'max_parallel_tools', 'final_prompt', 'ctx_limit',
            'idle_prefill')
RUNTIMES = {'llama': ('rishi.llama', 'LlamaChat')}


def resolve_runtime(model=None, runtime=None) -> str:
    "Which engine runs `model`: its prefix (`llama/...`), `runtime`, or what its name says. Raises BadRequest."
    choices = ', '.join(RUNTIMES)
    if runtime is not None:
        if runtime in RUNTIMES: return runtime
        raise BadRequest(f'There is no runtime {runtime!r}; choose from: {choices}.')
    if model is None: return 'llama'
    name, low = str(model), str(model).lower()
    if (head := low.split('/')[0]) in RUNTIMES: return head
    said = 'gguf' in low.rsplit(':', 1)[0].rsplit('/', 1)[-1] or low.endswith('.gguf')
    if said or _is_gguf(Path(name)): return 'llama'
    raise BadRequest(f'Nothing in {name!r} says how to run it: give a GGUF repository or file '
                     f'(`org/name-GGUF`, `file.gguf`), or runtime= one of: {choices}.')


def _is_gguf(path):
    if path.is_dir(): return any(path.glob('*.gguf'))
    try:
        with path.open('rb') as f: return f.read(4) == b'GGUF'
    except OSError: return False


def get_runtime(name: str):
    "The Chat subclass of the runtime `name`."
    module, cls = RUNTIMES[resolve_runtime(runtime=name)]
    return getattr(import_module(module), cls)


def get_model(model_id=None, model_path=None, quant='Q4_K_M') -> str:
    "The path of a GGUF file on this machine: `model_path`, else installed or cached, else downloaded."
    from .llama.weights import get_model as get
    return get(model_id, model_path, quant)


def load_engine(model=None, *, runtime=None, model_path=None, stop=None, **options) -> Iterator[Progress]:
    """Load a model: a generator of Progress whose return value is the Engine. Setting `stop`, an Event, ends it with
    an EngineError. Raises BadRequest for an option that the runtime does not have."""
    cls = get_runtime(resolve_runtime(model_path or model, runtime))
    return (yield from cls._load(_bare_name(model), model_path=model_path, stop=stop, **options))


def _bare_name(model):
    name = str(model) if model is not None else None
    return name.split('/', 1)[1] if name and name.split('/')[0].lower() in RUNTIMES else name


class Chat(ToolLoopMixin, OneShotMixin, MapMixin, DiskMixin):
    """A conversation: `chat('Hello')` answers and remembers. `Chat(name)` is the subclass of the name's runtime.

    `model` is a hub id, a file, or None for the embedded default; `sp` the system prompt; `messages` a history to go
    on from; `tools` functions that the model may call; `approve(call) -> bool | str` is asked before each call (a text
    is the reason for no); `tool_max_len` cuts their results (characters); `max_steps` caps the calls of a turn, after
    which `final_prompt` asks for an answer; `parallel_tools` runs the calls of a step side by side, at most
    `max_parallel_tools`; `think` switches thinking on or off where the model can (None: its own way); `ctx_limit`
    narrows the window (tokens); `cbs` are callbacks beside the default ones; `idle_prefill` evaluates what is known of
    the next prompt between turns. Other keywords are options of the runtime. `engine` shares a loaded engine with other
    chats: such a chat does not close it."""
    _runtime = None
    _free = ()       # options that cost nothing, and so may come with engine= too

    def __new__(cls, model=None, *args, runtime=None, model_path=None, engine=None, **kw):
        name = runtime if engine is None else engine.runtime
        if cls is Chat and (engine is None or name): cls = get_runtime(name or resolve_runtime(model_path or model))
        return object.__new__(cls)

    def __init__(self, model=None, *, runtime=None, model_path=None, engine=None, sp='', messages=None, tools=None,
                 ctx_limit=None, approve=None, tool_max_len=None, max_steps=10, parallel_tools=False,
                 max_parallel_tools=None, final_prompt=FINAL_PROMPT, think=None, temp=None, top_k=None, top_p=None,
                 min_p=None, seed=None, max_output_tokens=None, comp_kw=None, cbs=None, default_cbs=True,
                 idle_prefill=False, **options):
        self.sp, self.think, self.temp, self.top_k, self.top_p, self.min_p = sp, think, temp, top_k, top_p, min_p
        self.seed, self.max_output_tokens, self.comp_kw = seed, max_output_tokens, dict(comp_kw or {})
        self._sampling()                 # a bad value is told now, before anything is loaded
        self.toolbox, self.approve, self.tool_max_len, self.max_steps = Toolbox(tools), approve, tool_max_len, max_steps
        self.parallel_tools, self.max_parallel_tools = parallel_tools, max_parallel_tools
        self.final_prompt, self.idle_prefill = final_prompt, idle_prefill
        self.hist = history.checked(messages or ())
        if self.hist and self.hist[0]['role'] == 'system': self.sp = self.sp or history.said(self.hist[0])
        self.hist = [m for i, m in enumerate(self.hist) if i or m['role'] != 'system']
        self.cbs = [*(callbacks.defaults() if default_cbs else ()), *callbacks.listed(cbs)]
        self._owns = engine is None
        if self._owns: engine = finish(load_engine(model, runtime=runtime, model_path=model_path, **options))
        elif taken := options.keys() - set(self._free):
            raise BadRequest(f'{", ".join(sorted(taken))}: options of an engine, and engine= is loaded already.')
        self._attach(engine, ctx_limit)

    def _attach(self, engine, ctx_limit):
        self.engine: Engine = engine
        self.dialect, self._constraint, self.constrained = detect(engine.template.source), lambda: None, False
        self.ctx_limit = min(ctx_limit or engine.n_ctx, engine.n_ctx)
        self.use, self.turn_res, self._report = UsageStats(), None, CacheReport()
        self._key = object()             # whose slot of the cache it is
        engine.keys.add(self._key)
        weakref.finalize(self, engine.release, self._key).atexit = False
        self._known, self._had, self._seen, self._set = Encoded(), 0, None, None
        self._turn, self._stops, self._lock, self._now = None, [], threading.Lock(), datetime.now()

    # --- what a turn needs --------------------------------------------------------------------------------------------
    def _messages(self, messages):
        "What goes to the template: the system prompt and then the history."
        sp = self._system()
        return ([{'role': 'system', 'content': sp}] if sp else []) + list(messages)

    def _system(self):
        "The system prompt; where the template has no switch for thinking, the model's own word for it is added."
        t, sp = self.engine.template, self.sp or self.engine.system
        if t.mentions('enable_thinking') or not t.mentions('think'): return sp
        return self._think_sp(sp, self.think)

    @staticmethod
    def _think_sp(sp: str, think) -> str:
        "`sp` with Qwen3's soft switch `/think` or `/no_think` (None: as it is)."
        if think is None: return sp
        return (sp + '\n' if sp else '') + ('/think' if think else '/no_think')

    def _render(self, messages, generate=True):
        kw = {} if self.think is None else {'enable_thinking': self.think}
        tools = self.toolbox.schemas or None
        return self.engine.template.render(messages, now=self._now, generate=generate, tools=tools, **kw)

    def _prompt(self, messages):
        "The prompt, and whether thinking is open at its end. A constrained answer is never put into thinking."
        text = self._render(messages)
        start = self.dialect.thinking(text[-200:])
        if start == 'open' and self.constrained: return text + self.dialect.think[1] + '\n\n', 'closed'
        return text, start

    def _size(self, messages):
        "Tokens of the prompt that `messages` make."
        return len(encode(self._render(self._messages(messages)), self._known, self.engine).ids)

    def _settings_changed(self):
        new, old = (self._system(), self.think, repr(self.toolbox.schemas)), self._set
        self._set = new
        return old is not None and old != new

    def _message_at(self, messages, enc, token):
        "The message (from 1, the system prompt not counted) that the prompt's `token` belongs to."
        at, n = sum(len(self.engine.piece(i)) for i in enc.ids[:token]), len(messages)
        sys = n > 0 and messages[0]['role'] == 'system'
        def past(k, same=False):
            try: part = self._render(messages[:k], generate=False).encode()
            except BadRequest: return k < n and past(k + 1, same)   # some templates refuse one that ends here
            return len(part) > at and (not same or common_prefix_len(part, enc.data) >= at)
        first = 1 + bisect_left(range(1, n + 1), True, key=past)
        return max(next((k for k in range(first, n + 1) if past(k, True)), n) - sys, 1)

    def _kv_bytes(self):
        "Bytes of KV that the conversation takes."
        return round(self.engine.token_bytes * self._had)

    # --- state --------------------------------------------------------------------------------------------------------
    def cache_report(self) -> CacheReport:
        "What the KV cache did in the last turn."
        return self._report

    @property
    def cached_tokens(self) -> int:
        "Tokens of the conversation that the cache holds."
        return self.engine.cached(self._known.ids)

    @property
    def token_count(self) -> int:
        "Tokens of the conversation so far, its template included."
        return len(self._known.ids)

    @property
    def pct_full(self) -> float:
        "Share of the window in use, from 0 to 1."
        return self.token_count / self.ctx_limit

    def count_tokens(self, text: str) -> int:
        "How many tokens `text` is."
        return len(self.engine.tokenize(text.encode(), first=False))

    def render(self, msg=None) -> str:
        "The prompt that the next turn with `msg` would send."
        m = self._message(msg)
        return self._render(self._messages([*self.hist, *([m] if m else [])]))

    @property
    def tools(self) -> list:
        "The functions that the model may call."
        return self.toolbox.functions

    @tools.setter
    def tools(self, functions): self.toolbox = Toolbox(functions)

    def reconfigure(self, sp=None, tools=None):
        "Change the system prompt or the tools; the conversation goes on. None leaves as it is."
        if sp is not None: self.sp = sp
        if tools is not None: self.tools = tools

    def add_cb(self, cb: ChatCallback):
        "Hang a callback on the chat; returns the chat."
        return self.add_cbs([cb])

    def add_cbs(self, cbs):
        "Hang callbacks on the chat; returns the chat."
        self.cbs += callbacks.listed(cbs)
        return self

    def remove_cb(self, cb):
        "Take off a callback, or all of a class; returns the chat."
        self.cbs = [c for c in self.cbs if c is not cb and not (isinstance(cb, type) and isinstance(c, cb))]
        return self

    def remove_cbs(self, cbs):
        "Take off callbacks; returns the chat."
        for cb in cbs: self.remove_cb(cb)
        return self

    def rewind(self, n=1):
        "Drop the last `n` turns (a turn begins with the user's message); what is before stays in the cache."
        starts = history.turns(self.hist)
        if not isinstance(n, int) or not 0 <= n <= len(starts):
            raise BadRequest(f'There are {len(starts)} turns; {n!r} cannot be dropped.')
        if n: del self.hist[starts[-n]:]

    def fork(self):
        "Another chat on the same engine that goes on from here with the same settings; neither sees the other's turns."
        return self._aside(self.hist, False, sp=self.sp, tools=self.toolbox, cbs=map(copy, self.cbs))

    def _aside(self, messages=(), once=True, **kw):
        "A chat on this engine with this chat's settings and what it knows of tokens; it owns nothing."
        same = {k: getattr(self, k) for k in SETTINGS}
        chat = type(self)(engine=self.engine, messages=messages, default_cbs=False, **same | kw)
        if once: chat._key, chat._stops = None, self._stops      # no slot of its own, and `cancel` ends it too
        chat._known, chat._now, chat.dialect = self._known, self._now, self.dialect
        return chat

    def save(self, path):
        "Write the history and the system prompt to a JSON file. Raises BadRequest."
        history.save(path, self.hist, self.sp)

    def load(self, path):
        "Go on from a history that `save` wrote. Raises BadRequest and changes nothing when it is none."
        self.hist[:], self.sp = history.load(path)

    hist2fmt = staticmethod(history.to_wire)
    fmt2hist = staticmethod(history.from_wire)

    def print_hist(self):
        "Print the conversation."
        print(self._repr_markdown_())

    def _repr_markdown_(self): return history.as_markdown(self.hist, self.sp)

    def reset(self):
        "Start over with the same model and settings."
        self.hist.clear()
        self._known, self._had, self._seen, self._now = Encoded(), 0, None, datetime.now()

    def close(self):
        "End what runs and free the engine, unless it was given. A second call does nothing."
        self.cancel()
        if self._owns: self.engine.close()
        else: self.engine.release(self._key)

    def __enter__(self): return self
    def __exit__(self, *_): self.close()

    def __repr__(self):
        used = f'{self.token_count:,} of {self.ctx_limit:,} tokens'
        return f'<{type(self).__name__} {self.engine.name} · {len(self.hist)} messages · {used}>'

    @classmethod
    def _load(cls, model, **options):
        "The runtime's loader; subclasses supply it."
        raise NotImplementedError


def checked(options, known, runtime):
    "Refuse an option that `runtime` does not have, with the nearest that it has."
    for o in options:
        if o not in known:
            near = difflib.get_close_matches(o, known, 1)
            hint = f'did you mean {near[0]!r}?' if near else f'it has: {", ".join(known)}.'
            raise BadRequest(f'{runtime} has no option {o!r}; {hint}')
