"""Function -> tool schema as models read it; annotation -> JSON Schema. The same function gives the same text always,
for it is part of the prefix that the KV cache holds."""
from __future__ import annotations

import datetime
import decimal
import enum
import functools
import inspect
import json
import math
import numbers
import operator
import pathlib
import re
import types
import typing
import uuid
from collections import abc, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from .docs import read_comments, read_docs
from .hints import alternatives, hints, home, is_model, is_union, record, strip

__all__ = ['Tool', 'make_tool', 'tool_schema', 'json_type']

_PLAIN = {bool: 'boolean', int: 'integer', float: 'number', str: 'string', types.NoneType: 'null'}
_FORMATS = {datetime.datetime: 'date-time', datetime.date: 'date', datetime.time: 'time', uuid.UUID: 'uuid'}
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_LISTS = (list, deque, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Iterator)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_VAR = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, eq=False)
class Tool:
    "A function that a model may call: how its arguments are read, and what the model is told of it."
    name: str
    fn: Callable
    signature: inspect.Signature
    types: dict
    schema: dict


def tool_schema(fn, name: str | None = None) -> dict:
    "`{'type': 'function', 'function': {name, description, parameters}}` of `fn`; BadRequest if it cannot be a tool."
    return make_tool(fn, name).schema


def make_tool(fn, name: str | None = None) -> Tool:
    "What calling `fn` takes. BadRequest, in one line, if it cannot be a tool."
    if not callable(fn): raise BadRequest(f'{_short(fn)} cannot be a tool: it is not callable. Pass a function.')
    name = _name(fn, name)
    try: signature = inspect.signature(fn)
    except (ValueError, TypeError, NameError) as e:
        raise BadRequest(f'{name} cannot be a tool: no signature can be read ({e}). Wrap it in a function.') from None
    source = home(fn)
    known = hints(source)
    params = [p for p in signature.parameters.values() if not _hidden(name, p, known)]
    found = {p.name: known.get(p.name, p.annotation) for p in params}
    docs = read_docs(source, _docstring(fn, source))
    schema = dict(name=name, description=_description(name, docs), parameters=_parameters(params, found, docs.params))
    return Tool(name, fn, signature, found, dict(type='function', function=schema))


def _short(o, n=60):
    text = ' '.join(repr(o).split())
    return text if len(text) <= n else text[:n] + '…'


def _name(fn, name):
    name = name or getattr(fn, '__name__', None) or getattr(home(fn), '__name__', '')
    if name == '__call__': name = type(fn).__name__
    if re.fullmatch(r'[\w-]{1,64}', name): return name
    if name == '<lambda>': raise BadRequest("A lambda has no name to call it by. Pass it as {'name': function}.")
    raise BadRequest(f'{name!r} cannot be the name of a tool: use up to 64 letters, digits, _ and -.')


def _hidden(name, p, known):
    "Parameters that no model can fill: left out when they have a default, else the function is no tool."
    text = f'{name} cannot be a tool: no model can give its argument `{p.name}`'
    if p.name == 'self' and p.default is p.empty: raise BadRequest(f'{text}. Pass the method of an object.')
    tp = strip(known.get(p.name, p.annotation))[0]
    members = [typing.get_origin(o) or o for o in alternatives(tp) if o is not types.NoneType]
    if not members or any(o not in (abc.Callable, type, types.ModuleType) for o in members): return False
    if p.default is not p.empty or p.kind in _VAR: return True
    raise BadRequest(f'{text}. Give it a default, or wrap the function.')


def _docstring(fn, source):
    "A class's own docstring, but not the one that `dataclass` makes; that of an object's `__call__`, or its class."
    if inspect.isclass(source):
        text = source.__dict__.get('__doc__') or ''
        return '' if text.startswith(f'{source.__name__}(') else text
    if getattr(source, '__name__', '') == '__call__': return source.__doc__ or type(fn).__doc__
    return inspect.getdoc(source)


def _description(name, docs):
    text = docs.text or name.replace('_', ' ').strip().capitalize() + '.'
    return f'{text}\nReturns: {docs.returns}' if docs.returns else text


def _parameters(params, found, docs):
    "The object that holds the arguments."
    empty = inspect.Parameter.empty
    props = {p.name: _property(p, found[p.name], docs.get(p.name, '')) for p in params if p.kind != p.VAR_KEYWORD}
    required = [p.name for p in params if p.default is empty and p.kind not in _VAR]
    extra = [json_type(found[p.name]) or True for p in params if p.kind == p.VAR_KEYWORD]
    return {'type': 'object', 'properties': props, **({'required': required} if required else {}),
            **({'additionalProperties': extra[0]} if extra else {})}


