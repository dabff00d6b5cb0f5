"""Python that the model writes in fences is run and its output handed back, until the work is done.

With `safepyrun` (it needs Python 3.12) the code runs in its sandbox, by its rules: no writing outside the working
directory, no processes, no network, no `def`. Without it the code can do all that you can, so each run is asked about.
"""
from __future__ import annotations

import ast
import contextlib
import io
import re
import textwrap
import traceback
from collections.abc import Callable
from functools import partial

from .callbacks import ChatCallback, Say
from .history import follow_up, follows, said
from .tools import clip, decide, hitl_policy, to_text
from .tools.loop import finish
from .types import ToolCall, ToolResult

__all__ = ['PyFenceCallback', 'output_matches', 'task_complete']

_FENCE = re.compile(r'^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)^[ \t]*\1[`~]*[ \t]*$', re.M | re.S)
HEAD = 'Output of the code:\n'
FILE = '<answer>'            # what tracebacks call the code
ENDLESS = 1_000_000          # characters after which code that prints is ended


class PyFenceCallback(ChatCallback):
    """Runs the Python fences of an answer and gives their output to the model as the next message, at most `rounds`
    times a turn and until `done(chat)` is true of a chat that has read the output. `ns` holds the names that the code
    sees, and gets those that it makes; `outputs` are all outputs, each cut to `max_len` characters. `approve(call)` is
    asked before each run; without one and without `safepyrun` the question is put on the console."""
    order = 20

    def __init__(self, done=None, rounds=5, ns=None, approve=None, max_len=4000):
        self.done, self.rounds, self.max_len = done, rounds, max_len
        self.ns, self.left, self.outputs = {} if ns is None else ns, rounds, []
        self.approve = approve or (None if _sandbox(self.ns) else hitl_policy({}))

    def __copy__(self):
        new = object.__new__(type(self))
        vars(new).update(vars(self), ns=dict(self.ns), outputs=list(self.outputs))
        return new

    def before_turn(self, chat, message): self.left = self.rounds

    def after_answer(self, chat, more, messages):
        code = _python(messages[-1]['content'])
        if not code or self.left <= 0: return None
        self.left -= 1
        result = self._run(ToolCall('python', {'code': code}, f'python_{len(self.outputs) + 1}'), chat._stop)
        self.outputs.append(result.content)
        text = HEAD + result.content
        done = self.done and self.done(_read(chat, messages, text))
        return Say(text, 'code', (result.call, result), not done)

    def _run(self, call, stop):
        if (no := decide(call, self.approve, stop)) is not None: return no
        run = _sandbox(self.ns, stop) or partial(_plain, self.ns)
        text, error = _output(run, call.arguments['code'], self.max_len)
        return ToolResult(call, text, error)


def _read(chat, messages, text):
    "A chat beside `chat` that has this conversation, the output included, for `done` to look at."
    return chat._aside([*messages, follow_up(text, 'code')], sp=chat.sp, tools=chat.toolbox)


def _python(text) -> str:
    "The Python in the fences of an answer, as one program."
    found = [textwrap.dedent(m[3]) for m in _FENCE.finditer(text)
             if m[2].strip().lower().split(' ')[0] in ('python', 'py', 'python3')]
    return '\n'.join(found).strip()


# --- running it -----------------------------------------------------------------------------------------------------
class _Endless(BaseException): "The code printed without end."


class _Sink(io.StringIO):
    "Keeps the first `most` characters of what is printed; `total` counts all."

    def __init__(self, most):
        super().__init__()
        self.most, self.total = most, 0

    def write(self, s):
        super().write(s[:max(self.most - self.total, 0)])
        self.total += len(s)
        if self.total > ENDLESS: raise _Endless
        return len(s)

    def text(self):
        cut = self.total - self.most
        return self.getvalue() + (f'… {cut:,} of {self.total:,} characters cut' if cut > 0 else '')


def _output(run: Callable, code: str, most: int) -> tuple[str, str | None]:
    "What `run(code)` prints, the value of its last line, how it failed; and the failure alone. An interrupt goes on."
    error, sink = None, _Sink(most)
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        try:
            value = run(code)
            if value is not None: sink.write(to_text(value) + '\n')
        except KeyboardInterrupt: raise
        except _Endless: error = f'ended after {ENDLESS:,} characters of output'
        except BaseException as e: error = _failure(e)
    shown = sink.text()
    if error: shown += ('\n' if shown and not shown.endswith('\n') else '') + clip(error, most)
    return shown.rstrip('\n') or '(no output)', error


def _failure(e):
    line = next((f.lineno for f in reversed(traceback.extract_tb(e.__traceback__)) if f.filename == FILE), None)
    return ''.join(traceback.format_exception_only(e)).strip() + (f' (line {line})' if line else '')


def _plain(ns, code):
    "The value of the last line of `code`, run in `ns` as a program of its own."
    ns.setdefault('__name__', '__main__')
    tree = ast.parse(code, FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILE, 'exec'), ns)
    return eval(compile(ast.Expression(last.value), FILE, 'eval'), ns) if last else None


def _sandbox(ns, stop=None):
    "A function that runs code in safepyrun's sandbox over `ns`; None where it is not installed, or cannot run."
    try:
        from safepyrun import RunPython
    except (ImportError, AttributeError): return None        # on Python 3.11 it installs, and fails on sys.monitoring
    run = RunPython(g=ns)
    return lambda code: finish(run(code), stop)              # a coroutine: the value of the last line


# --- when it is done ------------------------------------------------------------------------------------------------
def output_matches(text: str) -> Callable:
    "A `done` for PyFenceCallback: the last output of code holds `text`."
    def done(chat): return text in next((said(m)[len(HEAD):] for m in reversed(chat.hist) if follows(m) == 'code'), '')
    return done


def task_complete(chat=None, judge=None) -> bool | Callable:
    """A `done` for PyFenceCallback: a model judges whether the conversation has satisfied the request, apart from it.
    `task_complete(judge=other)` is one that asks another chat."""
    if chat is None: return partial(task_complete, judge=judge)
    return chat.check('Has the request of the user been completed?', judge=judge)
