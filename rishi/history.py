"""The history as plain data: what makes it a valid conversation, its wire form, its file. Values in, values out.

A history is a list of OpenAI-style dicts. `arguments` of tool calls are dicts here and JSON text on the wire. Every
tool call is answered by one tool message right after the assistant's turn. A user's message whose `meta` says what it
`follows` was said for the user (the output of code, a summary): it begins no turn. Parts that are no text are media:
they stay as they are.
"""
from __future__ import annotations

import copy
import json
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import BadRequest

__all__ = ['to_wire', 'from_wire', 'checked', 'turns', 'said', 'assistant', 'tool', 'follow_up', 'follows',
           'as_markdown', 'save', 'load', 'INTERRUPTED']

ROLES = ('system', 'user', 'assistant', 'tool')
INTERRUPTED = 'Error: interrupted before there was a result'
FORMAT = 1


# --- messages -------------------------------------------------------------------------------------------------------
def assistant(text, thinking='', calls=(), **meta) -> dict:
    "An assistant's turn; `calls` are ToolCall values."
    out = {'role': 'assistant', 'content': text}
    if thinking: out['thinking'] = thinking
    if calls: out['tool_calls'] = [{'id': c.id, 'type': 'function',
                                    'function': {'name': c.name, 'arguments': c.arguments}} for c in calls]
    return out | ({'meta': meta} if meta else {})


def tool(call, content) -> dict:
    "The answer to a tool call."
    return {'role': 'tool', 'tool_call_id': call.id, 'name': call.name, 'content': content}


def follow_up(text, what) -> dict:
    "What is said for the user within a turn: the prompt at the end of the tool budget, the output of code, a summary."
    return {'role': 'user', 'content': text, 'meta': {'follows': what}}


def follows(m) -> str | None:
    "What a message that was said for the user follows: 'budget', 'answer', 'code', 'summary'. None for all others."
    return (m.get('meta') or {}).get('follows')


def turns(hist) -> list[int]:
    "Where the turns begin: the indices of the user's own messages."
    return [i for i, m in enumerate(hist) if m['role'] == 'user' and not follows(m)]


def said(m) -> str:
    "The text of a message; a part that is no text by its kind."
    content = m.get('content') or ''
    if isinstance(content, str): return content
    return '\n'.join(p if isinstance(p, str) else p.get('text') or _placeholder(p) for p in content)


def _placeholder(part):
    kind = part.get('type', 'part')
    return '[audio]' if 'audio' in kind else f'[{kind.split("_")[0]}]'


# --- the wire -------------------------------------------------------------------------------------------------------
def to_wire(hist) -> list[dict]:
    "The history as an OpenAI-compatible API takes it: arguments as JSON text, nothing of ours."
    ours = ('thinking', 'meta')
    return [{k: v for k, v in _with_arguments(m, _text).items() if k not in ours} for m in hist]


def from_wire(messages) -> list[dict]:
    """Messages of an OpenAI-compatible API as history; what is history already comes back as it is. Raises BadRequest
    for arguments that are no JSON object."""
    return [_from_wire(m) for m in messages]


def _from_wire(m):
    m = _with_arguments(m, _dict)
    if m.get('role') == 'assistant' and m.get('content') is None: m['content'] = ''
    if thinking := m.pop('reasoning_content', None): m['thinking'] = thinking
    return m


def _with_arguments(m, convert):
    if not m.get('tool_calls'): return dict(m)
    calls = [c | {'function': c['function'] | {'arguments': convert(c['function'].get('arguments'))}}
             for c in m['tool_calls']]
    return m | {'tool_calls': calls}


def _text(a): return a if isinstance(a, str) else json.dumps(a or {}, ensure_ascii=False)


def _dict(a):
    if isinstance(a, str) and not a.strip(): return {}
    try: out = json.loads(a) if isinstance(a, str) else a
    except ValueError as e: raise BadRequest(f'A tool call in the history has arguments that are no JSON: {a!r}') from e
    if not isinstance(out, dict | None):
        raise BadRequest(f'A tool call in the history has arguments that are no JSON object: {a!r}')
    return out or {}


