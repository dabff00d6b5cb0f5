"""One thread that owns an engine: its jobs run one after another, callers read what they emit.

Native contexts abort the process when two threads use them at once, and crash when used after being freed. Here that
cannot happen: every native call is part of a job, and a closed owner takes no jobs.
"""
from __future__ import annotations

import ctypes
import threading
from contextvars import ContextVar
from queue import Empty, SimpleQueue

from .errors import EngineBusy, EngineClosed
from .types import Progress

__all__ = ['Owner', 'Stop', 'finish']


class Stop(threading.Event):
    """A stop flag that native code sees too: `flag` is a C string, empty until `set`. One that is made in a context
    where `around` is set to another belongs to that one, and is set with it."""
    around: ContextVar[Stop | None] = ContextVar('rishi_stop', default=None)

    def __init__(self):
        super().__init__()
        self.flag, self.inner = ctypes.create_string_buffer(2), []
        if outer := self.around.get():
            outer.inner.append(self)
            if outer.is_set(): self.set()

    def set(self):
        self.flag[0] = b'1'
        super().set()
        for stop in list(self.inner): stop.set()


class Owner:
    "Runs jobs on a thread of its own; `name` is for messages."

    def __init__(self, name='engine'):
        self.name, self.closed, self.aside = name, False, None       # aside: the stop of work that yields to any job
        self._jobs, self._lock, self._stops = SimpleQueue(), threading.Lock(), []
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=f'rishi-{name}', daemon=True)
        self._thread.start()

    def stream(self, job, stop: threading.Event, wait=True):
        """Run `job(stop, emit)` on the owner's thread and yield what it emits; returns what it returns.
        Leaving early sets `stop`, and waits for the job to end if it has begun. Raises EngineClosed, and EngineBusy
        with `wait=False` when another job runs."""
        box, began, over, ended = SimpleQueue(), threading.Event(), threading.Event(), False
        waits = self._put(lambda: _feed(job, stop, box, began, over), stop, wait)
        try:
            if waits: yield Progress('wait', 0, 0)
            while True:
                kind, item = _get(box)
                ended = kind != 'item'
                if kind == 'item': yield item
                elif kind == 'end': return item
                else: raise item
        finally:
            if not ended:
                stop.set()
                while began.is_set() and not over.wait(.2): pass    # not the box: an interrupt may eat its end

    def call(self, fn):
        "Run `fn()` on the owner's thread and return its result."
        return finish(self.stream(lambda stop, emit: fn(), threading.Event()))

    def later(self, fn):
        "Run `fn()` on the owner's thread some time soon, unless it is closed before. Never waits."
        self._jobs.put(fn)

    @property
    def busy(self) -> bool:
        "Whether a job runs or waits."
        return bool(self._stops)

    def close(self, last=None):
        "Stop what runs, run `last()` on the owner's thread, end the thread. A second call does nothing."
        with self._lock:
            if self.closed: return
            self.closed = True
            for stop in self._stops: stop.set()
            if aside := self.aside: aside.set()
            if last: self._jobs.put(last)
            self._jobs.put(None)
        if threading.current_thread() is not self._thread: self._thread.join()

    def _put(self, job, stop, wait):
        "Queue `job`; True when others are before it."
        with self._lock:
            if self.closed: raise EngineClosed(f'The engine of {self.name} is closed; make a new Chat to go on.')
            if self._stops and not wait: raise EngineBusy(f'The engine of {self.name} is answering another request; '
                                                          'wait for it or stop it.')
            self._stops.append(stop)
            self._jobs.put(lambda: self._run(job, stop))
            if aside := self.aside: aside.set()
            return len(self._stops) > 1

    def _run(self, job, stop):
        try: job()
        finally:
            with self._lock: self._stops.remove(stop)


def finish(gen):
    "Run a generator to its end for what it returns."
    while True:
        try: next(gen)
        except StopIteration as e: return e.value


def _work(jobs):
    while (job := jobs.get()) is not None:
        job()
        del job                          # else the last job's engine lives until the next one


def _feed(job, stop, box, began, over):
    began.set()
    try: box.put(('end', job(stop, lambda item: box.put(('item', item)))))
    except BaseException as e: box.put(('raise', e))     # told to the caller, whose affair it is
    finally: over.set()


def _get(box):
    "Waits in slices, so that an interrupt is seen on every platform."
    while True:
        try: return box.get(timeout=.2)
        except Empty: continue