def _property(p, tp, doc):
    default, text = p.default, strip(tp)[1] or doc
    bare = strip(tp)[0]
    if bare is Any and type(default) in (bool, int, float, str, list, tuple, dict): tp = type(default)
    if default is None and is_union(bare):          # leaving it out says None
        tp = functools.reduce(operator.or_, (o for o in alternatives(bare) if o is not types.NoneType))
    schema = json_type(tp)
    if p.kind == p.VAR_POSITIONAL: schema = {'type': 'array', 'items': schema}
    default = _enum_value(default)
    return {**schema, **({'description': text} if text else {}),
            **({'default': json.loads(json.dumps(default))} if default is not None and _is_json(default) else {})}


def _is_json(o):
    if type(o) in (list, tuple): return all(map(_is_json, o))
    if type(o) is dict: return all(type(k) is str and _is_json(v) for k, v in o.items())
    return o is None or type(o) in (bool, int, str) or type(o) is float and math.isfinite(o)


# --- annotations ----------------------------------------------------------------------------------------------------
def json_type(tp, _above: tuple = ()) -> dict:
    "JSON Schema of the annotation `tp`; `{}` where anything goes. A class inside itself is a plain object."
    tp, text = strip(tp)
    schema = _json_type(tp, _above)
    return {**schema, 'description': text} if text else schema


def _json_type(tp, above):
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if tp is Any: return {}
    if is_union(tp): return _any_of([json_type(o, above) for o in args])
    if origin is typing.Literal: return _enum([_enum_value(o) for o in args])
    if not inspect.isclass(origin): return {'type': 'null'} if tp is None else {}
    if issubclass(origin, enum.Enum): return _enum([_enum_value(o) for o in origin])
    if origin in above: return {'type': 'object'}
    if is_model(origin): return _inline(origin.model_json_schema())
    fields = record(origin)
    if fields: return _object(fields, origin, (*above, origin))
    return _container(origin, args, above) or _scalar(origin)


def _scalar(tp):
    for o in tp.__mro__:
        if o in _FORMATS: return {'type': 'string', 'format': _FORMATS[o]}
        if o in _PLAIN: return {'type': _PLAIN[o]}
    if issubclass(tp, numbers.Integral): return {'type': 'integer'}              # numpy's
    if issubclass(tp, (numbers.Real, decimal.Decimal, datetime.timedelta)): return {'type': 'number'}
    if issubclass(tp, (pathlib.PurePath, bytes, bytearray)): return {'type': 'string'}
    return {}


def _container(origin, args, above):
    of = lambda o: json_type(o, above)
    items = {'items': of(args[0])} if args and of(args[0]) else {}
    if origin is tuple and args and args[-1] is not ...:
        return {'type': 'array', 'prefixItems': [of(o) for o in args], 'minItems': len(args), 'maxItems': len(args)}
    if origin in _SETS: return {'type': 'array', **items, 'uniqueItems': True}
    if origin in _LISTS or origin is tuple: return {'type': 'array', **items}
    if origin in _DICTS:
        return {'type': 'object', **({'additionalProperties': of(args[1])} if len(args) > 1 and of(args[1]) else {})}


def _object(fields, tp, above):
    docs = read_comments(tp).params
    props = {}
    for name, f in fields.fields.items():
        props[name] = json_type(f.type, above)
        if name in docs: props[name].setdefault('description', docs[name])
    required = [n for n, f in fields.fields.items() if f.required]
    return {'type': 'object', 'properties': props, **({'required': required} if required else {})}


def _any_of(schemas):
    if {} in schemas: return {}
    once = [s for i, s in enumerate(schemas) if s not in schemas[:i]]
    return once[0] if len(once) == 1 else {'anyOf': once}


def _enum_value(o):
    "What stands for a member of an enum in JSON: its value if all values of its class are plain, else its name."
    if not isinstance(o, enum.Enum): return o
    return o.value if all(_is_json(m.value) for m in type(o)) else o.name


def _enum(values):
    kinds = {_PLAIN.get(type(v)) for v in values}
    return {**({'type': kinds.pop()} if len(kinds) == 1 and None not in kinds else {}), 'enum': values}


def _inline(schema):
    "A pydantic schema without references and titles; a model inside itself is a plain object."
    defs = schema.get('$defs', {})

    def walk(o, above=()):
        if isinstance(o, list): return [walk(v, above) for v in o]
        if not isinstance(o, dict): return o
        ref = o.get('$ref', '').rpartition('/')[2] if isinstance(o.get('$ref'), str) else ''
        rest = {k: v for k, v in o.items() if k not in ('$ref', '$defs')}
        if ref in above: return {'type': 'object', **walk(rest, above)}
        if ref: return {**walk(defs[ref], (*above, ref)), **walk(rest, above)}
        return {k: {n: walk(s, above) for n, s in v.items()} if k == 'properties' else walk(v, above)
                for k, v in rest.items() if not (k == 'title' and isinstance(v, str))}
    return json.loads(json.dumps(walk(schema)))
