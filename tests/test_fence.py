"Fenced Python is run, its output read by the model, until the work is done."
import sys
import threading
import types

import pytest

from rishi import Chat, PyFenceCallback, output_matches, resp_text, task_complete
from rishi.core import hitl_policy
from rishi.fence import HEAD
from rishi.history import checked, turns
from rishi.testing import ScriptedEngine
from rishi.types import ToolCall, ToolResult


def py(code, lang='python', fence='```'): return f'So:\n{fence}{lang}\n{code}\n{fence}\n'
def yes(call): return True


@pytest.fixture(autouse=True)
def no_sandbox(monkeypatch): monkeypatch.setitem(sys.modules, 'safepyrun', None)


def run(*replies, msg='go', **kw):
    "(chat, callback) after a turn in which the model says `replies`, with every run approved unless said otherwise."
    cb = PyFenceCallback(**{'approve': yes} | kw)
    chat = Chat(engine=ScriptedEngine(replies), cbs=cb)
    chat(msg)
    return chat, cb


def output(code, **kw): return run(py(code), 'ok', **kw)[1].outputs[-1]


# --- the loop ---------------------------------------------------------------------------------------------------------
def test_the_output_goes_back_until_there_is_no_code():
    chat, cb = run(py('x = 6\nprint(x)'), py('print(x * 7)'), 'It is 42.')
    assert cb.outputs == ['6', '42'] and resp_text(chat.turn_res) == 'It is 42.'
    assert [m['role'][0] for m in chat.hist] == list('uauaua') and chat.hist[2]['content'] == HEAD + '6'
    assert f'{HEAD}42' in chat.engine.prompts[2] and turns(chat.hist) == [0] and checked(chat.hist) == chat.hist
    chat.rewind()
    assert chat.hist == []


def test_it_ends_after_so_many_rounds_each_turn():
    chat, cb = run(*[py('print(1)')] * 3, rounds=2)
    assert cb.outputs == ['1', '1'] and chat.hist[-1]['role'] == 'assistant'
    chat.engine.replies[:] = [py('print(2)'), 'ok']
    chat('more')
    assert cb.outputs == ['1', '1', '2']


def test_it_ends_when_an_output_matches():
    chat, cb = run(py('print("6 * 7")'), py('print(6 * 7)'), 'never', done=output_matches('42'))
    assert cb.outputs == ['6 * 7', '42'] and chat.engine.replies == ['never']
    assert chat.hist[-1]['content'] == HEAD + '42', 'what was printed is part of the conversation'
    chat.engine.replies[:] = ['bye']
    assert resp_text(chat('thanks')) == 'bye'


@pytest.mark.parametrize('verdicts,left', [(['yes'], 1), (['no', 'yes'], 0)])
@pytest.mark.parametrize('own', [True, False])
def test_it_ends_when_a_judge_says_so(verdicts, left, own):
    other = Chat(engine=ScriptedEngine(verdicts))
    done = (lambda chat: task_complete(chat, judge=other)) if own else task_complete(judge=other)
    chat, _ = run(py('print(41)'), py('print(42)'), done=done)
    assert len(chat.engine.replies) == left and other.engine.replies == [] and other.hist == []
    assert 'user: go' in other.engine.prompts[0] and f'user: {HEAD}41' in other.engine.prompts[0]


def test_the_chat_judges_itself_apart_from_the_conversation():
    chat, cb = run(py('print(42)'), 'yes', 'never', done=task_complete)
    assert cb.outputs == ['42'] and chat.engine.replies == ['never'] and chat.use.turns == 1
    assert [m['role'] for m in chat.hist] == ['user', 'assistant', 'user']


def test_done_may_look_at_and_ask_a_chat_that_is_not_the_conversation():
    seen = []
    def done(chat):
        seen.append([m['content'] for m in chat.hist])
        return resp_text(chat('Is it?')) == 'it is'
    chat, _ = run(py('print(1)'), 'it is', done=done)
    assert seen == [['go', py('print(1)'), HEAD + '1']] and len(chat.hist) == 3


def test_the_reader_sees_the_code_and_its_output():
    chat = Chat(engine=ScriptedEngine([py('print(1)\n1/0'), 'ok']), cbs=PyFenceCallback(approve=yes))
    events = list(chat('go', stream='events'))
    call, result = [e for e in events if isinstance(e, (ToolCall, ToolResult))]
    assert (call.name, call.arguments) == ('python', {'code': 'print(1)\n1/0'}) and result.call == call
    assert result.content == '1\nZeroDivisionError: division by zero (line 2)' and 'Zero' in result.error


# --- what is code -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('text', [
    py('print(1)'), py('print(1)', 'py'), py('print(1)', 'Python title="x"'), py('print(1)', 'python3', '~~~'),
    py('print(1)', fence='````'), '1. First\n   ```python\n   if True:\n       print(1)\n   ```',
    '```python\nprint(1)\n`````', py('x = 1') + 'and\n' + py('print(x)'), '```js\n```python\n```\n' + py('print(1)')])
def test_python_in_fences_is_code(text): assert run(text, 'ok')[1].outputs == ['1']


@pytest.mark.parametrize('text', ['print(1)', '`print(1)`', py('print(1)', 'js'), py('print(1)', ''), py('', 'python'),
                                  '```python\nprint(1)', '````md\n```python\nprint(1)\n```\n````'])
def test_nothing_else_is(text):
    chat, cb = run(text)
    assert cb.outputs == [] and resp_text(chat.turn_res) == text


def test_the_code_of_the_user_is_not_run():
    chat = Chat(engine=ScriptedEngine(['']), cbs=PyFenceCallback(approve=yes))
    chat(py('raise SystemExit'))
    assert chat.cbs[-1].outputs == []


