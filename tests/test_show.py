"`present` without a browser: in a terminal, in a kernel that nobody watches, without widgets; interrupts and errors."
import os
import signal
import sys
import threading
from types import SimpleNamespace

import nbformat
import pytest
from turns import HEADER, HERE, done, prefill, turn

from rishi.errors import BadRequest, EngineError
from rishi.types import ApprovalNeeded, Progress, TextDelta, ThinkingDelta, ToolCall, ToolResult
from rishi_jupyter import show
from rishi_jupyter.fold import Answer, Header
from rishi_jupyter.show import Interrupted, present


def none(): raise AssertionError('nobody asked to stop')


# --- terminal -------------------------------------------------------------------------------------------------------
def test_a_terminal_prints_the_turn(capsys):
    call = ToolCall('add', dict(x=1))
    events = [ThinkingDelta('I see'), call, ToolResult(call, '2'), TextDelta('Yes \x1b[0m'), TextDelta('.'), done()]
    state = present(events, HEADER, on_stop=none)
    out = capsys.readouterr().out
    assert state.phase == 'done' and 'I see' in out and 'Yes ␛[0m.' in out
    assert out.strip().endswith('first token 0.11 s · 65 tok/s · extends the conversation]')


@pytest.mark.parametrize('kw', [dict(stream=False), dict(fmt='json')])
def test_a_terminal_prints_once_at_the_end(capsys, kw):
    present([TextDelta('Y'), TextDelta('es'), done()], HEADER, on_stop=none, **kw)
    assert capsys.readouterr().out.startswith('Yes\n\n[cached')


def test_the_header_is_asked_again(capsys):
    names = iter(['?', '?', 'tiny', 'tiny', 'tiny', 'tiny'])
    state = present(turn(), lambda: Header(model=next(names)), on_stop=none)
    assert state.header.model == 'tiny'


def asking(call, said):
    "A call that a person has to approve; `said` is what was answered before it goes on."
    yield call
    yield ApprovalNeeded(call)
    assert len(said) == 1
    yield ToolResult(call, '2')
    yield done()


def test_a_question_is_answered_before_the_turn_goes_on(capsys, monkeypatch):
    call, said = ToolCall('add', dict(x=1), 'c'), []
    seen = lambda: capsys.readouterr().out
    monkeypatch.setattr('builtins.input', lambda prompt: 'always' if seen() == '⏳ add(x=1)\n' else 'n')
    state = present(asking(call, said), HEADER, on_stop=none, on_answer=lambda *a: said.append(a))
    assert said == [(call, Answer(True, always=True))] and state.parts[0].answer == said[0][1]
    assert seen().startswith('\n→ 2\n[cached')


def test_without_anybody_to_tell_nothing_is_asked(capsys):
    assert present(asking(ToolCall('add'), [1]), HEADER, on_stop=none).parts[0].result.content == '2'


# --- interrupts -----------------------------------------------------------------------------------------------------
def interrupting(stop, n=1):
    "Two words, then the first Interrupt; the loop ends when told."
    yield TextDelta('one ')
    for _ in range(n): os.kill(os.getpid(), signal.SIGINT)
    yield TextDelta('two')
    assert stop.is_set()
    yield done(reason='cancelled', generated=2)


def test_the_first_interrupt_stops_softly(capsys):
    stop, before = threading.Event(), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as e: present(interrupting(stop), HEADER, on_stop=stop.set)
    assert isinstance(e.value, KeyboardInterrupt) and len(e.value._render_traceback_()) == 1
    assert 'one two' in capsys.readouterr().out and signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_raises_at_once(capsys):
    stop, before = threading.Event(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): present(interrupting(stop, 2), HEADER, on_stop=stop.set)
    out = capsys.readouterr().out
    assert 'one' in out and 'two' not in out and 'Stopped by you' in out
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_while_loading_is_no_error(capsys):
    stop = threading.Event()

    def events():
        yield Progress('load', 1, 1000)
        os.kill(os.getpid(), signal.SIGINT)
        yield Progress('load', 2, 1000)
        raise EngineError('Loading was stopped.')
    with pytest.raises(Interrupted): present(events(), HEADER, on_stop=stop.set)
    assert 'before the model was ready' in capsys.readouterr().out


def test_another_thread_leaves_signals_alone(capsys):
    states = []
    t = threading.Thread(target=lambda: states.append(present(turn(), HEADER, on_stop=none)))
    t.start()
    t.join()
    assert states[0].phase == 'done'


def test_errors_are_shown_and_raised(capsys):
    closed = []

    def events():
        try:
            yield from prefill()
            raise BadRequest('No: it cannot be.')
        finally: closed.append(1)
    with pytest.raises(BadRequest): present(events(), HEADER, on_stop=none)
    assert 'BadRequest: No: it cannot be. Chat unchanged.' in capsys.readouterr().out and closed == [1]


def test_events_that_end_early_are_a_stopped_turn(capsys):
    assert present([TextDelta('one')], HEADER, on_stop=none).phase == 'stopped'


# --- kernels --------------------------------------------------------------------------------------------------------
class Display:
    "Stands in for `IPython.display.display`."

    def __init__(self): self.shown, self.updates = [], []
    def __call__(self, data, **kw): self.shown.append(data); return self
    def update(self, data, **kw): self.updates.append(data)


@pytest.fixture
def kernel(monkeypatch):
    "A shell whose kernel gets its cells from a client; `ask` says whether that client has a person."
    import IPython.display
    out = Display()
    out.ask = True
    parent = lambda name: dict(content=dict(allow_stdin=out.ask))
    monkeypatch.setattr(show, '_shell', lambda: SimpleNamespace(kernel=SimpleNamespace(get_parent=parent)))
    monkeypatch.setattr(IPython.display, 'display', out)
    monkeypatch.setitem(sys.modules, 'rishi_jupyter.live', None)
    return out


def test_without_widgets_the_display_is_updated(kernel):
    gate = threading.Event()

    def events():
        yield TextDelta('one ')
        gate.wait(10)
        yield TextDelta('two')
        yield done()
    kernel.update = lambda data, **kw: (kernel.updates.append(data), gate.set())
    present(events(), HEADER, on_stop=none)
    assert 'Starting' in kernel.shown[0]['text/html'] and len(kernel.shown) == 1
    assert 'aria-busy' in kernel.updates[0]['text/html'] and 'one' in kernel.updates[0]['text/plain']
    last = kernel.updates[-1]['text/html'].split('</style>')[1]
    assert 'one two' in last and 'data-live' not in last


def test_unwatched_kernels_get_one_display(kernel):
    kernel.ask = False
    present(turn(), HEADER, on_stop=none)
    assert len(kernel.shown) == 1 and not kernel.updates
    assert set(kernel.shown[0]) == {'text/html', 'text/plain'} and '161' in kernel.shown[0]['text/plain']


def test_nbclient_leaves_a_readable_notebook(tmp_path):
    nbclient = pytest.importorskip('nbclient')
    code = f'import sys; sys.path.insert(0, {HERE!r})\nfrom turns import *\nfrom rishi_jupyter.show import present'
    cells = [code, 'state = present(turn(), HEADER, on_stop=None)', 'sys.modules.get("anywidget")']
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(nb, timeout=60, kernel_name='python3', resources={'metadata': {'path': tmp_path}}).execute()
    (out,) = nb.cells[1].outputs
    assert set(out.data) == {'text/html', 'text/plain'} and '161 samples' in out.data['text/html']
    assert nb.cells[2].outputs == []
