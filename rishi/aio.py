"""`AsyncChat`: a Chat for code that runs in an event loop. The same turns, read from another thread."""
from __future__ import annotations

import asyncio
import contextvars
import threading

from .types import Done

__all__ = ['AsyncChat']

_END = object()


class AsyncChat:
    """`await chat(msg)` gives the Resp, `async for piece in chat(msg, stream=True)` the pieces; everything else is that
    of `chat.chat`, the Chat within. Cancelling the task ends the turn as an interrupt does."""

    def __init__(self, *args, **kw):
        from .core import Chat  # which offers this class in turn
        self.chat = Chat(*args, **kw)

    def __getattr__(self, name): return getattr(self.__dict__['chat'], name)

    def __call__(self, msg=None, stream=False, **kw):
        if stream: return self._pieces(self.chat(msg, stream=stream, **kw))
        return self._whole(self.chat(msg, stream='events', **kw))

    async def _whole(self, events):
        async for e in self._pieces(events):
            if isinstance(e, Done): return e.resp

    async def _pieces(self, sync):
        "What the generator `sync` yields, in this loop; it runs on a thread with this task's context."
        loop, queue, quit = asyncio.get_running_loop(), asyncio.Queue(), threading.Event()
        def tell(item):
            if not loop.is_closed(): loop.call_soon_threadsafe(queue.put_nowait, item)
        def work():
            try:
                for item in sync:
                    tell((item, None))
                    if quit.is_set(): break
                sync.close()
                tell((_END, None))
            except BaseException as e: tell((_END, e))
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        thread.start()
        ended = False
        try:
            while True:
                item, error = await queue.get()
                ended = item is _END
                if error: raise error
                if ended: return
                yield item
        finally:
            quit.set()
            if not ended: self.chat.cancel()
            while thread.is_alive(): thread.join(.01)

    async def __aenter__(self): return self
    async def __aexit__(self, *_): self.chat.close()
