"""How a chat is asked: one turn at a time, as a result, as Markdown pieces or as events. The same events serve all."""
from __future__ import annotations

import threading
from collections.abc import Iterator

from . import idle, turn
from .callbacks import listed
from .errors import BadRequest, ContextWindowExceededError, EngineBusy
from .owner import Stop
from .stream import markdown
from .types import Done, Event, Preflight, Progress, Sampling

__all__ = ['ToolLoopMixin']


class ToolLoopMixin:
    "The callable part of a Chat."
    _idle = None                         # what is evaluated for the next turn meanwhile
    _stop: Stop | None = None            # of the turn that runs

    def __call__(self, msg=None, stream=False, max_output_tokens=None, cbs=None):
        """One turn. `msg` is text, or None to answer the history as it stands. Returns a Resp; `stream=True` yields
        Markdown pieces, `stream='events'` the typed events. `cbs` are callbacks for this turn alone. The conversation
        is left as it was when it raises; an interrupt keeps what was written."""
        if stream not in (False, True, 'events'): raise BadRequest(f"stream={stream!r}: use False, True or 'events'.")
        events = self._events(self._message(msg), self._sampling(max_output_tokens), [*self.cbs, *listed(cbs)])
        if stream == 'events': return events
        if stream: return markdown(events)
        for e in events:
            if isinstance(e, Done): return e.resp

    def preflight(self, msg=None, max_output_tokens=None) -> Preflight:
        """What a turn with `msg` would send, and how much of it the cache holds now; nothing runs. Callbacks take part,
        and so do those that shorten the history. Raises BadRequest."""
        eng, limit = self.engine, self.ctx_limit
        try: ids = turn.first_prompt(self, self._message(msg), self._sampling(max_output_tokens).max_tokens, self.cbs)
        except ContextWindowExceededError as e: return Preflight(e.used, 0, e.used, limit, False)
        cached = eng.hit(ids, self._key)
        return Preflight(len(ids), cached, len(ids) - cached, limit)

    def cancel(self):
        "End the running turn and those that wait, from any thread; what was written so far stays."
        for stop in list(self._stops): stop.set()

    def _message(self, msg):
        if msg is None: return None
        if not isinstance(msg, str): what = f'A message of type {type(msg).__name__}'
        elif not msg.strip(): what = 'An empty message'
        elif not msg.isascii() and _broken(msg): what = 'A message with half a surrogate pair'
        else: return {'role': 'user', 'content': msg}
        raise BadRequest(f'{what} cannot be sent: give some text.')

    def _sampling(self, max_tokens=None) -> Sampling:
        try:
            return Sampling(self.temp, self.top_k, self.top_p, self.min_p, self.seed,
                            self.max_output_tokens if max_tokens is None else max_tokens, **self.comp_kw)
        except TypeError as e: raise BadRequest(f'comp_kw holds an option that sampling does not have: {e}.') from e

    def _events(self, message, sampling, cbs) -> Iterator[Event]:
        "The turn's events; one turn at a time, and a stream that this thread left half read is ended first."
        me, running = threading.get_ident(), self._turn
        if running and (running[1] == me or any(chat is self for chat in turn.inside.get())):
            if running[1] != me or running[0].gi_running:
                raise EngineBusy('This chat is in the middle of a turn; ask again after it.')
            running[0].close()
        this = []
        this += [self._locked(message, sampling, cbs, this), me]
        return this[0]

    def _locked(self, message, sampling, cbs, this):
        stop = Stop()
        self._stops.append(stop)
        try:
            if not self._lock.acquire(blocking=False):
                yield Progress('wait', 0, 0)
                while not self._lock.acquire(timeout=.2): pass
            try:
                self._turn, self._stop = this, stop
                idle.end(self)
                done = yield from turn.run(self, message, sampling, stop, cbs)
                idle.begin(self)
            finally:
                self._turn = self._stop = None
                self._lock.release()
        finally: self._stops.remove(stop)
        yield done           # the chat is free by now: its reader need not read on


def _broken(text):
    try: text.encode()
    except UnicodeEncodeError: return True