# --- a valid conversation -------------------------------------------------------------------------------------------
def checked(messages) -> list[dict]:
    """`messages`, history or wire form, as a history of its own: tool calls without an answer are answered as
    interrupted, an assistant's turn that holds nothing is left out. Raises BadRequest, naming the message, for what is
    no conversation."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise BadRequest(f'A history is a list of messages, not a {type(messages).__name__}.')
    out, open_ = [], {}
    for i, m in enumerate(messages, 1):
        m = _message(m, f'Message {i} of the history')
        if m['role'] == 'tool':
            if open_.pop(m.get('tool_call_id'), None) is None:
                raise BadRequest(f'Message {i} of the history answers no tool call of the message before it.')
        else:
            out += _unanswered(open_)
            open_ = {c['id']: c for c in m.get('tool_calls') or ()}
            if m['role'] == 'assistant' and not (m['content'] or m.get('thinking') or open_): continue
        out.append(m)
    return out + _unanswered(open_)


def _message(m, where):
    "A copy of one message in the form of the history. Raises BadRequest."
    if not isinstance(m, Mapping) or m.get('role') not in ROLES:
        raise BadRequest(f'{where} is no message: it needs a role of {", ".join(ROLES)}.')
    calls = m.get('tool_calls') or []
    ids = [c['id'] for c in calls if _is_call(c)] if isinstance(calls, list) else []
    if len(set(ids)) != len(calls):
        raise BadRequest(f'{where} has bad tool calls: each needs an id of its own and a function with a name.')
    m = _from_wire(copy.deepcopy(dict(m)))
    content = m.get('content')
    if not isinstance(content, (str, list)) or not all(isinstance(p, (str, dict)) for p in content):
        raise BadRequest(f'{where} has no content: it needs a text, or a list of parts.')
    return m


def _is_call(c):
    f = c.get('function') if isinstance(c, Mapping) else None
    return isinstance(f, Mapping) and all(isinstance(o, str) and o for o in (f.get('name'), c.get('id')))


def _unanswered(calls):
    return [{'role': 'tool', 'tool_call_id': i, 'name': c['function']['name'], 'content': INTERRUPTED}
            for i, c in calls.items()]


# --- for people -----------------------------------------------------------------------------------------------------
def as_markdown(hist, sp='') -> str:
    "The conversation for people."
    out = [f'**System** · {sp}'] if sp else []
    for m in hist:
        if m.get('thinking'): out.append('> 🧠 ' + m['thinking'].replace('\n', '\n> '))
        if text := said(m): out.append(f'**{m["role"].capitalize()}** · {_closed(text)}')
        for c in m.get('tool_calls') or ():
            out.append(f'⏳ `{c["function"]["name"]}({_text(c["function"]["arguments"])})`')
    return '\n\n'.join(out)


def _closed(text):
    "The text with its last fence closed, so that it does not swallow what follows."
    fence = None
    for mark in re.findall(r'^ {0,3}(`{3,}|~{3,})', text, re.M):
        if fence is None: fence = mark
        elif mark.startswith(fence): fence = None
    return text + (f'\n{fence}' if fence else '')


# --- the file -------------------------------------------------------------------------------------------------------
def save(path, hist, sp):
    "Write the conversation as JSON; the file is whole or not there. Raises BadRequest."
    path = Path(path).expanduser()
    part = path.with_name(f'{path.name}.{os.getpid()}.{threading.get_ident()}.part')
    try:
        text = json.dumps({'rishi': FORMAT, 'sp': sp, 'hist': hist}, ensure_ascii=False, indent=1)
        part.write_text(text, 'utf-8', 'backslashreplace')       # half a surrogate pair becomes its JSON escape
        part.replace(path)
    except TypeError as e: raise BadRequest(f'The chat cannot be saved: its history is not plain JSON ({e}).') from e
    except OSError as e: raise BadRequest(f'The chat cannot be saved to {path}: {e.strerror}.') from e
    finally: part.unlink(missing_ok=True)


def load(path) -> tuple[list[dict], str]:
    "The history and the system prompt that `save` wrote. Raises BadRequest."
    path = Path(path).expanduser()
    try: data = json.loads(path.read_text('utf-8'))
    except OSError as e: raise BadRequest(f'The chat cannot be read from {path}: {e.strerror}.') from e
    except (ValueError, RecursionError) as e: raise BadRequest(f'{path} holds no saved chat: it is no JSON.') from e
    if not isinstance(data, dict) or data.get('rishi') != FORMAT or not isinstance(data.get('sp'), str):
        raise BadRequest(f'{path} holds no chat that this version of rishi reads.')
    return checked(data.get('hist')), data['sp']
