"""Show a turn while it runs and leave it readable. The widget is for the time of the turn; what stays is static.

Three screens with one method each: `Live` in a front end with widgets, `Plain` in a kernel without (or with nobody
watching: nbclient, nbconvert), `Printed` in a terminal.
"""
import contextvars
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from rishi.errors import RishiError

from . import fold, view
from .fold import Card, Header, Said, State, Thought
from .markdown import visible

__all__ = ['Header', 'Interrupted', 'present']

PACE = 0.05         # seconds between updates of a running view: at most 20 a second
SHARE = 20          # ... and drawing may take one part in so many of the time, however long the answer


def present(events, header, *, on_stop, stream=True, fmt='markdown', reasoning=True, stats=True) -> State:
    """Show the turn that `events` make, and return its last `State`.

    `header` is a `Header` or a function that gives one, asked again as the turn goes on. `on_stop()` is called by the
    Stop button (from another thread) and by the first Interrupt, after which `KeyboardInterrupt` is raised once the
    turn is shown; the second Interrupt raises at once. An error of the iterator is shown, then raised again."""
    ask = header if callable(header) else lambda: header
    turn = _Turn(State(header=ask(), fmt=fmt, reasoning=reasoning, stats=stats), ask)
    screen = _screen(turn.state, on_stop, stream)
    with _interrupts(on_stop) as pressed:
        try: turn.follow(events, screen)
        except KeyboardInterrupt:
            pressed.append('now')
            turn.end(fold.stop)
        except Exception as e:
            early = isinstance(e, RishiError) and (pressed or screen.stopped) and not turn.state.parts
            turn.end(fold.stop if early else partial(fold.fail, error=e))
            if not early: raise
        finally:
            if not turn.state.over: turn.end(fold.stop)
            screen.close(turn.state)
        if pressed: raise Interrupted('stopped by you; what was written is kept.')
    return turn.state


class Interrupted(KeyboardInterrupt):
    "The Interrupt of a cell, told in one line; it keeps Run All from going on."

    def _render_traceback_(self): return [f'KeyboardInterrupt: {self}']


class _Turn:
    "The fold and its clock. A second thread draws, so that an event never waits, and what came last is always seen."

    def __init__(self, state, ask):
        self.state, self.ask = state, ask
        self.start, self.ended = time.monotonic(), threading.Event()

    def now(self): return time.monotonic() - self.start

    def follow(self, events, screen):
        drawer = threading.Thread(target=contextvars.copy_context().run, args=(self._draw_on, screen), daemon=True)
        drawer.start()
        try: self._fold(events)
        finally:
            self.ended.set()
            getattr(events, 'close', lambda: None)()
            drawer.join()

    def _fold(self, events):
        for event in events:
            before, self.state = self.state.phase, fold.apply(self.state, event, self.now())
            if self.state.phase != before: self._name()
        if not self.state.over: self.end(fold.stop)

    def _name(self): self.state = replace(self.state, header=self.ask())

    def _draw_on(self, screen):
        shown, pause = self.state, screen.pace
        while not self.ended.wait(pause):
            state, began = self.state, self.now()
            if state is shown or state.over: continue
            screen.show(shown := state)
            pause = max(screen.pace, SHARE * (self.now() - began))

    def end(self, how):
        self.state = how(self.state, t=self.now())
        self._name()


@contextmanager
def _interrupts(on_stop):
    "The first SIGINT stops the turn softly, and is noted in the list given; the second raises. Main thread only."
    pressed = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def hear(signum, frame):
        if pressed: raise KeyboardInterrupt
        pressed.append('softly')
        on_stop()
    old = signal.signal(signal.SIGINT, hear)
    try: yield pressed
    finally: signal.signal(signal.SIGINT, old)


# --- where it is shown ----------------------------------------------------------------------------------------------
def _shell():
    "The IPython shell of this process, or None."
    ipython = sys.modules.get('IPython')
    return ipython.get_ipython() if ipython else None


def _watched(kernel):
    "Whether somebody may be looking: clients that run a notebook on their own take no input."
    try: parent = kernel.get_parent('shell') or {}
    except (AttributeError, TypeError): return True
    return bool(parent.get('content', {}).get('allow_stdin', True))


def _screen(state, on_stop, stream):
    kernel = getattr(_shell(), 'kernel', None)
    if kernel is None: return _Printed(stream)
    if not _watched(kernel): return _Plain(state, moving=False)
    try:
        from .live import LiveTurn
    except ImportError: return _Plain(state, moving=stream)
    return _Live(state, LiveTurn(state, on_stop), stream)


def _bundle(state): return {'text/html': view.html(state), 'text/plain': view.text(state)}


class _Live:
    "A widget in the cell, replaced by the static turn at the end."
    pace = PACE

    def __init__(self, state, live, stream):
        from IPython.display import display
        self.live, self.stream = live, stream
        self.handle = display(live.widget, display_id=True)

    @property
    def stopped(self): return self.live.stopped.is_set()

    def show(self, state): self.live.show(state if self.stream else replace(state, parts=_without_text(state)))

    def close(self, state):
        self.handle.update(_bundle(state), raw=True)
        self.live.close()


class _Plain:
    "A display that is written once at the end, or again and again where widgets are not to be had."
    pace, stopped = 2 * PACE, False

    def __init__(self, state, moving):
        from IPython.display import display
        self.display, self.moving = display, moving
        self.handle = display(_bundle(state), raw=True, display_id=True) if moving else None

    def show(self, state):
        if self.moving: self.handle.update(_bundle(state), raw=True)

    def close(self, state):
        if self.moving: self.handle.update(_bundle(state), raw=True)
        else: self.display(_bundle(state), raw=True)


class _Printed:
    "Text on stdout as it comes."
    pace, stopped = PACE, False

    def __init__(self, stream): self.stream, self.part, self.done = stream, -1, 0

    def show(self, state):
        if self.stream and state.fmt == 'markdown': self._grow(state)

    def close(self, state):
        if self.part < 0: return print(view.text(state), flush=True)
        self._grow(state)
        print('\n' + view.ending(state), flush=True)

    def _grow(self, state):
        for i, part in enumerate(state.parts[max(self.part, 0):], max(self.part, 0)):
            if i > self.part:
                print('\n' * 2 * (self.part >= 0) + self._opening(part, state), end='')
                self.part, self.done = i, 0
            text = part.text if isinstance(part, Said) or isinstance(part, Thought) and state.reasoning else ''
            print(visible(text[self.done:]), end='', flush=True)
            self.done = len(text)

    def _opening(self, part, state):
        if isinstance(part, Thought): return 'Thinking: ' if state.reasoning else 'Thinking'
        return f'⏳ {visible(part.call.name)}' if isinstance(part, Card) else ''


def _without_text(state):
    "The parts with the answer left out; the thinking's place stays, since the line is made from it."
    return tuple(p for p in state.parts if not isinstance(p, Said))