# --- what comes of it -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('code,says', [
    ('print("a")\n6 * 7', 'a\n42'), ('"text"', 'text'), ('[1, None]', '[1, null]'), ('None', '(no output)'),
    ('x = 1', '(no output)'), ('import sys; print("e", file=sys.stderr)', 'e'), ('print("a", end="")\n1/0', 'a\nZero'),
    ('1 +', 'SyntaxError'), ('def f():\n    return g()\n\nf()', "NameError: name 'g' is not defined (line 2)"),
    ('raise SystemExit(3)', 'SystemExit: 3'), ('exit(3)', 'SystemExit: 3'), ('raise GeneratorExit', 'GeneratorExit'),
    ('def f(): f()\nf()', 'RecursionError'), ('if __name__ == "__main__": print("main")', 'main'),
    ('import asyncio\nraise asyncio.CancelledError', 'CancelledError'),
    ('class E(Exception):\n    def __str__(self): 1/0\nraise E', 'E: <exception str() failed>'),
    ('from dataclasses import dataclass\n@dataclass\nclass P: x: int\nP(1).x', '1')])
def test_output_values_and_errors(code, says): assert says in output(code)


def test_long_and_endless_output_is_cut():
    text = output('print("x" * 9000)')
    assert text.startswith('x' * 4000 + '… 5,001 of 9,001') and len(text) < 4100
    text = output('while True: print("y" * 999)', max_len=100)
    assert text.startswith('y' * 100) and 'ended after 1,000,000 characters' in text and len(text) < 300
    assert len(output('raise ValueError("z" * 9000)', max_len=100)) < 200


def test_the_streams_are_back_afterwards(capsys):
    out, err = sys.stdout, sys.stderr
    output('import sys\nsys.stdout = None\n1/0')
    assert (sys.stdout, sys.stderr) == (out, err)
    print('here')
    assert capsys.readouterr().out == 'here\n'


def test_an_interrupt_ends_the_turn_and_keeps_what_was_written():
    chat = Chat(engine=ScriptedEngine([py('raise KeyboardInterrupt'), 'pong']), cbs=PyFenceCallback(approve=yes))
    with pytest.raises(KeyboardInterrupt): chat('go')
    assert [m['role'] for m in chat.hist] == ['user', 'assistant'] and checked(chat.hist) == chat.hist
    assert chat.hist[1]['meta']['finish_reason'] == 'cancelled' and resp_text(chat('again')) == 'pong'


def test_names_are_shared_with_the_caller_and_not_with_a_fork():
    ns = {'n': 5}
    chat, _ = run(py('m = n + 1\nprint(m)'), 'ok', ns=ns)
    assert ns['m'] == 6
    other = chat.fork()
    chat.engine.replies[:] = [py('m = 0'), 'ok']
    other('go')
    assert ns['m'] == 6 and other.cbs[-1].ns['m'] == 0 and len(chat.cbs[-1].outputs) == 1


# --- who may ----------------------------------------------------------------------------------------------------------
def test_without_a_sandbox_the_question_is_asked_here(monkeypatch):
    asked = []
    monkeypatch.setattr('builtins.input', lambda q: asked.append(q) or 'y')
    assert output('print(1)', approve=None) == '1' and 'print(1)' in asked[0]


@pytest.mark.parametrize('approve,says', [
    (lambda c: False, 'denied'), (lambda c: 'too risky', 'denied this call: too risky'),
    (hitl_policy({'python': 'dont_run'}), 'python is not allowed here')])
def test_denied_code_is_not_run(approve, says):
    chat, cb = run(py('raise KeyboardInterrupt'), 'ok', approve=approve)
    assert says in cb.outputs[0] and says in chat.hist[2]['content'] and resp_text(chat.turn_res) == 'ok'


def test_the_question_may_be_asked_by_a_coroutine_and_stopped():
    async def never(call):
        import asyncio
        await asyncio.sleep(60)
    chat = Chat(engine=ScriptedEngine([py('print(1)'), 'never']), cbs=PyFenceCallback(approve=never))
    threading.Timer(.1, chat.cancel).start()
    *_, done = chat('go', stream='events')
    assert done.finish_reason == 'cancelled' and chat.engine.replies == ['never'] and checked(chat.hist) == chat.hist


# --- the sandbox ------------------------------------------------------------------------------------------------------
class RunPython:
    "Stands in for safepyrun's, whose real one needs Python 3.12: awaited, prints, returns the value of the last line."

    def __init__(self, g=None): self.g = g

    async def __call__(self, code):
        if 'import os' in code: raise PermissionError('os.system blocked in sandbox')
        *head, last = code.splitlines()
        exec('\n'.join(head), self.g)
        return eval(last, self.g)


def test_safepyrun_runs_the_code_unasked_where_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, 'safepyrun', types.SimpleNamespace(RunPython=RunPython))
    monkeypatch.setattr('builtins.input', lambda q: pytest.fail('asked'))
    chat, cb = run(py('print(1)\nn = 41\nn + 1'), py('import os\n1'), 'ok', approve=None)
    assert cb.outputs == ['1\n42', 'PermissionError: os.system blocked in sandbox'] and cb.ns['n'] == 41


def test_a_safepyrun_that_cannot_run_here_is_as_good_as_none(monkeypatch):
    "On Python 3.11 it installs, and its import fails with an AttributeError."
    class Broken(types.ModuleType):
        def __getattr__(self, name): raise AttributeError("module 'sys' has no attribute 'monitoring'")
    monkeypatch.setitem(sys.modules, 'safepyrun', Broken('safepyrun'))
    monkeypatch.setattr('builtins.input', lambda q: 'y')
    assert output('print(1)', approve=None) == '1'
