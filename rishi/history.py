"""The history as plain data: what makes it a valid conversation, its wire form, its file. Values in, values out.

A history is a list of OpenAI-style dicts. `arguments` of tool calls are dicts here and JSON text on the wire. Every tool
call is answered by one tool message, in order, right after the assistant's turn.
"""
from __future__ import annotations

import json
import os
from pathlib import Path

from .errors import BadRequest

__all__ = ['to_wire', 'from_wire', 'checked', 'turns', 'assistant', 'tool', 'as_markdown', 'save', 'load', 'INTERRUPTED']

ROLES = ('system', 'user', 'assistant', 'tool')
INTERRUPTED = 'Error: interrupted before there was a result'
FORMAT = 1


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


def _with_arguments(m, convert):
    if not m.get('tool_calls'): return dict(m)
    calls = [c | {'function': c['function'] | {'arguments': convert(c['function'].get('arguments'))}}
             for c in m['tool_calls']]
    return m | {'tool_calls': calls}


def to_wire(hist) -> list[dict]:
    "The history as an OpenAI-compatible API takes it: arguments as JSON text, nothing of ours."
    ours = ('thinking', 'meta')
    return [{k: v for k, v in _with_arguments(m, _text).items() if k not in ours} for m in hist]


def from_wire(messages) -> list[dict]:
    "Messages of an OpenAI-compatible API as history; what is history already comes back as it is."
    return [_from_wire(m) for m in messages]


def _from_wire(m):
    m = _with_arguments(m, _dict)
    if m.get('role') == 'assistant' and m.get('content') is None: m['content'] = ''
    if m.get('reasoning_content'): m['thinking'] = m.pop('reasoning_content')
    return m


def _text(a): return a if isinstance(a, str) else json.dumps(a or {}, ensure_ascii=False)


def _dict(a):
    if not isinstance(a, str): return a or {}
    try: out = json.loads(a) if a.strip() else {}
    except ValueError as e: raise BadRequest(f'A tool call in the history has arguments that are no JSON: {a!r}') from e
    return out or {}


def checked(messages) -> list[dict]:
    """`messages` as a history of its own, tool calls without an answer answered as interrupted. Raises BadRequest for
    what is no conversation: an unknown role, a tool message without its call."""
    out, open_ = [], {}
    for i, m in enumerate(messages, 1):
        if not isinstance(m, dict) or m.get('role') not in ROLES:
            raise BadRequest(f'Message {i} of the history is no message: it needs a role of {", ".join(ROLES)}.')
        m = _from_wire(m)
        if m['role'] == 'tool':
            if m.get('tool_call_id') not in open_: raise BadRequest(f'Message {i} of the history answers no tool call.')
            del open_[m['tool_call_id']]
        else:
            out += _unanswered(open_)
            open_ = {c['id']: c for c in m.get('tool_calls') or ()}
        out.append(m)
    return out + _unanswered(open_)


def _unanswered(calls):
    return [{'role': 'tool', 'tool_call_id': i, 'name': c['function']['name'], 'content': INTERRUPTED}
            for i, c in calls.items()]


def turns(hist) -> list[int]:
    "Where the turns begin: the indices of the user's messages."
    return [i for i, m in enumerate(hist) if m['role'] == 'user']


def as_markdown(hist, sp='') -> str:
    "The conversation for people."
    out = [f'**System** · {sp}'] if sp else []
    for m in hist:
        if m.get('thinking'): out.append('> 🧠 ' + m['thinking'].replace('\n', '\n> '))
        if text := said(m): out.append(f'**{m["role"].capitalize()}** · {text}')
        for c in m.get('tool_calls') or ():
            out.append(f'⏳ `{c["function"]["name"]}({_text(c["function"]["arguments"])})`')
    return '\n\n'.join(out)


def said(m) -> str:
    "The text of a message; a part that is no text by its kind."
    content = m.get('content') or ''
    if isinstance(content, str): return content
    return '\n'.join(p if isinstance(p, str) else p.get('text') or f'[{p.get("type", "part")}]' for p in content)


def save(path, hist, sp):
    "Write the conversation as JSON; the file is whole or not there."
    path = Path(path).expanduser()
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    try:
        part.write_text(json.dumps({'rishi': FORMAT, 'sp': sp, 'hist': hist}, ensure_ascii=False, indent=1), 'utf-8')
        part.replace(path)
    except OSError as e: raise BadRequest(f'The chat cannot be saved to {path}: {e.strerror}.') from e
    finally: part.unlink(missing_ok=True)


def load(path) -> tuple[list[dict], str]:
    "The history and the system prompt that `save` wrote. Raises BadRequest."
    path = Path(path).expanduser()
    try: data = json.loads(path.read_text('utf-8'))
    except OSError as e: raise BadRequest(f'The chat cannot be read from {path}: {e.strerror}.') from e
    except ValueError as e: raise BadRequest(f'{path} holds no saved chat: it is no JSON.') from e
    if not isinstance(data, dict) or data.get('rishi') != FORMAT:
        raise BadRequest(f'{path} holds no chat that this version of rishi reads.')
    return checked(data['hist']), data['sp']
