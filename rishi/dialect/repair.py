"""JSON as models write it: read what can only mean one thing, refuse the rest with the reason.

Mended are single quotes, backslashes that escape nothing, commas before a closing bracket, Python's `True`, `False`
and `None`, keys without quotes and, where a call was closed properly, brackets missing at its end.
"""
from __future__ import annotations

import json
import re

__all__ = ['loads', 'objects']

_TOKEN = re.compile(r'''"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_$][\w$.-]*|\s+|.''', re.S)
_ESCAPE = re.compile(r'''\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))|"''', re.S)
_OPENER = re.compile(r'[{[]')
_SURROGATE = re.compile(r'[\ud800-\udfff]')
_WORDS = {'True': 'true', 'False': 'false', 'None': 'null', 'true': 'true', 'false': 'false', 'null': 'null'}
_CLOSER = {'{': '}', '[': ']'}


def loads(text: str, closed: bool = True):
    """The value of `text`. `closed` says that the writer had ended: only then are missing brackets added.
    Raises ValueError saying what is wrong."""
    try: return _read(text)
    except ValueError as e:
        try: return _read(_mended(text, closed))
        except ValueError: raise ValueError(_why(e)) from e


def objects(text: str, closed: bool = True) -> list[tuple[object, str]]:
    """All values written one after the other in `text`, each with its own text; what stands between them is skipped.
    After a value that can be read, one that cannot is a ValueError in its place. Raises ValueError if the first is."""
    try: return [(loads(text, closed), text)]
    except ValueError:
        found = list(_several(text, closed))
        if not found or isinstance(found[0][0], ValueError): raise
        return found


def _several(text, closed):
    pos, decoder = 0, json.JSONDecoder(strict=False)
    while m := _OPENER.search(text, pos):
        try: value, pos = decoder.raw_decode(text, m.start())
        except (ValueError, RecursionError):
            try: value, pos = loads(text[m.start():], closed), len(text)
            except ValueError as e: value, pos = e, len(text)
        yield _clean(value), text[m.start():pos]


def _read(text):
    try: return _clean(json.loads(text, strict=False))
    except RecursionError as e: raise ValueError('it is nested too deeply') from e


def _clean(x):
    "Half a surrogate pair cannot be written anywhere; it becomes the replacement character."
    if isinstance(x, str): return _SURROGATE.sub('\ufffd', x)
    if isinstance(x, list): return [_clean(o) for o in x]
    return {_clean(k): _clean(v) for k, v in x.items()} if isinstance(x, dict) else x


def _mended(text, closed):
    tokens = _TOKEN.findall(text)
    out, stack = [], []
    for i, t in enumerate(tokens):
        if t[0] in '"\'' and len(t) > 1: t = _string(t)
        elif t in _CLOSER: stack.append(_CLOSER[t])
        elif t in ('}', ']'):
            _drop_comma(out)
            if stack and stack[-1] == t: stack.pop()
        elif t[0].isalpha() or t[0] in '_$': t = _word(t, tokens[i + 1:i + 3])
        out.append(t)
    if closed and stack: _drop_comma(out)
    return ''.join(out) + (''.join(reversed(stack)) if closed else '')


def _word(t, after):
    key = next((o for o in after if not o.isspace()), '') == ':'
    return json.dumps(t) if key else _WORDS.get(t, t)


def _string(t):
    "A JSON string from one in either quotes. A backslash that escapes nothing is a backslash; before `'` it goes."
    def escape(m):
        if m[0] == '"': return '\\"'
        return m[0] if m[1] else m[2] if m[2] == "'" else '\\\\' + m[2]
    return '"' + _ESCAPE.sub(escape, t[1:-1]) + '"'


def _drop_comma(out):
    at = next((i for i in range(len(out) - 1, -1, -1) if not out[i].isspace()), -1)
    if at >= 0 and out[at] == ',': del out[at]


def _why(e):
    if isinstance(e, json.JSONDecodeError): return f'{e.msg[:1].lower()}{e.msg[1:]} at character {e.pos + 1}'
    return str(e)
