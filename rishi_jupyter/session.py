"""What the kernel holds between cells: chats by name, the engines they share, the defaults.

A chat is bound to what its engine was loaded from. Engines are shared by chats that were loaded from the same model
with the same options, and closed when no chat is left on them. A turn is a stream of events: first those of loading,
when there is something to load, then those of the chat.
"""
from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from traitlets import Bool, Dict, Float, Int, Unicode
from traitlets.config import Configurable

from rishi.errors import BadRequest, EngineError
from rishi.types import ApprovalNeeded, Done

from .request import CellRequest, suggestion

__all__ = ['Rishi', 'Session', 'Turn', 'Load', 'Bound', 'session_of']

# A field of the request and of the defaults -> the attribute of a chat.
_ATTRS = dict(think='think', temperature='temp', top_p='top_p', top_k='top_k', min_p='min_p', seed='seed',
              max_tokens='max_output_tokens', max_steps='max_steps')


def _maybe(trait, help, **kw): return trait(None, allow_none=True, help=help, **kw).tag(config=True)


class Rishi(Configurable):
    "The defaults of %%rishi. A chat's own settings and a cell's options go before them."
    model = _maybe(Unicode, 'The model of chats that name none: an id or a file. None: the embedded one.')
    system = Unicode('', help='The system prompt that a chat begins with.').tag(config=True)
    think = _maybe(Bool, 'Whether the model thinks before it answers. None: as the model is made.')
    max_tokens = _maybe(Int, 'The most tokens that a turn generates.', min=1)
    temperature = _maybe(Float, 'How freely tokens are drawn. None: as the model asks.', min=0)
    top_p = _maybe(Float, 'Draw from the likeliest tokens that make up this share.', min=0, max=1)
    top_k = _maybe(Int, 'Draw from this many of the likeliest tokens.', min=0)
    min_p = _maybe(Float, "Drop tokens below this share of the likeliest one's chance.", min=0, max=1)
    seed = _maybe(Int, 'Draw the same tokens again for the same seed.', min=0)
    options = Dict(help="How models are loaded, such as {'n_ctx': 4096, 'n_threads': 2}.").tag(config=True)


@dataclass(frozen=True)
class Load:
    "What an engine is loaded from: the name of a model (None: the embedded one) and the options of loading."
    model: str | None = None
    options: dict = field(default_factory=dict)

    @property
    def key(self): return self.model, repr(sorted(self.options.items()))
    @property
    def label(self) -> str:
        "The model's name as it can be told before it is loaded."
        return self.model.replace('\\', '/').rstrip('/').split('/')[-1] if self.model else 'the embedded model'


@dataclass
class Bound:
    """A chat of the kernel, and what its cells asked it to stay with: `model` (None: the default one), `options` of
    loading, names of `tools` (none: those that Python gave it), how to `approve` their calls. `granted` are the tools
    that a person said "Always" to."""
    chat: object
    load: Load
    model: str | None = None
    options: dict = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    approve: str | None = None
    granted: set = field(default_factory=set)


class Turn:
    """One turn of a cell: `events` to draw, `header()` to put above them, `about` its tools by name, `stop()` from any
    thread, `answer(call, said)` after each ApprovalNeeded; then `resp`."""

    def __init__(self, session, request):
        self.request, self.chat, self.resp = request, None, None
        self._session, self.stopped = session, threading.Event()
        self.notes = [] if request.history else ['not kept in the chat']
        self.number = 1 if request.new else session.turns(request.chat) + 1
        self.load, self.engine = session.wanted(request), session.engine_of(request)
        self.toolbox, self.about = session.tools_of(request)
        self._said, self._asks = None, False
        self.events = session._run(self)

    def header(self):
        "The `Header` as far as it is known now: the model's full name and window come with the engine."
        from .show import Header
        e = self.engine
        return Header(chat=self.request.chat, model=e.name if e else self.load.label, turn=self.number,
                      window=e.n_ctx if e else 0, note=' · '.join(self.notes))

    def stop(self):
        "End loading or answering; what is there of the answer is kept. Thread-safe."
        self.stopped.set()
        if self.chat is not None: self.chat.cancel()

    def answer(self, call, said):
        "What the person said to `call`: something with `ok`, `always` and `why`, or None when the turn was stopped."
        self._said = said

    def _ask(self, call):
        "The same as `approve` answers it, for the chat that goes on now."
        from rishi.tools.loop import Stopped
        if self.stopped.is_set(): raise Stopped
        said, self._said = self._said, None
        if said is None: return 'nobody is here to approve it'
        if said.always: self._grant(call.name)
        return said.ok or said.why

    def _grant(self, name):
        self._session.chats[self.request.chat].granted.add(name)
        self.chat.approve.policy[name] = 'approved'

    def equip(self, bound):
        "Give the chat the tools of this turn, and what decides about their calls."
        from .kit import approver
        chat, req = bound.chat, self.request
        bound.tools, bound.approve = req.tools or bound.tools, req.approve or bound.approve
        if self.toolbox is not None: chat.reconfigure(tools=self.toolbox)
        chat.approve = approver(bound.approve, bound.granted, self._ask, chat.approve)
        self._asks = getattr(chat.approve, 'ask', None) == self._ask

    def _tap(self, event):
        if isinstance(event, Done): self.resp = event.resp
        elif self.stopped.is_set(): self.chat.cancel()   # a stop that came before the chat had begun
        return self._asks or not isinstance(event, ApprovalNeeded)   # what does not ask here shows no question


