"""Python that the model writes in fences is run and its output handed back, until the work is done."""
from __future__ import annotations

import contextlib
import io
import re
import traceback

from .callbacks import ChatCallback
from .tools import asks, clip, decide, hitl_policy
from .types import ToolCall

__all__ = ['PyFenceCallback', 'output_matches', 'task_complete']

_FENCE = re.compile(r'^[ \t]*(`{3,}|~{3,})[ \t]*(?:python|py)[ \t]*\n(.*?)^[ \t]*\1[ \t]*$', re.M | re.S | re.I)
HEAD = 'Output of the code:\n'


class PyFenceCallback(ChatCallback):
    """Runs the Python fences of an answer and gives their output to the model as the next message, at most `rounds`
    times a turn and until `done(chat)` is true. With `safepyrun` installed (Python 3.12+) the code runs in its
    sandbox; else in a plain namespace, and `approve(call)` is asked before each run (None: on the console). `ns` holds
    the names that the code sees."""
    order = 20

    def __init__(self, done=None, rounds=5, ns=None, approve=None, max_len=4000):
        self.done, self.rounds, self.max_len = done, rounds, max_len
        self.ns, self.left, self.outputs = dict(ns or {}), rounds, []
        self._run = _sandbox(self.ns)
        self.approve = approve or (hitl_policy({}) if self._run is None else None)

    def before_turn(self, chat, message): self.left = self.rounds

    def after_answer(self, chat, more, messages):
        code = '\n'.join(m[2] for m in _FENCE.finditer(messages[-1].get('content') or ''))
        if not code.strip() or self.left <= 0: return None
        self.left -= 1
        self.outputs.append(clip(self._output(code), self.max_len))
        return None if self.done and self.done(_View(chat, messages, self)) else HEAD + self.outputs[-1]

    def _output(self, code):
        call = ToolCall('python', {'code': code}, 'python')
        no = decide(call, self.approve, None) if asks(call, self.approve) else None
        if no is not None: return no.content
        return self._run(code) if self._run else _plain(code, self.ns)


class _View:
    "The chat as `done` sees it: with the turn that is not yet history."

    def __init__(self, chat, messages, fence): self._chat, self.hist, self.outputs = chat, messages, fence.outputs
    def __getattr__(self, name): return getattr(self._chat, name)


def _sandbox(ns):
    try: from safepyrun import RunPython
    except ImportError: return None
    run = RunPython(g=ns)
    def go(code):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try: value = run(code)
            except Exception as e: return out.getvalue() + f'{type(e).__name__}: {e}'
        return out.getvalue() + ('' if value is None else str(value))
    return go


def _plain(code, ns):
    "What `code` prints, or how it failed."
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try: exec(compile(code, '<answer>', 'exec'), ns)
        except Exception as e: return out.getvalue() + ''.join(traceback.format_exception_only(e)).strip()
    return out.getvalue() or '(no output)'


def output_matches(text: str):
    "A `done` for PyFenceCallback: the last output holds `text`."
    return lambda chat: bool(chat.outputs) and text in chat.outputs[-1]


def task_complete(chat, judge=None) -> bool:
    "A `done`: a model judges whether the conversation has satisfied the request, apart from the conversation."
    return chat.check('Has the request of the user been completed?', judge=judge, messages=chat.hist)
