"""A call of the model -> its result. Whatever the model does wrong, and whatever a tool raises, is a result that the
model reads; only `KeyboardInterrupt` goes up to the user."""
from __future__ import annotations

import asyncio
import contextvars
import difflib
import inspect
import itertools
import json
import queue
import threading
import time
from collections.abc import Iterator

from ..types import ToolCall, ToolResult
from .coerce import Mismatch, coerce, expected
from .loop import POLL, Stopped, finish
from .schema import Tool
from .text import MOST_ITEMS, clip, one_line, says, to_text
from .toolbox import Toolbox

__all__ = ['run', 'run_many', 'check', 'failed', 'interrupted', 'arguments_of']

_FAULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)     # of a tool; the rest is for the user


def failed(call: ToolCall, why: str, *, max_len: int | None = None, seconds: float = 0.0) -> ToolResult:
    "A result that tells the model in one line why there is none."
    why = clip(one_line(why), max_len)
    return ToolResult(call, f'Error: {why}', why, seconds)


def interrupted(call: ToolCall, running: bool = False) -> ToolResult:
    "The result of a call that was not run to its end."
    return failed(call, 'interrupted while it ran' if running else 'interrupted before it ran')


def check(call: ToolCall, toolbox: Toolbox, *, max_len: int | None = None) -> ToolResult | None:
    "Why `call` cannot be run, as its result; None if it can. Runs nothing, so ask this before asking the user."
    try: _prepare(call, toolbox)
    except Mismatch as e: return failed(call, e, max_len=max_len)


def run(call: ToolCall, toolbox: Toolbox, *, max_len: int | None = None, stop=None) -> ToolResult:
    """Run one call on this thread and wait for it; a coroutine runs on a loop of its own, and is left behind once the
    event `stop` is set. `max_len` cuts the text. Raises nothing but KeyboardInterrupt."""
    start = time.perf_counter()
    spent = lambda: time.perf_counter() - start
    try: tool, args, kwargs = _prepare(call, toolbox)
    except Mismatch as e: return failed(call, e, max_len=max_len, seconds=spent())
    try: value = _value(tool.fn(*args, **kwargs), stop)
    except Stopped: return interrupted(call, running=True)
    except _FAULTS as e: return failed(call, says(e), max_len=max_len, seconds=spent())
    try: text = to_text(value)
    except _FAULTS as e: return failed(call, f'the result cannot be shown: {says(e)}', max_len=max_len, seconds=spent())
    return ToolResult(call, clip(text, max_len), None, spent())


def _value(value, stop):
    "What a tool returned, waited for if it is to be awaited."
    if hasattr(value, '__aiter__') and hasattr(value, '__anext__'): value = _gather(value)
    return finish(value, stop) if inspect.isawaitable(value) else value


async def _gather(items):
    found = []
    async for o in items:
        found.append(o)
        if len(found) == MOST_ITEMS: break
    return found


# --- arguments ------------------------------------------------------------------------------------------------------
def arguments_of(call: ToolCall) -> dict:
    "The arguments as a dict: models also write nothing, null, or JSON in a string. Raises `Mismatch` for the rest."
    args = call.arguments
    if isinstance(args, str) and args.strip():
        try: args = json.loads(args)
        except ValueError as e: raise Mismatch(f'the arguments of {call.name} are not valid JSON: {e}') from None
    if args is None or args == '' or isinstance(args, str) and not args.strip(): return {}
    if isinstance(args, dict): return args
    raise Mismatch(f'the arguments of {call.name} must be an object with names, not {json.dumps(args)[:60]}')


def _prepare(call, toolbox):
    "(tool, positional, named) of a call that can be run; raises `Mismatch`."
    if call.error: raise Mismatch(call.error)
    tool = toolbox.get(call.name)
    if tool is None: raise Mismatch(_unknown(call.name, toolbox.names))
    try: return tool, *_bind(tool, arguments_of(call))
    except Mismatch: raise
    except Exception as e: raise Mismatch(f'the arguments of {tool.name} cannot be read: {says(e)}') from None


def _unknown(name, names):
    name = clip(str(name), 64)
    if not names: return f'there is no tool {name}; no tools are available'
    near = difflib.get_close_matches(name, names, 1)
    return f'there is no tool {name}; there are: {", ".join(names)}' + (f'. Did you mean {near[0]}?' if near else '')


