"""The widget of a running turn: it takes states, sends what changed, and hears the buttons.

Imported only when a turn is drawn in a front end that can show it; `import rishi_jupyter` loads no widget code.
"""
import queue
import threading
from importlib.resources import files

import anywidget
import traitlets

from rishi.kv import common_prefix_len

from . import view
from .fold import Said, Thought
from .markdown import esc, split
from .style import SHEET

__all__ = ['LiveTurn', 'Sender']


class _Widget(anywidget.AnyWidget):
    _esm = files(__package__).joinpath('live.js').read_text(encoding='utf-8')
    _css = SHEET
    frame = traitlets.Unicode().tag(sync=True)
    born = traitlets.Float().tag(sync=True)

    def __repr__(self): return 'A turn of rishi that is still running'


def _units(s): return len(s) if s.isascii() else len(s.encode('utf-16-le', 'surrogatepass')) // 2


class Sender:
    "What a running view has to be told: `changes(state)` gives the ops since the call before."

    def __init__(self):
        self.sent, self.lined = {}, None
        self.part = self.cut = self.block = 0       # the part that grows, how much of it is done, in how many blocks

    def changes(self, state) -> list:
        "`[slot, units kept, new end]` for every slot that changed."
        return [op for key, html in self._slots(state) if (op := self._op(key, html))]

    def _op(self, key, html):
        old = self.sent.get(key, '')
        if old == html: return None
        keep = common_prefix_len(old, html)
        self.sent[key] = html
        return [key, _units(html[:keep]), html[keep:]]

    def _slots(self, state):
        yield from self._line(state)
        yield 'note', view.note(state)
        for i, group in view.groups(state.parts):
            if i + len(group) > self.part: yield from self._group(state, i, group)
        yield 'ask', view.question(state, live=True)
        yield 'meter', view.meter(state)

    def _line(self, state):
        "The line's own frame goes out once a phase, lest it lose focus or fold; its slots follow it."
        mark = (state.phase, state.since, state.header)
        if mark != self.lined:
            self.lined = mark
            self.sent |= {'n': '', 'think': ''}
            yield 'line', view.line(state, live=True)
            yield 'say', view.phase_word(state)
        yield 'n', view.figures(state)
        if state.phase == 'thinking' and state.reasoning: yield 'think', esc(state.parts[-1].text.lstrip())

    def _group(self, state, i, group):
        growing = isinstance(group[0], Thought) and state.phase == 'thinking' and group[0] is state.parts[-1]
        if growing: return
        if isinstance(group[0], Said) and state.fmt == 'markdown': yield from self._blocks(i, group[0].text)
        else:
            if i > self.part: self.part, self.cut, self.block = i, 0, 0
            yield f'p{i}', view.draw(state, group, live=True)

    def _blocks(self, i, text):
        if i != self.part: self.part, self.cut, self.block = i, 0, 0
        done, tail, n = split(text[self.cut:], live=True)
        if n:
            yield self._key(i), f'<div class="ri-md ri-part">{done}</div>'
            self.cut, self.block = self.cut + n, self.block + 1
        yield self._key(i), f'<div class="ri-md ri-part">{tail}</div>'

    def _key(self, i): return f'p{i}.{self.block}'


class LiveTurn:
    """A widget that shows states. `on_stop()` is called from whatever thread hears the button, at most once; answers to
    a question wait until they are asked for."""

    def __init__(self, state, on_stop):
        self.sender, self.on_stop, self.stopped, self.hello = Sender(), on_stop, threading.Event(), threading.Event()
        self._answers = queue.SimpleQueue()
        self.widget = _Widget(frame=_frame(state), born=state.t)
        _listen_while_busy(self.widget.comm)
        self.widget.on_msg(lambda _, message, buffers: self._heard(message))
        self.messages = self.bytes = 0

    def show(self, state):
        "Send what changed since the state before."
        ops = self.sender.changes(state)
        if not ops: return
        self.widget.send(dict(put=ops, name=view.status(state), t=round(state.t, 3)))
        self.messages += 1
        self.bytes += sum(len(html) for _, _, html in ops)

    def answer(self, call, timeout) -> str | None:
        "The button that was pressed for the call of that id: once, always, deny. None when none was, in that time."
        try: id, said = self._answers.get(timeout=timeout)
        except queue.Empty: return None
        return said if id == call else None

    def _heard(self, message):
        "In another thread than the cell's, where clicks are heard while a cell runs."
        if 'hello' in message: self.hello.set()
        if 'answer' in message: self._answers.put((message.get('call'), message['answer']))
        if 'stop' in message and not self.stopped.is_set():
            self.stopped.set()
            self.on_stop()

    def close(self): self.widget.close()


def _frame(state):
    "The frame that the slots hang in; the first line stands in it, so that something is seen at once."
    slot = '<{0} data-slot="{1}"{2}>{3}</{0}>'
    body = ('<div class="ri-live">' + slot.format('div', 'line', ' class="ri-slot"', view.line(state, live=True))
            + view.STOP + '</div>' + slot.format('span', 'say', ' class="ri-sr" role="status"', '')
            + slot.format('div', 'note', '', '') + '<div data-parts></div>' + slot.format('div', 'ask', '', '')
            + slot.format('div', 'meter', '', ''))
    return view.article(state, body)


def _listen_while_busy(comm):
    """ipykernel 7.4 sends a widget's messages to the shell that made it, which runs the cell; let the message choose.
    The attribute is private: it is changed on our own comm only, and only where it exists."""
    if hasattr(comm, '_reply_subshell_for'): comm._reply_subshell_for = lambda data, default: default