class Session:
    """The chats and engines of one kernel. `load(model, stop=, **options)` is `rishi.core.load_engine`; `names` is the
    namespace that tools are looked up in."""

    def __init__(self, settings=None, load=None, names=None):
        self.settings, self._load, self.names = settings or Rishi(), load, {} if names is None else names
        self.chats: dict[str, Bound] = {}
        self.engines: dict[tuple, object] = {}
        self.running: set[Turn] = set()
        self.last = 'main'

    # --- turns ------------------------------------------------------------------------------------------------------
    def turn(self, request: CellRequest) -> Turn:
        "The turn that `request` asks for. Nothing runs before its events are drawn."
        return Turn(self, request)

    def _run(self, turn):
        req = turn.request
        self.running.add(turn)
        try:
            chat = yield from self._open(req, turn)
            if turn.stopped.is_set(): raise EngineError('The turn was stopped before it began. Run the cell again.')
            self.last, turn.engine = req.chat, chat.engine
            with self._prepared(self.chats[req.chat], turn):
                turn.chat = chat
                yield from _tapped(chat(req.text, stream='events'), turn._tap)
        finally:
            turn.chat = None
            self.running.discard(turn)

    @contextmanager
    def _prepared(self, bound, turn):
        "The chat as its cell wants it; what holds for one turn is put back, after an error or a one-shot all of it."
        chat, req = bound.chat, turn.request
        own, before = {a: getattr(chat, a) for a in (*_ATTRS.values(), 'approve')}, _Before(bound)
        if req.new: self.clear(req.chat)
        if req.system is not None: chat.reconfigure(sp=req.system)
        turn.equip(bound)
        for name, attr in _ATTRS.items():
            asked = getattr(req, name)
            if asked is None and own[attr] is None: asked = getattr(self.settings, name)
            if asked is not None: setattr(chat, attr, asked)
        keep = req.history
        try: yield
        except Exception:
            keep = False
            raise
        finally:
            for attr, v in own.items(): setattr(chat, attr, v)
            if not keep: before.restore(bound)

    # --- tools ------------------------------------------------------------------------------------------------------
    def tools_of(self, req):
        "The Toolbox that `req` wants (None: as the chat has it), and what its tools do by name. Raises BadRequest."
        bound = None if req.new else self.chats.get(req.chat)
        names = req.tools or (bound.tools if bound else ())
        if not names and bound is None: return None, {}
        from .kit import found, summaries
        hint = '' if req.tools else f', or take the tools off chat {req.chat} with `%rishi tools none`'
        toolbox = found(names, self.names, hint) if names else None
        return toolbox, summaries(toolbox or bound.chat.toolbox)

    def without_tools(self, name):
        "Take all tools off the chat, and forget what was said about them."
        bound = self.bound(name)
        bound.tools, bound.approve = (), None
        bound.granted.clear()
        bound.chat.reconfigure(tools=())

    # --- engines ----------------------------------------------------------------------------------------------------
    def wanted(self, req) -> Load:
        "What the chat of `req` is to be loaded from."
        bound = self.chats.get(req.chat)
        model = req.model or (bound and bound.model) or self.settings.model
        return Load(model, {**self.settings.options, **self._options(bound, model, req)})

    def _options(self, bound, model, req):
        "The options of loading that cells gave to the chat: they hold until its model changes."
        return {**(bound.options if bound and bound.load.model == model else {}), **dict(req.options)}

    def engine_of(self, req):
        "The engine that `req` would run on, when it is loaded."
        engine = self.engines.get(self.wanted(req).key)
        return engine if engine is not None and not engine.closed else None

    def _open(self, req, turn=None):
        "Yields the events of loading; returns the chat of `req`, its history carried along to another engine."
        old, load = self.chats.get(req.chat), self.wanted(req)
        engine = self.engine_of(req)
        if engine is None: engine = yield from self._loaded(load, old, turn)
        if old and old.chat.engine is engine: chat = old.chat
        else:
            chat = self._chat(engine, old and old.chat)
            if turn and old and old.chat.hist and old.load.model != load.model and not req.new:
                turn.notes.append(f'model changed · goes on from {old.chat.engine.name}')
        self.chats[req.chat] = replace(old or Bound(chat, load), chat=chat, load=load, options=self._options(
            old, load.model, req), model=req.model or (old and old.model))
        self._sweep()
        return chat

    def _loaded(self, load, old, turn):
        def free_first(event):   # two models at once may not fit into memory; a download still leaves the old one
            if event.stage == 'load' and old: self._release(old)
        start = self._load or _load_engine
        stop = turn.stopped if turn else threading.Event()
        engine = yield from _tapped(start(load.model, stop=stop, **load.options), free_first)
        self.engines[load.key] = engine
        return engine

    def _chat(self, engine, old):
        from rishi.core import SETTINGS, Chat
        if old is None: return Chat(engine=engine, sp=self.settings.system)
        own = {k: getattr(old, k) for k in SETTINGS if k != 'ctx_limit'}     # the window is the engine's
        return Chat(engine=engine, sp=old.sp, messages=old.hist, tools=old.toolbox, cbs=old.cbs, default_cbs=False,
                    **own)

    def _release(self, bound):
        "Close the engine of `bound` unless another chat is on it."
        engine = bound.chat.engine
        if not any(b.chat.engine is engine for b in self.chats.values() if b is not bound): engine.close()

    def _sweep(self):
        "Close the engines that no chat is on."
        used = [b.chat.engine for b in self.chats.values()]
        for key, engine in list(self.engines.items()):
            if not any(engine is u for u in used): engine.close()
            if engine.closed: del self.engines[key]

    # --- what %rishi does -------------------------------------------------------------------------------------------
    def chat(self, name='main'):
        "The chat of that name, its model loaded when it is not yet."
        from rishi.core import finish
        return finish(self._open(CellRequest(chat=name)))

    def use(self, model):
        "Let every chat go on with `model` from its next turn. BadRequest for a name that says nothing."
        from rishi.core import resolve_runtime
        resolve_runtime(model)
        self.settings.model = model
        for b in self.chats.values(): b.model = None

    def turns(self, name) -> int:
        "How many turns the chat holds."
        from rishi.history import turns
        bound = self.chats.get(name)
        return len(turns(bound.chat.hist)) if bound else 0

    def bound(self, name=None) -> Bound:
        "The chat of that name, by default the one of the last turn; BadRequest when there is none."
        name = name or self.last
        if name in self.chats: return self.chats[name]
        made = ', '.join(self.chats) or 'none yet'
        raise BadRequest(f'There is no chat {name!r}.{suggestion(name, self.chats)} Chats here: {made}.')

    def clear(self, name):
        "Forget the turns, the system prompt and the tools of a chat; the model stays loaded."
        chat = self.bound(name).chat
        chat.reset()
        self.without_tools(name)
        if chat.sp != self.settings.system: chat.reconfigure(sp=self.settings.system)

    def stop(self) -> int:
        "Stop what runs; the number of turns that did."
        turns = list(self.running)
        for t in turns: t.stop()
        return len(turns)

    def unload(self) -> int:
        "Close all engines; chats keep their history and load again at their next turn. The number of engines closed."
        self.stop()
        engines = [e for e in self.engines.values() if not e.closed]
        for e in engines: e.close()
        self.engines.clear()
        return len(engines)


class _Before:
    "What a chat was before a turn, to put it back."

    def __init__(self, bound):
        chat = bound.chat
        self.hist, self.sp, self.toolbox = list(chat.hist), chat.sp, chat.toolbox
        self.tools, self.approve = bound.tools, bound.approve

    def restore(self, bound):
        bound.tools, bound.approve = self.tools, self.approve
        bound.chat.hist[:] = self.hist
        bound.chat.reconfigure(sp=self.sp, tools=self.toolbox)


def _load_engine(model, **kw):
    from rishi.core import load_engine
    return load_engine(model, **kw)


def _tapped(events, tap):
    "`events`, each shown to `tap` first, which may say False to drop it; closed with its reader. Returns what they do."
    with closing(events):
        while True:
            try: e = next(events)
            except StopIteration as end: return end.value
            if tap(e) is not False: yield e


@cache
def _without_shell(): return Session()


def session_of(shell=None) -> Session:
    "The session of an IPython shell; without a shell (a script, marimo) the one of this process."
    if shell is None: return _without_shell()
    if not hasattr(shell, '_rishi_session'):
        shell._rishi_session = Session(Rishi(parent=shell), names=shell.user_ns)
        shell.configurables.append(shell._rishi_session.settings)
    return shell._rishi_session
