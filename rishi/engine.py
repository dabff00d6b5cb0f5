"""`Engine`: a model on one owner thread. Prefill, decode, stop and accounts are written here once; a backend supplies
the few primitives below. One slot of the KV cache for now: `held` is what it holds.
"""
from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import kv
from .dialect import Template
from .errors import ContextWindowExceededError, EngineClosed, EngineError
from .owner import Owner, Stop
from .types import FinishReason, Progress, Sampling

__all__ = ['Engine', 'Token', 'Step']


@dataclass(frozen=True)
class Token:
    "One generated token: its id and the bytes that it stands for (maybe part of a character)."
    id: int
    data: bytes


@dataclass
class Step:
    """The accounts of one prompt and its answer: counts in tokens, times in seconds since the engine took it up.
    `cached` tokens of the prompt were held already, `evaluated` were not; the cache holds `held` at the end."""
    cached: int = 0
    evaluated: int = 0
    held: int = 0
    generated: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    ttft: float = 0.0
    decode_s: float = 0.0
    finish: FinishReason = 'cancelled'


class _Stopped(Exception): "The stop flag was seen inside a native call."


class Engine:
    """Base of all engines. `name` is for people, `n_ctx` the window in tokens, `template` the model's chat template,
    `system` a system prompt for chats that give none, `held` the token ids in the KV cache, `batch` the tokens that
    are evaluated between two looks at the stop flag."""
    name = path = system = ''
    runtime = None
    n_ctx = n_threads = batch = vocab_size = 0
    gpu, can_trim = False, True
    template: Template

    def __init__(self, name):
        self.name, self.held, self.owner = name, [], Owner(name)
        self._finalizer = weakref.finalize(self, self.owner.close)

    # --- what a backend supplies; all but the first four run on the owner's thread -----------------------------------
    def tokenize(self, data: bytes, first: bool) -> list[int]: raise NotImplementedError
    def piece(self, id: int) -> bytes: raise NotImplementedError
    def is_control(self, id: int) -> bool: raise NotImplementedError
    def is_eog(self, id: int) -> bool: raise NotImplementedError
    def _eval(self, tokens: list[int], stop: Stop) -> bool: raise NotImplementedError
    def _trim(self, n: int) -> bool: raise NotImplementedError
    def _sampler(self, sampling: Sampling, constraint): raise NotImplementedError
    def _logits(self): raise NotImplementedError
    def _kv_bytes(self) -> int: return 0
    def _free(self): pass

    # --- what is written once ----------------------------------------------------------------------------------------
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

    def stream(self, ids: list[int], sampling: Sampling, stop: Stop, step: Step, constraint=None, *,
               wait=True) -> Iterator:
        """Evaluate what is new of the prompt `ids`, then generate: yields Progress and Token. `step` is filled as it
        goes and final when the stream has ended; `constraint` (see `grammar`) narrows what may come. Raises ContextWindowExceededError before anything is evaluated."""
        if not ids: raise EngineError('The prompt is empty: the chat template rendered no text.')
        if len(ids) >= self.n_ctx: raise ContextWindowExceededError(len(ids), self.n_ctx)
        return self.owner.stream(lambda flag, emit: self._step(ids, sampling, flag, step, constraint, emit),
                                 stop, wait)

    def kv_bytes(self) -> int:
        "Bytes that the held tokens take in the cache."
        return self.owner.call(self._kv_bytes)

    def logits(self, ids: list[int]):
        "The logits (float32, one a token of the vocabulary) of what may follow `ids`."
        def job():
            self._stop = Stop()
            self._prefill(ids, Step(cached=self._keep(kv.plan(self.held, ids, self.can_trim))), lambda event: None)
            return self._logits()
        return self.owner.call(job)

    def eval(self, tokens: list[int]):
        "Evaluate `tokens` behind what is held. Every evaluation goes through here."
        if not self._eval(tokens, self._stop):
            self._trim(len(self.held))   # whatever the broken-off batch left behind
            raise _Stopped
        self.held.extend(tokens)

    def _step(self, ids, sampling, stop, step, constraint, emit):
        t0 = time.perf_counter()
        self._stop, step.finish = stop, 'cancelled'
        step.cached = self._keep(kv.plan(self.held, ids, self.can_trim))
        try:
            self._prefill(ids, step, emit)
            step.prefill_s = time.perf_counter() - t0
            step.finish = self._decode(self._sampler(sampling, constraint), sampling, step, constraint, t0, emit)
        except _Stopped: pass
        finally:
            took = time.perf_counter() - t0
            step.prefill_s, step.decode_s = step.prefill_s or took, took - step.prefill_s if step.prefill_s else 0.0
            step.held = len(self.held)

    def _keep(self, n):
        "Cut the cache to its first `n` cells, or empty it where that cannot be done."
        if n < len(self.held) and not self._trim(n):
            n = 0
            self._trim(0)
        del self.held[n:]
        return n

    def _prefill(self, ids, step, emit):
        total = len(ids)
        emit(Progress('prefill', step.cached, total, step.cached))
        for i in range(step.cached, total, self.batch):
            if self._stop.is_set(): raise _Stopped
            self.eval(ids[i:i + self.batch])
            step.evaluated = len(self.held) - step.cached
            emit(Progress('prefill', min(i + self.batch, total), total, step.cached))

    def _decode(self, sample, sampling, step, constraint, t0, emit):
        out, limit = step.generated, sampling.max_tokens or self.n_ctx
        while True:
            if self._stop.is_set(): raise _Stopped
            if constraint and constraint.done: return 'stop'
            tok = sample()
            if not out: step.ttft = time.perf_counter() - t0
            if self.is_eog(tok): return 'stop'
            out.append(tok)
            emit(Token(tok, self.piece(tok)))
            if len(out) >= limit or len(self.held) >= self.n_ctx: return 'length'
            self.eval([tok])
