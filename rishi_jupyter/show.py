"""Show a turn while it runs and leave it readable. The widget is for the time of the turn; what stays is static.

Three screens: `Live` in a front end with widgets, `Plain` in a kernel without (or with nobody watching: nbclient,
nbconvert), `Printed` in a terminal. Each can show, ask, and close. A question is answered by buttons where their clicks
arrive while the cell runs, else by typing; where nobody can type it is refused.
"""
import contextvars
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial

from rishi.errors import RishiError
from rishi.types import ApprovalNeeded

from . import fold, view
from .fold import Answer, Card, Header, Said, State, Thought
from .markdown import visible

__all__ = ['Header', 'Interrupted', 'present']

PACE = 0.05         # seconds between updates of a running view: at most 20 a second
SHARE = 20          # ... and drawing may take one part in so many of the time, however long the answer
PATIENCE = 2.       # seconds that the page has for saying that its clicks arrive
ANSWERS = dict(once=Answer(True), always=Answer(True, always=True), deny=Answer(False))
NOBODY = Answer(False, why='nobody is here to approve it')


def present(events, header, *, on_stop, on_answer=None, about=None, stream=True, fmt='markdown', reasoning=True,
            stats=True) -> State:
    """Show the turn that `events` make, and return its last `State`.

    `header` is a `Header` or a function that gives one, asked again as the turn goes on. `on_stop()` is called by the
    Stop button (from another thread) and by the first Interrupt, after which `KeyboardInterrupt` is raised once the
    turn is shown; the second Interrupt raises at once. An error of the iterator is shown, then raised again.

    With `on_answer(call, answer)`, an ApprovalNeeded is put to the person before the iterator goes on: `answer` is an
    `Answer`, or None if they stopped the turn instead. `about` says in a line what each tool does."""
    ask = header if callable(header) else lambda: header
    state = State(header=ask(), fmt=fmt, reasoning=reasoning, stats=stats, about=dict(about or {}))
    screen = _screen(state, on_stop, stream)
    with _Interrupts(on_stop) as stops:
        turn = _Turn(state, ask, screen, stops, on_answer)
        try: turn.follow(events)
        except KeyboardInterrupt:
            stops.count += 1
            turn.end(fold.stop)
        except Exception as e:
            early = isinstance(e, RishiError) and (stops.count or screen.stopped) and not turn.state.parts
            turn.end(fold.stop if early else partial(fold.fail, error=e))
            if not early: raise
        finally:
            if not turn.state.over: turn.end(fold.stop)
            screen.close(turn.state)
        if stops.count: raise Interrupted('stopped by you; what was written is kept.')
    return turn.state


class Interrupted(KeyboardInterrupt):
    "The Interrupt of a cell, told in one line; it keeps Run All from going on."

    def _render_traceback_(self): return [f'KeyboardInterrupt: {self}']


class _Turn:
    "The fold and its clock. A second thread draws, so that an event never waits, and what came last is always seen."

    def __init__(self, state, ask, screen, stops, on_answer):
        self.state, self.ask, self.screen, self.stops, self.on_answer = state, ask, screen, stops, on_answer
        self.start, self.ended = time.monotonic(), threading.Event()
        self.shown, self.drawing = state, threading.Lock()

    def now(self): return time.monotonic() - self.start

    def follow(self, events):
        drawer = threading.Thread(target=contextvars.copy_context().run, args=(self._draw_on,), daemon=True)
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
            if isinstance(event, ApprovalNeeded) and self.on_answer: self._put(event.call)
        if not self.state.over: self.end(fold.stop)

    def _put(self, call):
        "Put the question to the person, and hand on what they say."
        if self.screen.hears(self.stops): self.state = replace(self.state, buttons=True)
        self._draw()                                     # what is typed comes below it
        answer = self.screen.ask(call, self.stops)
        self.state = fold.decide(self.state, call, answer if answer is not NOBODY else None, self.now())
        self.on_answer(call, answer)

    def _name(self): self.state = replace(self.state, header=self.ask())

    def _draw_on(self):
        pause = self.screen.pace
        while not self.ended.wait(pause): pause = max(self.screen.pace, SHARE * self._draw())

    def _draw(self):
        "Draw what is new; the seconds that it took."
        with self.drawing:
            state, began = self.state, self.now()
            if state is not self.shown and not state.over: self.screen.show(state)
            self.shown = state
            return self.now() - began

    def end(self, how):
        self.state = how(self.state, t=self.now())
        self._name()


