"""`AsyncChat`: a Chat for code that runs in an event loop. The same turns, read from another thread."""
from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial

from .owner import Stop

__all__ = ['AsyncChat']

_ASIDE = ('oneshot', 'structured', 'classify', 'check', 'grades', 'map')
_END = object()


class AsyncChat:
    """`await chat(msg)` gives the Resp, `async for piece in chat(msg, stream=True)` the pieces; one-shots and `map` are
    awaited too. All else is that of `chat.chat`, the Chat within, which `AsyncChat(chat)` wraps and which any other
    arguments make. Cancelling the task ends the turn within half a second and keeps what was written; a tool that does
    not end is left behind, and the next turn waits for it."""

    def __init__(self, *args, **kw):
        from .core import Chat  # which offers this class in turn
        wraps = len(args) == 1 and isinstance(args[0], Chat) and not kw
        object.__setattr__(self, 'chat', args[0] if wraps else Chat(*args, **kw))

    def __getattr__(self, name):
        if name == 'chat': raise AttributeError(name)            # before there is one, as copies are made
        value = getattr(self.chat, name)
        return partial(self._threaded, value) if name in _ASIDE else value

    def __setattr__(self, name, value): setattr(self.chat, name, value)
    def __repr__(self): return f'Async{self.chat!r}'

    def __call__(self, msg=None, stream=False, max_output_tokens=None, cbs=None):
        if not stream: return self._threaded(self.chat, msg, max_output_tokens=max_output_tokens, cbs=cbs)
        return _pieces(lambda: self.chat(msg, stream, max_output_tokens, cbs))

    async def _threaded(self, fn, *args, **kw):
        return [value async for value in _pieces(lambda: [fn(*args, **kw)])][0]

    def fork(self) -> AsyncChat:
        "Another AsyncChat that goes on from here; neither sees the other's turns."
        return AsyncChat(self.chat.fork())

    async def __aenter__(self): return self
    async def __aexit__(self, *_): self.chat.close()


async def _pieces(ask):
    "What `ask()` yields, read on a thread with this task's context; leaving early stops all turns that began there."
    loop, queue, stop, item = asyncio.get_running_loop(), asyncio.Queue(), Stop(), None
    context = contextvars.copy_context()
    context.run(Stop.around.set, stop)
    threading.Thread(target=context.run, args=(_read, ask, loop, queue), daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            if error: raise error
            if item is _END: return
            yield item
    finally:
        if item is not _END:
            stop.set()
            await _drained(queue)


def _read(ask, loop, queue):
    def tell(*item):
        try: loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError: pass        # the loop was closed meanwhile
    try:
        for item in ask(): tell(item, None)
        tell(_END, None)
    except BaseException as e: tell(_END, e)


async def _drained(queue, seconds=.5):
    "Wait until the thread has ended, but not for ever."
    try:
        async with asyncio.timeout(seconds):
            while (await queue.get())[0] is not _END: pass
    except TimeoutError: pass
