"""Messages in the shape that templates take. The history's own dicts are never changed.

Templates differ in what they refuse, so the ways to say the same are tried in turn: `ways` yields them, the faithful
one first.
"""
from __future__ import annotations

import json
from collections.abc import Iterator

__all__ = ['for_template', 'ways', 'merged', 'folded', 'in_text', 'describe', 'flat']

_OURS = ('meta', 'thinking')


class _Arguments(dict):
    """A call's arguments for any template: a mapping to those that go through it, JSON to those that print it or put it
    between texts."""
    def __str__(self): return json.dumps(self, ensure_ascii=False)
    def __add__(self, o): return str(self) + o
    def __radd__(self, o): return o + str(self)


def for_template(m: dict, *, none=False) -> dict:
    """A message as templates expect it: text as one string, thinking as `reasoning_content` and `thinking`, arguments
    in either form. `none` leaves the content of a turn that only calls as None, for templates that ask for that."""
    out = {k: v for k, v in m.items() if k not in _OURS}
    out['content'] = flat(m.get('content'))
    if m.get('thinking'): out['reasoning_content'] = out['thinking'] = m['thinking']
    if m.get('tool_calls'):
        out['tool_calls'] = [_call(c) for c in m['tool_calls']]
        if none and not out['content']: out['content'] = None
    elif 'tool_calls' in out: del out['tool_calls']
    return out


def _call(c):
    f = c.get('function', c)
    args = f.get('arguments')
    if isinstance(args, str):
        try: args = json.loads(args or '{}')
        except ValueError: pass
    args = _Arguments(args or {}) if isinstance(args, dict | None) else args
    return {'type': 'function', 'id': c.get('id', ''), 'function': {'name': f.get('name', ''), 'arguments': args}}


def flat(content):
    "None as '', a list of text parts as one string, anything with media as it is."
    if content is None: return ''
    if isinstance(content, str): return content
    texts = [p if isinstance(p, str) else p.get('text') if p.get('type', 'text') == 'text' else None for p in content]
    return content if any(t is None for t in texts) else '\n'.join(texts)


# --- ways to say the same ---------------------------------------------------------------------------------------------
def ways(messages: list[dict]) -> Iterator[list[dict]]:
    """`messages` as they are and with neighbours of one role merged; then the same without thinking; then all that with
    the system prompt in the first user turn. Each only where it makes a difference."""
    seen = []
    for whole in (messages, folded(messages)):
        for kept in (whole, _without_thinking(whole)):
            for way in (kept, merged(kept)):
                if way not in seen:
                    seen.append(way)
                    yield way


def merged(messages: list[dict]) -> list[dict]:
    "Neighbours of one role as one message; tool results stay apart."
    out = []
    for m in messages:
        if out and out[-1]['role'] == m['role'] != 'tool' and not out[-1].get('tool_calls'): out[-1] = _both(out[-1], m)
        else: out.append(m)
    return out


def folded(messages: list[dict]) -> list[dict]:
    "The system prompt at the head of the first user turn."
    sys = [m for m in messages if m['role'] in ('system', 'developer')]
    rest = [m for m in messages if m['role'] not in ('system', 'developer')]
    if not sys: return messages
    head = merged([{'role': 'user', 'content': m['content']} for m in sys])[0]
    at = next((i for i, m in enumerate(rest) if m['role'] == 'user'), None)
    if at is None: return [head, *rest]
    return [*rest[:at], _both(head, rest[at]), *rest[at + 1:]]


def _both(a, b):
    x, y = a.get('content'), b.get('content')
    if isinstance(x or '', str) and isinstance(y or '', str): content = '\n\n'.join(filter(None, (x, y)))
    else: content = [p for c in (x, y) if c for p in ([{'type': 'text', 'text': c}] if isinstance(c, str) else c)]
    thinking = '\n\n'.join(o['thinking'] for o in (a, b) if o.get('thinking'))
    return a | b | {'content': content} | ({'thinking': thinking, 'reasoning_content': thinking} if thinking else {})


def _without_thinking(messages):
    return [{k: v for k, v in m.items() if k not in ('thinking', 'reasoning_content')} for m in messages]


# --- tools for templates that know none -------------------------------------------------------------------------------
def in_text(messages: list[dict], tools: list[dict] | None) -> list[dict]:
    "The same conversation without tool messages: tools told in the system turn, calls and results written as text."
    out = []
    for m in messages:
        if m['role'] == 'tool':
            said = f'<tool_response>\n{m["content"]}\n</tool_response>'
            if out and out[-1].get('results'): out[-1] = out[-1] | {'content': out[-1]['content'] + '\n' + said}
            else: out.append({'role': 'user', 'content': said, 'results': True})
        else: out.append(_calls_in_text(m) if m.get('tool_calls') else m)
    out = [{k: v for k, v in m.items() if k != 'results'} for m in out]
    return _with_system(out, describe(tools)) if tools else out


def _calls_in_text(m):
    blocks = [json.dumps({'name': c['function']['name'], 'arguments': c['function']['arguments']}, ensure_ascii=False)
              for c in m['tool_calls']]
    texts = ([m['content']] if m['content'] else []) + [f'<tool_call>\n{b}\n</tool_call>' for b in blocks]
    return {k: v for k, v in m.items() if k != 'tool_calls'} | {'content': '\n'.join(texts)}


def _with_system(messages, text):
    if messages and messages[0]['role'] in ('system', 'developer'):
        return [_both(messages[0], {'content': text}), *messages[1:]]
    return [{'role': 'system', 'content': text}, *messages]


def describe(tools: list[dict]) -> str:
    "What a model without tools of its own must be told to call these."
    listed = '\n'.join(json.dumps(t.get('function', t), ensure_ascii=False) for t in tools)
    return ('You can call tools. Here are their JSON schemas, one a line:\n'
            f'<tools>\n{listed}\n</tools>\n'
            'To call a tool, answer with its name and its arguments in this form, one block for each call:\n'
            '<tool_call>\n{"name": "the tool", "arguments": {"an argument": "its value"}}\n</tool_call>\n'
            'The result comes back between <tool_response> and </tool_response>. Call a tool only if it helps.')
