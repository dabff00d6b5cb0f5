"""`Chat`: a conversation with a model in this process. It holds the history and settings; `turn` runs the turns."""
from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path

from . import turn
from .dialect import detect
from .encode import Encoded
from .engine import Engine
from .errors import BadRequest, ContextWindowExceededError, EngineBusy
from .kv import common_prefix_len
from .owner import Stop
from .stream import markdown
from .types import CacheReport, Done, Event, Progress, Resp, Sampling, UsageStats, resp_text, thought

__all__ = ['Chat', 'load_engine', 'resolve_runtime', 'get_runtime', 'get_model', 'finish', 'checked',
           'common_prefix_len', 'resp_text', 'thought', 'UsageStats', 'Resp', 'ContextWindowExceededError']

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


class Chat:
    """A conversation: `chat('Hello')` answers and remembers. `Chat(name)` is the subclass of the name's runtime.

    `model` is a hub id, a file, or None for the embedded default; `sp` the system prompt; `messages` a history to go
    on from; `think` switches thinking on or off where the model can (None: its own way); `ctx_limit` narrows the
    window (tokens). Other keywords are options of the runtime. `engine` shares a loaded engine with other chats: such
    a chat does not close it."""
    _runtime = None

    def __new__(cls, model=None, *args, runtime=None, model_path=None, engine=None, **kw):
        name = runtime if engine is None else engine.runtime
        if cls is Chat and (engine is None or name): cls = get_runtime(name or resolve_runtime(model_path or model))
        return object.__new__(cls)

    def __init__(self, model=None, *, runtime=None, model_path=None, engine=None, sp='', messages=None, think=None,
                 temp=None, top_k=None, top_p=None, min_p=None, seed=None, max_output_tokens=None, ctx_limit=None,
                 comp_kw=None, **options):
        self.sp, self.think, self.temp, self.top_k, self.top_p, self.min_p = sp, think, temp, top_k, top_p, min_p
        self.seed, self.max_output_tokens, self.comp_kw = seed, max_output_tokens, dict(comp_kw or {})
        self._sampling()                 # a bad value is told now, before anything is loaded
        self.hist = [dict(m) for m in messages or ()]
        if self.hist and self.hist[0]['role'] == 'system': self.sp = self.sp or self.hist.pop(0)['content']
        self._owns = engine is None
        if self._owns: engine = finish(load_engine(model, runtime=runtime, model_path=model_path, **options))
        elif options: raise BadRequest(f'{", ".join(options)}: options of an engine, and engine= is loaded already.')
        self.engine: Engine = engine
        self.dialect = detect(engine.template.source)
        self.ctx_limit = min(ctx_limit or engine.n_ctx, engine.n_ctx)
        self.use, self.turn_res, self._report = UsageStats(), None, CacheReport()
        self._known, self._had, self._seen, self._set = Encoded(), 0, None, None
        self._turn, self._stops, self._lock, self._bytes, self._now = None, [], threading.Lock(), 0, datetime.now()

    # --- asking -------------------------------------------------------------------------------------------------------
    def __call__(self, msg=None, stream=False, max_output_tokens=None):
        """One turn. `msg` is text, or None to answer the history as it stands. Returns a Resp; `stream=True` yields
        Markdown pieces, `stream='events'` the typed events. The conversation is left as it was when it raises."""
        if stream not in (False, True, 'events'): raise BadRequest(f"stream={stream!r}: use False, True or 'events'.")
        events = self._events(self._message(msg), self._sampling(max_output_tokens))
        if stream == 'events': return events
        if stream: return markdown(events)
        for e in events:
            if isinstance(e, Done): return e.resp

    def cancel(self):
        "End the running turn and those that wait, from any thread; what was written so far stays."
        for stop in list(self._stops): stop.set()

    def _message(self, msg):
        if msg is None: return None
        if isinstance(msg, str) and msg.strip(): return {'role': 'user', 'content': msg}
        what = 'an empty message' if isinstance(msg, str) else f'a message of type {type(msg).__name__}'
        raise BadRequest(f'{what[0].upper()}{what[1:]} cannot be sent: give some text.')

    def _sampling(self, max_tokens=None) -> Sampling:
        try:
            return Sampling(self.temp, self.top_k, self.top_p, self.min_p, self.seed,
                            self.max_output_tokens if max_tokens is None else max_tokens, **self.comp_kw)
        except TypeError as e: raise BadRequest(f'comp_kw holds an option that sampling does not have: {e}.') from e

    def _events(self, message, sampling) -> Iterator[Event]:
        "The turn's events; one turn at a time, and a stream that this thread left half read is ended first."
        me, running = threading.get_ident(), self._turn
        if running and running[1] == me:
            if running[0].gi_running: raise EngineBusy('This chat is in the middle of a turn; ask again after it.')
            running[0].close()
        this = []
        this += [self._locked(message, sampling, this), me]
        return this[0]

    def _locked(self, message, sampling, this):
        stop = Stop()
        self._stops.append(stop)
        try:
            if not self._lock.acquire(blocking=False):
                yield Progress('wait', 0, 0)
                while not self._lock.acquire(timeout=.2): pass
            try:
                self._turn = this
                yield from turn.run(self, message, sampling, stop)
            finally:
                self._turn = None
                self._lock.release()
        finally: self._stops.remove(stop)

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
        return self.engine.template.render(messages, now=self._now, generate=generate, **kw)

    def _settings_changed(self):
        new, old = (self._system(), self.think), self._set
        self._set = new
        return old is not None and old != new

    def _message_at(self, messages, enc, token):
        "The message (from 1, the system prompt not counted) that the prompt's `token` belongs to."
        at = sum(len(self.engine.piece(i)) for i in enc.ids[:token])
        sys = bool(messages) and messages[0]['role'] == 'system'
        for k in range(1, len(messages) + 1):
            try: part = self._render(messages[:k], generate=False).encode()
            except BadRequest: continue          # some templates refuse a conversation that ends here
            if len(part) > at and common_prefix_len(part, enc.data) >= at: return max(k - sys, 1)
        return len(messages) - sys

    def _kv_bytes(self):
        "Bytes of KV in use, from the size of one token measured once."
        n = self.engine.n_tokens
        if not self._bytes and n and not self.engine.closed: self._bytes = self.engine.kv_bytes() / n
        return round(self._bytes * n)

    # --- state --------------------------------------------------------------------------------------------------------
    def cache_report(self) -> CacheReport:
        "What the KV cache did in the last turn."
        return self._report

    @property
    def cached_tokens(self) -> int:
        "Tokens of the conversation that the cache holds."
        return common_prefix_len(self._known.ids, self.engine.held)

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

    def reconfigure(self, sp=None):
        "Change the system prompt; the conversation goes on."
        if sp is not None: self.sp = sp

    def rewind(self, n=1):
        "Drop the last `n` turns (a turn begins with the user's message); what is before stays in the cache."
        starts = [i for i, m in enumerate(self.hist) if m['role'] == 'user']
        if not isinstance(n, int) or not 0 <= n <= len(starts):
            raise BadRequest(f'There are {len(starts)} turns; {n!r} cannot be dropped.')
        if n: del self.hist[starts[-n]:]

    def reset(self):
        "Start over with the same model and settings."
        self.hist.clear()
        self._known, self._had, self._seen, self._now = Encoded(), 0, None, datetime.now()

    def close(self):
        "End what runs and free the engine, unless it was given. A second call does nothing."
        self.cancel()
        if self._owns: self.engine.close()

    def __enter__(self): return self
    def __exit__(self, *_): self.close()

    def __repr__(self):
        used = f'{self.token_count:,} of {self.ctx_limit:,} tokens'
        return f'<{type(self).__name__} {self.engine.name} · {len(self.hist)} messages · {used}>'

    @classmethod
    def _load(cls, model, **options):
        "The runtime's loader; subclasses supply it."
        raise NotImplementedError


def finish(gen):
    "Run a generator to its end for what it returns."
    while True:
        try: next(gen)
        except StopIteration as e: return e.value


def checked(options, known, runtime):
    "Refuse an option that `runtime` does not have, with the nearest that it has."
    for o in options:
        if o not in known:
            near = difflib.get_close_matches(o, known, 1)
            hint = f'did you mean {near[0]!r}?' if near else f'it has: {", ".join(known)}.'
            raise BadRequest(f'{runtime} has no option {o!r}; {hint}')
