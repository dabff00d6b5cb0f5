"""`Engine`: a model on one owner thread. Prefill, decode, stop and accounts are written here once; a backend supplies
the few primitives below. The KV cache is one pool of cells with many sequences in it: each chat has a slot, and
prefixes are shared between them.
"""
from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import kv, snapshots
from .dialect import Template
from .errors import ContextWindowExceededError, EngineClosed, EngineError
from .kv import Edge, Slot
from .owner import Owner, Stop
from .types import FinishReason, Progress, Sampling

__all__ = ['Engine', 'Token', 'Step', 'PoolFull']


@dataclass(frozen=True)
class Token:
    "One generated token: its id and the bytes that it stands for (maybe part of a character)."
    id: int
    data: bytes


@dataclass
class Step:
    """The accounts of one prompt and its answer: counts in tokens, times in seconds since the engine took it up.
    `cached` tokens of the prompt were held already, `evaluated` were not; the cache holds `held` at the end.
    `rigid`: it held more of the prompt, and could not be cut there."""
    cached: int = 0
    evaluated: int = 0
    held: int = 0
    generated: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    ttft: float = 0.0
    decode_s: float = 0.0
    finish: FinishReason = 'cancelled'
    rigid: bool = False


END = -1        # no token: behind a list of ids it asks for a slot that holds all of them


class PoolFull(Exception): "No cells are left for a batch."
class _Stopped(Exception): "The stop flag was seen inside a native call."