class _Interrupts:
    """The first SIGINT stops the turn softly, the second raises; one that finds the person typing does both. Main
    thread only: elsewhere none is heard."""

    def __init__(self, on_stop): self.on_stop, self.count, self.typing, self.old = on_stop, 0, False, None

    def __enter__(self):
        self.heard = threading.current_thread() is threading.main_thread()
        if self.heard: self.old = signal.signal(signal.SIGINT, self.hear)
        return self

    def __exit__(self, *_):
        if self.heard: signal.signal(signal.SIGINT, self.old)

    def press(self):
        self.count += 1
        if self.count == 1: self.on_stop()

    def hear(self, *_):
        self.press()
        if self.count > 1 or self.typing: raise KeyboardInterrupt


def _typed(call, stops):
    "The answer that the person types; None when they interrupt instead, `NOBODY` where nothing can be typed."
    try:
        stops.typing = True
        said = input(f'Run {visible(view.spelled(call))}? y, n, a for always, or why not: ').strip()
    except KeyboardInterrupt:
        if not stops.count: stops.press()
        return None
    except (EOFError, OSError, RuntimeError): return NOBODY
    finally: stops.typing = False
    short = dict(y='once', yes='once', a='always', always='always', n='deny', no='deny').get(said.lower())
    return ANSWERS[short] if short else Answer(False, why=said)


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


class _Screen:
    "What a screen without buttons does with a question."
    stopped = False

    def hears(self, stops): return False
    def ask(self, call, stops): return _typed(call, stops)


class _Live:
    "A widget in the cell, replaced by the static turn at the end."
    pace = PACE

    def __init__(self, state, live, stream):
        from IPython.display import display
        self.live, self.stream, self.patience = live, stream, PATIENCE
        self.handle = display(live.widget, display_id=True)

    @property
    def stopped(self): return self.live.stopped.is_set()

    def hears(self, stops):
        "Whether clicks arrive while the cell runs. The page says so when it can; it is waited for once."
        until, self.patience = time.monotonic() + self.patience, 0
        while not self.live.hello.wait(PACE):
            if time.monotonic() > until or stops.count: return False
        return True

    def ask(self, call, stops):
        if not self.live.hello.is_set(): return _typed(call, stops)
        while not (stops.count or self.stopped):
            if said := self.live.answer(call.id, PACE): return ANSWERS[said]

    def show(self, state): self.live.show(state if self.stream else replace(state, parts=_without_text(state)))

    def close(self, state):
        self.handle.update(_bundle(state), raw=True)
        self.live.close()


class _Plain(_Screen):
    "A display that is written once at the end, or again and again where widgets are not to be had."
    pace = 2 * PACE

    def __init__(self, state, moving):
        from IPython.display import display
        self.display, self.moving = display, moving
        self.handle = display(_bundle(state), raw=True, display_id=True) if moving else None

    def show(self, state):
        if self.moving: self.handle.update(_bundle(state), raw=True)

    def close(self, state):
        if self.moving: self.handle.update(_bundle(state), raw=True)
        else: self.display(_bundle(state), raw=True)


class _Printed(_Screen):
    "Text on stdout as it comes."
    pace = PACE

    def __init__(self, stream): self.stream, self.part, self.done, self.told = stream, -1, 0, set()

    def show(self, state):
        if self.stream and state.fmt == 'markdown': self._grow(state)

    def close(self, state):
        if self.part < 0: return print(view.text(state), flush=True)
        self._grow(state)
        print('\n' + view.ending(state), flush=True)

    def ask(self, call, stops):
        print()
        return super().ask(call, stops)

    def _grow(self, state):
        for i, part in enumerate(state.parts):
            if i > self.part:
                print('\n' * 2 * (self.part >= 0) + self._opening(part, state), end='')
                self.part, self.done = i, 0
            if i == self.part: self._more(part, state)
            if isinstance(part, Card) and part.result and i not in self.told:
                self.told.add(i)
                print(f'\n→ {visible(view.outcome(part))}', end='', flush=True)

    def _more(self, part, state):
        text = part.text if isinstance(part, Said) or isinstance(part, Thought) and state.reasoning else ''
        print(visible(text[self.done:]), end='', flush=True)
        self.done = len(text)

    def _opening(self, part, state):
        if isinstance(part, Thought): return 'Thinking: ' if state.reasoning else 'Thinking'
        return f'⏳ {visible(view.clipped(part.call))}' if isinstance(part, Card) else ''


def _without_text(state):
    "The parts with the answer left out; the thinking's place stays, since the line is made from it."
    return tuple(p for p in state.parts if not isinstance(p, Said))