def _bind(tool: Tool, arguments):
    "Arguments by name -> positional and named ones of the annotated types."
    params = {n: p for n, p in tool.signature.parameters.items() if n in tool.types}
    _complain(tool, params, arguments)
    extra = next((p.name for p in params.values() if p.kind == p.VAR_KEYWORD), None)
    bound = inspect.BoundArguments(tool.signature, {})
    for name, p in params.items():
        tp, value = tool.types[name], arguments.get(name)
        if p.kind == p.VAR_KEYWORD:
            bound.arguments[name] = {k: coerce(v, tp, k) for k, v in arguments.items() if k not in params or k == extra}
        elif name in arguments:
            bound.arguments[name] = coerce(value, tuple[tp, ...] if p.kind == p.VAR_POSITIONAL else tp, name)
    # what goes by position leaves no gap
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in params.values()): bound.apply_defaults()
    return bound.args, bound.kwargs


def _complain(tool, params, arguments):
    "All names that are missing or unknown, at once."
    named = {n: p for n, p in params.items() if p.kind != p.VAR_KEYWORD}
    wrong = [f'{n} is missing ({expected(tool.types[n])})' for n, p in named.items()
             if n not in arguments and p.default is p.empty and p.kind != p.VAR_POSITIONAL]
    if len(named) == len(params): wrong += [f'there is no argument {n}' for n in arguments if n not in named]
    if wrong: raise Mismatch(f'{"; ".join(wrong)}. {tool.name} takes: {", ".join(named) or "no arguments"}')


# --- several calls --------------------------------------------------------------------------------------------------
def run_many(calls, toolbox: Toolbox, *, parallel: bool = False, max_parallel: int | None = None,
             max_len: int | None = None, stop=None) -> Iterator[ToolResult]:
    """The results of `calls`, in their order, each as soon as it and those before it are there. `parallel` runs them
    side by side on helper threads, at most `max_parallel` at once. Once the event `stop` is set no call starts."""
    calls = list(calls)
    if parallel: return _side_by_side(calls, toolbox, max_parallel or len(calls), max_len, stop)
    return (interrupted(o) if stop is not None and stop.is_set() else run(o, toolbox, max_len=max_len, stop=stop)
            for o in calls)


def _side_by_side(calls, toolbox, workers, max_len, stop):
    gang = _Gang(calls, toolbox, max_len, stop)
    try:
        gang.start(max(1, min(workers, len(calls))))
        for i, call in enumerate(calls):
            while i not in gang.results and not gang.stopped(): gang.wait()
            result = gang.results[i] if i in gang.results else interrupted(call, running=i in gang.begun)
            if isinstance(result, BaseException): raise result
            yield result
    finally: gang.halt()                     # also when the caller gives up: what has not begun does not begin


class _Gang:
    "Daemon threads that take calls in order. Threads that hang are left behind and keep no process alive."

    def __init__(self, calls, toolbox, max_len, stop):
        self.calls, self.how, self.stop = calls, dict(max_len=max_len, stop=stop), stop
        self.toolbox, self.next, self.lock = toolbox, itertools.count(), threading.Lock()
        self.contexts = [contextvars.copy_context() for _ in calls]
        self.results, self.begun, self.halted, self.news = {}, set(), False, queue.SimpleQueue()

    def start(self, n):
        for _ in range(n): threading.Thread(target=self.work, name='rishi-tool', daemon=True).start()

    def take(self):
        "The next call, marked as begun; None when there is none, or no more shall begin."
        with self.lock:
            if self.halted or self.stop is not None and self.stop.is_set(): return None
            i = next(self.next)
            if i >= len(self.calls): return None
            self.begun.add(i)
            return i

    def work(self):
        while (i := self.take()) is not None:
            try: result = self.contexts[i].run(run, self.calls[i], self.toolbox, **self.how)
            except BaseException as e: result = e
            self.results[i] = result
            self.news.put(i)

    def stopped(self):
        if self.stop is not None and self.stop.is_set(): self.halt()
        return self.halted

    def halt(self):
        with self.lock: self.halted = True

    def wait(self):
        try: self.news.get(timeout=POLL)
        except queue.Empty: pass