class Engine:
    """Base of all engines. `name` is for people, `n_ctx` the window in tokens, `template` the model's chat template,
    `system` a system prompt for chats that give none, `held` the token ids in the KV cache, `batch` the tokens that
    are evaluated between two looks at the stop flag, `token_bytes` what one token takes in the cache, measured in the
    first step."""
    name = path = system = ''
    runtime = None
    n_ctx = n_threads = batch = vocab_size = 0
    n_seq, host_bytes, token_bytes = 1, 512 << 20, 0.0
    gpu, batched = False, False
    can_trim, snaps = True, False        # cells can be cut at any place, else `_floor` is asked; snapshots are worth it
    template: Template

    def __init__(self, name):
        self.name, self.owner, self.slots, self.keys, self._slot, self._clock = name, Owner(name), [], set(), Slot(), 0
        self._never = Stop()
        self._finalizer = weakref.finalize(self, self.owner.close)

    # --- what a backend supplies; all but the first four run on the owner's thread -----------------------------------
    def tokenize(self, data: bytes, first: bool) -> list[int]: raise NotImplementedError
    def piece(self, id: int) -> bytes: raise NotImplementedError
    def is_control(self, id: int) -> bool: raise NotImplementedError
    def is_eog(self, id: int) -> bool: raise NotImplementedError
    def _eval(self, tokens: list[int], seq: int, at: int, stop: Stop) -> bool: raise NotImplementedError
    def _eval_rows(self, rows: list[tuple], stop: Stop) -> bool: raise NotImplementedError     # where it is `batched`
    def _trim(self, seq: int, n: int) -> bool: raise NotImplementedError
    def _copy(self, seq: int, to: int, n: int): raise NotImplementedError
    def _save(self, seq: int): return None
    def _restore(self, seq: int, state) -> bool: raise NotImplementedError
    def _floor(self, seq: int) -> int: raise NotImplementedError                 # these three where it cannot trim
    def _snap(self, seq: int): return None
    def _unsnap(self, seq: int, state) -> bool: raise NotImplementedError
    def _sampler(self, sampling: Sampling, constraint): raise NotImplementedError
    def _logits(self): raise NotImplementedError
    def _kv_bytes(self, seq: int) -> int: return 0
    def identity(self) -> dict:
        "What a saved cache must have been made with, by name. Raises EngineError where none can be saved."
        raise EngineError(f'The engine {self.name} has no state that could be saved; `chat.save` keeps the history.')
    def _free(self): pass

    # --- what is written once ----------------------------------------------------------------------------------------
    @property
    def held(self) -> list[int]:
        "The cells of the slot that was used last."
        return self._slot.cells

    @property
    def n_tokens(self) -> int: return len(self.held)
    @property
    def closed(self) -> bool: return self.owner.closed

    def check_open(self):
        "Raise EngineClosed after `close()`."
        if self.closed: raise EngineClosed(f'The engine of {self.name} is closed; make a new Chat to go on.')

    def close(self):
        "Stop what runs and free the model; a second call does nothing, later use raises EngineClosed."
        self._finalizer.detach()
        self.owner.close(self._free)

    def __repr__(self): return f'<{type(self).__name__} {self.name}{" closed" if self.closed else ""}>'

    def info(self) -> dict:
        "Plain facts about the loaded model."
        return dict(model=self.name, path=str(self.path), window=self.n_ctx, threads=self.n_threads,
                    gpu='yes' if self.gpu else 'no', cached=self.n_tokens)

    def stream(self, ids: list[int], sampling: Sampling, stop: Stop, step: Step, constraint=None, *, owner=None,
               branch=True, wait=True) -> Iterator:
        """Evaluate what is new of the prompt `ids`, then generate: yields Progress and Token. `step` is filled as it
        goes and final when the stream has ended; `constraint` (see `grammar`) narrows what may come; `owner` is whose
        slot it is (None: a one-shot); `branch` keeps a slot warm that would lose much. Raises
        ContextWindowExceededError before anything is evaluated."""
        if not ids: raise EngineError('The prompt is empty: the chat template rendered no text.')
        if len(ids) >= self.n_ctx: raise ContextWindowExceededError(len(ids), self.n_ctx)
        job = lambda flag, emit: self._step(ids, sampling, flag, step, constraint, owner, branch, emit)
        return self.owner.stream(job, stop, wait)

    def cached(self, ids) -> int:
        "How many first tokens of `ids` some slot holds."
        ids = list(ids)
        return max((kv.common_prefix_len(s.cells, ids) for s in list(self.slots)), default=0)

    def hit(self, ids, owner) -> int:
        "How many first tokens of the prompt `ids` would not be evaluated, were it sent now for `owner`."
        return kv.choose(list(self.slots), owner, list(ids), self.can_trim).keep

    def slots_info(self) -> list[dict]:
        """The slots for people, the last used first: `owner` (the key of a chat, or None), `state`, `tokens`, `bytes`.
        The state is active (it answers now), idle, branch (its chat has left it), one-shot, or in host memory."""
        now = self._slot if self.owner.busy else None
        slots = sorted(self.slots, key=lambda s: -s.used)
        return [dict(owner=s.owner, state='active' if s is now else kv.state(s), tokens=len(s.cells),
                     bytes=round(len(s.cells) * self.token_bytes)) for s in slots]

    @property
    def cells_used(self) -> int:
        "Cells of the pool that are in use; what slots share counts once."
        return kv.used([s.cells for s in list(self.slots) if s.seq is not None])

    def export(self, ids, owner) -> tuple[list, dict[int, bytes]]:
        """What the cache holds of `ids`, brought into the slot of `owner`: the cells, and the states at numbers of
        them: that of all, unless there are none, and the snapshots."""
        def job():
            self._seat([*ids, END], owner)
            whole = self._save(self._slot.seq) if self.held else None
            snaps = {n: e.state for n, e in self._slot.edges.items() if not e.passing and n < len(self.held)}
            return list(self.held), {} if whole is None else {len(self.held): whole, **snaps}
        return self.owner.call(job)

    def adopt(self, cells, states, owner):
        "Let the slot of `owner` hold `cells`, whose states `export` gave. Raises EngineError when there is no way."
        def job():
            edges = {n: Edge(s, self._clock) for n, s in states.items() if n < len(cells)}
            parked = Slot(None, list(cells), used=self._clock, state=states[len(cells)], edges=edges)
            self.slots.append(parked)
            held = self._seat([*cells, END], owner)
            if parked in self.slots: self.slots.remove(parked)
            if held < len(cells): raise EngineError(f'The engine {self.name} does not take the saved state back.')
        self.owner.call(job)

    def forget(self):
        "Empty the cache: the next prompt of every chat is evaluated whole."
        self.owner.call(lambda: self._drop(list(self.slots)))

    def release(self, owner):
        """The conversation of `owner` has ended: its slot is dropped, and with the last one all. Does not wait, and may
        be called from anywhere, a finalizer too."""
        self.owner.later(lambda: self._release(owner))

    def logits(self, ids: list[int]):
        "The logits (float32, one a token of the vocabulary) of what may follow `ids`."
        def job():
            self._stop = Stop()
            self._prefill(ids, Step(cached=self._seat(ids, None)), lambda event: None)
            return self._logits()
        return self.owner.call(job)

    def eval(self, tokens: list[int]):
        "Evaluate `tokens` behind what the slot holds; other slots make room. Every evaluation goes through here."
        slot, stop = self._slot, self._stop
        if self.snaps and len(tokens) == 1: stop = self._never     # broken off, it would cost the whole state
        while True:
            try: whole = self._eval(tokens, slot.seq, len(slot.cells), stop)
            except PoolFull as e:
                if not self._make_room(but=slot): raise ContextWindowExceededError(len(slot.cells), self.n_ctx) from e
                continue
            if whole: return slot.cells.extend(tokens)
            self._cut(slot, len(slot.cells))             # whatever the broken-off batch left behind
            raise _Stopped

    # --- slots --------------------------------------------------------------------------------------------------------
    def _seat(self, ids, owner, branch=True) -> int:
        "Make the slot for `ids` the one in use; returns how many of its cells it holds already."
        self._slot = self._place(ids, owner, branch)
        return len(self._slot.cells)

    def _place(self, ids, owner, branch=True) -> Slot:
        "Choose the slot for `ids`, and cut it to what it already holds of them."
        self._floors()
        choice = kv.choose(self.slots, owner, ids, self.can_trim, branch)
        if choice.how == 'own' and choice.slot.seq is not None: slot = choice.slot
        else: slot = self._open(choice, owner)
        if slot.once: self._drop([s for s in self.slots if s.once and s is not slot])
        self._clock += 1
        slot.used = self._clock
        self._cut(slot, min(choice.keep, len(slot.cells)))
        return slot

    def _open(self, choice, owner):
        "A new slot for `owner`, begun with what `choice` found; the owner's old one stays as a branch."
        slot, source = Slot(self._free_seq(choice.slot), owner=owner, once=owner is None), choice.slot
        if source and source.seq is not None:
            self._copy(source.seq, slot.seq, choice.keep)
            slot.cells, slot.edges = source.cells[:choice.keep], dict(source.edges)
        elif source and source.state is not None:
            back = self._restore(slot.seq, source.state)
            while not back and self._make_room(source): back = self._restore(slot.seq, source.state)
            slot.cells, slot.edges = (list(source.cells), dict(source.edges)) if back else ([], {})
        mine = [s for s in self.slots if owner is not None and s.owner is owner]
        self._drop([s for s in mine if s is not source and s.cells == slot.cells[:len(s.cells)]])   # all of it is there
        for s in mine: s.owner = None
        if source in self.slots and source.seq is None and source.owner is None: self.slots.remove(source)
        self.slots.append(slot)
        if source and source.seq is None: snapshots.fit(self, None)      # `source` was spared meanwhile
        return slot

    def _cut(self, slot, n):
        "Cut a slot to its first `n` cells, or where that cannot be done to fewer; returns what is left."
        fits = self.can_trim or n >= self._floor(slot.seq)
        if not (fits and self._trim(slot.seq, n)): n = snapshots.back(self, slot, n)
        del slot.cells[n:]
        slot.edges = {at: e for at, e in slot.edges.items() if at <= n}
        return n

    def _floors(self):
        "Ask where each slot can be cut."
        if self.can_trim: return
        for s in self.slots: s.floor = None if s.seq is None else self._floor(s.seq)

    def _free_seq(self, but):
        while not (free := set(range(self.n_seq)) - {s.seq for s in self.slots}):
            if not self._make_room(but): self._make_room(None)         # `but` has the only one: it is moved too
        return min(free)

    def _spare(self, but=None) -> bool:
        "Whether room can be made without taking a slot that is somebody's."
        victim = kv.evictable(self.slots, but)
        return victim is not None and victim.owner is None

    def _make_room(self, but) -> bool:
        "Move the least useful slot to host memory while its budget lasts, else drop it; False when there is none."
        if (victim := kv.evictable(self.slots, but)) is None: return False
        if victim.once or (state := self._save(victim.seq)) is None: self._drop([victim])
        else:
            self._trim(victim.seq, 0)
            victim.seq, victim.state = None, state
            snapshots.fit(self, but)
        return True

    def _drop(self, slots):
        for s in slots:
            if s.seq is not None: self._trim(s.seq, 0)
            s.seq = None
            self.slots.remove(s)

    def _release(self, owner):
        self.keys.discard(owner)
        self._drop([s for s in self.slots if s.owner is owner or not self.keys])
        if self._slot not in self.slots: self._slot = Slot()

    # --- one step -----------------------------------------------------------------------------------------------------
    def _step(self, ids, sampling, stop, step, constraint, owner, branch, emit):
        t0 = time.perf_counter()
        self._stop, step.finish = stop, 'cancelled'
        most = 0 if self.can_trim else min(self.cached(ids), len(ids) - 1)
        step.cached = self._seat(ids, owner, branch)
        step.rigid = most > step.cached
        try:
            self._prefill(ids, step, emit)
            step.prefill_s = time.perf_counter() - t0
            step.finish = self._decode(self._sampler(sampling, constraint), sampling, step, constraint, t0, emit)
        except _Stopped: pass
        finally:
            took = time.perf_counter() - t0
            step.prefill_s, step.decode_s = step.prefill_s or took, took - step.prefill_s if step.prefill_s else 0.0
            step.held = len(self.held)
            self._floors()
            if self.held and not (self.token_bytes and self.can_trim):
                self.token_bytes = self._kv_bytes(self._slot.seq) / step.held

    def _prefill(self, ids, step, emit):
        at, total = step.cached, len(ids)
        edges = snapshots.edges(ids, self.is_eog, self.is_control) if self.snaps else set()
        emit(Progress('prefill', at, total, at))
        while at < total:
            if self._stop.is_set(): raise _Stopped
            to = min(at + self.batch, total, *(e for e in edges if e > at))
            self.eval(ids[at:to])
            at, step.evaluated = to, to - step.cached
            if self.snaps: snapshots.keep(self, self._slot, passing=at not in edges)
            emit(Progress('prefill', at, total, step.cached))

    def _decode(self, sample, sampling, step, constraint, t0, emit):
        out, limit = step.generated, sampling.max_tokens or self.n_ctx
        while True:
            if self._stop.is_set(): raise _Stopped
            tok = sample()
            if not out: step.ttft = time.perf_counter() - t0
            if self.is_eog(tok): return 'stop'
            out.append(tok)
            emit(Token(tok, self.piece(tok)))
            if constraint and constraint.done: return 'stop'
            if len(out) >= limit or len(self.held) >= self.n_ctx: return 'length'
            self.eval([tok])
