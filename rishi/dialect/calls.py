"""From what a model wrote to `ToolCall`s: one function for each way of writing calls.

Each takes the text between the marks, the schemas of the tools (or None) and whether the writer had ended. What cannot
be read raises ValueError, or becomes a call with `error` where others stand beside it.
"""
from __future__ import annotations

import ast
import json
import re

from ..types import ToolCall
from .repair import loads, objects

__all__ = ['made', 'arguments', 'typed', 'guess', 'from_json', 'from_function_tags', 'from_arg_pairs', 'from_named',
           'from_separated', 'from_header', 'from_python', 'from_code', 'quoted_by']

_FENCE = re.compile(r'^```\w*\s*|\s*```$')
_FUNCTION = re.compile(r'<function=([^>\s]+)\s*>(.*?)(?=<function=|$)', re.S)
_PARAMETER = re.compile(r'<parameter=([^>]+)>(.*?)</parameter>(?=\s*(?:<parameter=|</function>|$))', re.S)
_UNCLOSED = re.compile(r'<parameter=([^>]+)>(.*?)(?=<parameter=|</function>|$)', re.S)
_PAIR = re.compile(r'<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|$))', re.S)
_NAMED = re.compile(r'\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\])?\s*(?=\{)')
_SEPARATED = re.compile(r'\s*(?:function)?<｜tool▁sep｜>\s*([\w.-]+)|\s*([\w.-]+)\s*<｜tool▁sep｜>')
_KIMI = re.compile(r'\s*((?:functions\.)?([\w.-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>')
_RECIPIENT = re.compile(r'to=(?:functions\.)?([\w.-]+)')
_GUESS = re.compile(r'''["']?name["']?\s*:\s*["']([\w.-]+)|<function=([\w.-]+)|call:([\w.-]+)'''
                    r'|functions\.([\w.-]+)|^\s*([\w.-]+)\s*(?:\[|<|\(|$)')
_KINDS = {list: 'a list', str: 'a text', bool: 'true or false', int: 'a number', float: 'a number'}


def made(name, args, id='', raw='') -> ToolCall:
    "A call from a name and arguments as they were read; what is wrong with them is its `error`."
    id = id if isinstance(id, str) else ''
    if not isinstance(name, str) or not name.strip(): return ToolCall('', {}, id, raw, 'the call names no tool')
    try: return ToolCall(name.strip(), arguments(args), id, raw)
    except ValueError as e: return ToolCall(name.strip(), {}, id, raw, str(e))


def arguments(x) -> dict:
    "Arguments as a dict: nothing, '' and 'null' are none, a JSON text is read. Raises ValueError for anything else."
    for _ in range(2):
        if isinstance(x, str):
            if x.strip() in ('', 'null', 'None'): return {}
            try: x = loads(x)
            except ValueError as e: raise ValueError(f'the arguments are not valid JSON: {e}') from e
    if x is None or x == []: return {}
    if isinstance(x, dict): return x
    raise ValueError(f'the arguments must be an object, not {_KINDS.get(type(x), "this")}')


def guess(text: str) -> str:
    "The tool's name in a call that cannot be read, or ''."
    m = _GUESS.search(text)
    return next(filter(None, m.groups()), '') if m else ''


# --- values that are text only ----------------------------------------------------------------------------------------
def typed(text: str, name: str, key: str, tools):
    "The value of argument `key`, written as plain text: as its schema says, else JSON where it is JSON."
    types = _types(_schema(name, key, tools))
    if 'string' in types: return None if 'null' in types and text.strip() == 'null' else text
    try: value = loads(text, closed=False)
    except ValueError: return text
    return text if isinstance(value, str) and not types else value


def _schema(name, key, tools):
    for t in tools or ():
        f = t.get('function', t)
        if f.get('name') == name: return ((f.get('parameters') or {}).get('properties') or {}).get(key) or {}
    return {}


def _types(schema):
    own = schema.get('type', [])
    types = {own} if isinstance(own, str) else set(own)
    for o in (*schema.get('anyOf', ()), *schema.get('oneOf', ())): types |= _types(o)
    return types | {'string' for o in schema.get('enum', ()) if isinstance(o, str)}


# --- the ways of writing ----------------------------------------------------------------------------------------------
def from_json(text, tools, closed):
    '`{"name": ..., "arguments": {...}}`, one or several, or a list of them.'
    out = []
    for value, raw in objects(_FENCE.sub('', text.strip()), closed):
        if not isinstance(value, list): out.append(_from_object(value, raw))
        else: out += [_from_object(o, json.dumps(o, ensure_ascii=False)) for o in value]
    return out


def _from_object(o, raw):
    if isinstance(o, ValueError): return ToolCall(guess(raw), {}, '', raw, f'the call is not valid JSON: {o}')
    if not isinstance(o, dict): return ToolCall('', {}, '', raw, 'the call must be an object with name and arguments')
    f = o['function'] if isinstance(o.get('function'), dict) else o
    name = f.get('name') or (f.get('function') if isinstance(f.get('function'), str) else None)
    key = next((k for k in ('arguments', 'parameters') if k in f), None)
    if key is None and f.keys() - {'name', 'function', 'id', 'type'} and isinstance(name, str):
        return ToolCall(name, {}, '', raw, 'the call has no "arguments": put what the tool takes under that key')
    return made(name, f.get(key), o.get('id', ''), raw)


def from_function_tags(text, tools, closed):
    '`<function=name><parameter=key>value</parameter></function>`, one or several.'
    found = _FUNCTION.findall(text)
    if not found: raise ValueError('the call has no <function=...> part')
    return [made(name, _given(name, _parameters(body), tools)) for name, body in found]


