"""Who may run what: `approve(call)` says True, False, or why not; `hitl_policy` is one made of a table."""
from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace

from ..errors import BadRequest
from ..types import ToolCall, ToolResult
from .call import interrupted
from .loop import Stopped, finish
from .text import one_line, says

__all__ = ['hitl_policy', 'Policy', 'decide', 'asks', 'denied', 'VERDICTS']

VERDICTS = ('approved', 'dont_run', 'check')


def denied(call: ToolCall, reason: str = '') -> ToolResult:
    "The result of a call that somebody refused, with the reason for the model."
    reason = one_line(reason)
    text = f'The user denied this call: {reason}' if reason else 'The user denied this tool call.'
    return ToolResult(call, text, text)


def asks(call: ToolCall, approve) -> bool:
    "Whether somebody will be asked about `call`: False without `approve`, and where a policy knows the answer."
    if isinstance(approve, Policy): return approve.verdict(call.name) == 'check'
    return approve is not None


def decide(call: ToolCall, approve: Callable | None, stop=None) -> ToolResult | None:
    """None if `call` may run, else the result that says why not. `approve` may be async; it answers True, or False or
    None, or a string with the reason. One that raises denies, since a broken check must let nothing through; `error`
    holds what it raised, for the user."""
    if approve is None: return None
    try:
        answer = approve(call)
        if inspect.isawaitable(answer): answer = finish(answer, stop)
    except Stopped: return interrupted(call)
    except (Exception, SystemExit) as e:
        return replace(denied(call, 'the approval failed'), error=f'the approval failed: {says(e)}')
    if isinstance(answer, str): return denied(call, answer)
    return None if answer else denied(call)


def hitl_policy(policy: dict, ask: Callable | None = None, default: str = 'check') -> Policy:
    """An `approve` from a table of tool names: 'approved' runs, 'dont_run' does not, 'check' asks `ask(call)`, which
    answers like any `approve`; without `ask` the question is put by `input`. `default` is for names not in the table.
    BadRequest for any other verdict."""
    return Policy(policy, ask, default)


class Policy:
    "A human in the loop: `verdict(name)` of each tool, and the question to ask where it is 'check'."

    def __init__(self, policy, ask=None, default='check'):
        if not isinstance(policy, dict): raise BadRequest('A policy is a dict of tool names to verdicts.')
        for name, verdict in [*policy.items(), ('default', default)]:
            if verdict not in VERDICTS:
                raise BadRequest(f'The policy for {name} is {verdict!r}; use one of {", ".join(VERDICTS)}.')
        if ask is not None and not callable(ask): raise BadRequest('ask must be a function that takes the call.')
        self.policy, self.ask, self.default = dict(policy), ask or _ask_here, default

    def verdict(self, name) -> str:
        "'approved', 'dont_run' or 'check'."
        return self.policy.get(name, self.default)

    def __call__(self, call):
        match self.verdict(call.name):
            case 'approved': return True
            case 'dont_run': return f'{call.name} is not allowed here'
            case _: return self.ask(call)


def _ask_here(call):
    "The question on the console: yes, no, or the reason for no."
    args = json.dumps(call.arguments, ensure_ascii=False, default=repr)
    answer = input(f'Run {call.name}({args})? y, n, or why not: ').strip()
    return answer.lower() in ('y', 'yes') or ('' if answer.lower() in ('n', 'no') else answer)
