"""Coroutines run to their end from synchronous code, inside a running event loop too.

They run on a loop of their own, on a helper thread: one for the process, so that a client or session that a tool
opened in one call still works in the next. A coroutine that itself waits for another one gets a second loop. What is
bound to the caller's own loop (the notebook's, say) cannot be awaited here: that loop waits for us.
"""
from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable

__all__ = ['Stopped', 'finish', 'POLL']

POLL = 0.05              # seconds between looks at the stop event
_inside = contextvars.ContextVar('rishi_tool_loop', default=False)


class Stopped(Exception):
    "The stop event was set before the work had ended; what runs was told to end, and left behind."


class _Loop:
    "An event loop that runs on a daemon thread until it is stopped."

    def __init__(self):
        self.loop, self.left = asyncio.new_event_loop(), []
        self.thread = threading.Thread(target=self._work, name='rishi-tools', daemon=True)
        self.thread.start()

    def _work(self):
        try: self.loop.run_forever()
        finally: self.loop.close()

    def usable(self):
        "Whether the thread lives (a fork has none) and what was left behind has ended, or does in a moment."
        self.left = [o for o in self.left if not o.done.wait(.2)]
        return self.thread.is_alive() and not self.left


class _Job:
    "One awaitable on a loop: `done` is set when `result` or `error` stands. `once` ends the loop with it."

    def __init__(self, loop, awaitable, once):
        self.loop, self.awaitable, self.once, self.done = loop, awaitable, once, threading.Event()
        self.task = self.result = self.error = None

    def start(self):
        context = contextvars.copy_context()
        context.run(_inside.set, True)
        self.loop.loop.call_soon_threadsafe(self._start, context)

    def _start(self, context):
        self.task = self.loop.loop.create_task(self._run(), context=context)
        if self.once: self.task.add_done_callback(lambda _: self.loop.loop.stop())

    async def _run(self):
        try: self.result = await self.awaitable
        except BaseException as e: self.error = e       # also KeyboardInterrupt: the caller raises it, the loop lives
        finally: self.done.set()

    def cancel(self):
        "Ask it to end; do not wait."
        self.loop.left.append(self)
        try: self.loop.loop.call_soon_threadsafe(self._end)
        except RuntimeError: pass                       # it ended just now, and its loop with it

    def _end(self):
        if self.task: self.task.cancel()
        else: self.done.set()                           # an interrupt came before it was started


_lock = threading.Lock()
_shared: list[_Loop] = []


def _home():
    "The shared loop; a new one if a coroutine that was left behind still holds it."
    with _lock:
        if not _shared or not _shared[-1].usable(): _shared[:] = [_Loop()]
        return _shared[-1]


def finish(awaitable: Awaitable, stop: threading.Event | None = None):
    "The result of `awaitable`, or its exception; `Stopped` once `stop` is set. The caller's context variables hold."
    nested = _inside.get()
    job = _Job(_Loop() if nested else _home(), awaitable, nested)
    try:
        job.start()
        while not job.done.wait(POLL):
            if stop is not None and stop.is_set(): raise Stopped
    except BaseException:
        job.cancel()
        raise
    if job.error is not None: raise job.error
    return job.result