def _parameters(body):
    found = (_PARAMETER if '</parameter>' in body else _UNCLOSED).findall(body)
    return [(k, v.removeprefix('\n').removesuffix('\n')) for k, v in found]


def _given(name, pairs, tools): return {k.strip(): typed(v, name, k.strip(), tools) for k, v in pairs}


def from_arg_pairs(text, tools, closed):
    '`name<arg_key>key</arg_key><arg_value>value</arg_value>`'
    name = text.partition('<arg_key>')[0].strip()
    return [made(name, _given(name, _PAIR.findall(text), tools))]


def from_named(text, tools, closed):
    '`name[ARGS]{...}`, maybe with `[CALL_ID]id` between.'
    m = _NAMED.match(text)
    if not m: raise ValueError('the call must be a name, [ARGS] and an object')
    return [made(m[1], text[m.end():], m[2] or '')]


def from_separated(text, tools, closed):
    '`name<｜tool▁sep｜>{...}`, or `function<｜tool▁sep｜>name` and the object in a fence.'
    m = _SEPARATED.match(text)
    if not m: raise ValueError('the call must be a name, <｜tool▁sep｜> and an object')
    return [made(m[1] or m[2], _FENCE.sub('', text[m.end():].strip()))]


def from_header(text, tools, closed):
    '`functions.name:0<|tool_call_argument_begin|>{...}`, or `... to=functions.name ...<|message|>{...}`.'
    if m := _KIMI.match(text): return [made(m[2], text[m.end():], m[1])]
    head, mark, body = text.partition('<|message|>')
    m = _RECIPIENT.search(head)
    if not (m and mark): raise ValueError('the call names no tool')
    return [made(m[1], body)]


def from_python(text, tools, closed):
    '`[name(key=value), ...]` or `name.call(key=value)`, as Python writes it.'
    try: tree = ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ValueError('the call is not a valid Python call') from e
    calls = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
    if not calls or not all(isinstance(c, ast.Call) for c in calls): raise ValueError('the call is not a Python call')
    return [_from_ast(c, tools) for c in calls]


def _from_ast(c, tools):
    name = ast.unparse(c.func).removesuffix('.call')
    try:
        given = {k.arg: ast.literal_eval(k.value) for k in c.keywords if k.arg}
        values = [ast.literal_eval(a) for a in c.args]
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return ToolCall(name, {}, '', ast.unparse(c), 'the arguments must be plain values')
    names = next((list((f.get('parameters') or {}).get('properties') or ()) for t in tools or ()
                  if (f := t.get('function', t)).get('name') == name), [])
    if len(values) > len(names): return ToolCall(name, {}, '', ast.unparse(c), 'the arguments must be given by name')
    return made(name, {**dict(zip(names, values)), **given}, '', ast.unparse(c))


def from_code(text, tools, closed):
    "After `<|python_tag|>`: a built-in tool's `name.call(...)`, else code for the tool `code_interpreter`."
    if re.match(r'\s*[\w.]+\.call\(', text): return from_python(text, tools, closed)
    return [made('code_interpreter', {'code': text.strip()})]


def quoted_by(quote: str):
    "For calls written `call:name{key:value,...}` with strings between two `quote`s."
    def parse(text, tools, closed):
        m = re.match(r'\s*call:\s*([\w.-]+)\s*(?=\{)', text)
        if not m: raise ValueError('the call must be call:name{...}')
        return [made(m[1], _Quoted(text, m.end(), quote).value())]
    return parse


class _Quoted:
    "A reader of `{key:value,...}`, where only strings are quoted."

    def __init__(self, text, pos, quote):
        self.text, self.pos, self.quote = text, pos, quote
        self.bare = re.compile(r'(?:(?!' + re.escape(quote) + r')[^,:{}\[\]])*')

    def value(self, key=False):
        self._space()
        if self._took(self.quote): return self._until_quote()
        if self._took('"'): return self._json_string()
        if not key and self._took('{'): return self._object()
        if not key and self._took('['): return self._list()
        word = self.bare.match(self.text, self.pos)
        self.pos = word.end()
        return word[0].strip() if key else self._plain(word[0].strip())

    def _object(self):
        out = {}
        while not self._ends('}'):
            key = self.value(key=True)
            self._need(':')
            out[key] = self.value()
        return out

    def _list(self):
        out = []
        while not self._ends(']'): out.append(self.value())
        return out

    def _ends(self, closer):
        self._space()
        while self._took(','): self._space()
        if self.pos >= len(self.text): raise ValueError('the arguments do not end')
        return self._took(closer)

    def _until_quote(self):
        end = self.text.find(self.quote, self.pos)
        if end < 0: raise ValueError('a string in the arguments does not end')
        out, self.pos = self.text[self.pos:end], end + len(self.quote)
        return out

    def _json_string(self):
        m = re.compile(r'(?:[^"\\]|\\.)*"', re.S).match(self.text, self.pos)
        if not m: raise ValueError('a string in the arguments does not end')
        self.pos = m.end()
        return loads('"' + m[0])

    def _plain(self, word):
        if not word: raise ValueError(f'a value is missing at character {self.pos + 1}')
        try: return loads(word, closed=False)
        except ValueError: return word

    def _need(self, s):
        self._space()
        if not self._took(s): raise ValueError(f'{s!r} is missing at character {self.pos + 1}')

    def _took(self, s):
        if not self.text.startswith(s, self.pos): return False
        self.pos += len(s)
        return True

    def _space(self):
        while self.text[self.pos:self.pos + 1].isspace(): self.pos += 1
