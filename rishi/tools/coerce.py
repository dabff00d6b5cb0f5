"""JSON value -> what the annotation asks for, or `Mismatch` that says what was expected. Models write '3' for 3 and
3.0 for 3; what cannot be meant is refused rather than guessed."""
from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import json
import numbers
import pathlib
import types
import typing
import uuid
from collections import abc, deque
from typing import Any

from .hints import alternatives, is_model, is_union, record, strip

__all__ = ['Mismatch', 'coerce', 'expected']


class Mismatch(ValueError):
    "A value that does not fit: the message names the argument, what it must be, and what it was."


def coerce(value, tp, where: str = 'value'):
    "`value` as `tp`; raises `Mismatch`. `where` names it in the message: `a`, `a[0]`, `a.city`."
    tp = strip(tp)[0]
    if tp is Any: return value
    if is_union(tp): return _union(value, tp, where)
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if origin is typing.Literal: return _choice(value, args, tp, where)
    if tp is None or origin is types.NoneType: return _none(value, where)
    if not inspect.isclass(origin): return value
    if is_model(origin): return _model(value, origin, where)
    fields = record(origin)
    if fields: return _record(value, fields, origin, where)
    for kinds, make in _CONTAINERS:
        if origin in kinds: return make(value, origin, args, tp, where)
    return _scalar(value, origin, where)


def _no(value, tp, where):
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return Mismatch(f'{where} must be {expected(tp)}, not {text if len(text) <= 60 else text[:60] + "…"}')


# --- unions and choices ---------------------------------------------------------------------------------------------
def _union(value, tp, where):
    "The member that takes the value as it is, else the first that can read it."
    found = []
    for o in alternatives(tp):
        try: got = coerce(value, o, where)
        except Mismatch as e: found.append((e, o))
        else:
            if type(got) is type(value) and got == value: return got
            found.append((None, got))
    for error, got in found:
        if error is None: return got
    left = [(e, o) for e, o in found if o is not types.NoneType]
    raise left[0][0] if len(left) == 1 else _no(value, tp, where)


def _none(value, where):
    if value is None or isinstance(value, str) and value.strip().lower() in ('', 'null', 'none'): return None
    raise _no(value, types.NoneType, where)


def _wire(o):
    "A member of an enum or Literal in the forms that a model may write: value and name."
    return (o.value, o.name) if isinstance(o, enum.Enum) else (o,)


def _choice(value, choices, tp, where):
    "The choice whose value or name is `value`: exactly, then by its text, then in another case."
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    for same in (lambda a: type(a) is type(value) and a == value, lambda a: str(a) == text,
                 lambda a: str(a).lower() == text.lower()):
        for i in (0, 1):                       # values go before names
            hits = [o for o in choices if i < len(_wire(o)) and same(_wire(o)[i])]
            if hits: return hits[0]
    raise _no(value, tp, where)


# --- what is made of parts ------------------------------------------------------------------------------------------
def _parsed(value, kind):
    "A string that holds JSON of this kind is read: models quote lists and objects."
    if not isinstance(value, str): return value
    try: got = json.loads(value)
    except ValueError: return value
    return got if isinstance(got, kind) else value


def _list(value, origin, args, tp, where):
    value = _parsed(value, list)
    if not isinstance(value, (list, tuple, set, frozenset)): raise _no(value, tp, where)
    items = [coerce(o, args[0] if args else Any, f'{where}[{i}]') for i, o in enumerate(value)]
    if origin is abc.Iterator: return iter(items)
    make = {deque: deque, frozenset: frozenset, set: set, abc.Set: set, abc.MutableSet: set}.get(origin, list)
    try: return make(items)
    except TypeError: raise _no(value, tp, where) from None     # a list in a set


def _tuple(value, origin, args, tp, where):
    if not args or args[-1] is ...: return tuple(_list(value, list, args[:1], tp, where))
    value = _parsed(value, list)
    if not isinstance(value, (list, tuple)) or len(value) != len(args): raise _no(value, tp, where)
    return tuple(coerce(o, t, f'{where}[{i}]') for i, (o, t) in enumerate(zip(value, args)))


def _dict(value, origin, args, tp, where):
    value = _parsed(value, dict)
    if not isinstance(value, dict): raise _no(value, tp, where)
    key, val = args if len(args) == 2 else (Any, Any)
    return {coerce(k, key, f'a key of {where}'): coerce(v, val, f'{where}.{k}') for k, v in value.items()}


_CONTAINERS = (
    ((list, set, frozenset, deque, abc.Set, abc.MutableSet, abc.Sequence, abc.MutableSequence, abc.Iterable,
      abc.Collection, abc.Iterator), _list),
    ((tuple,), _tuple),
    ((dict, abc.Mapping, abc.MutableMapping), _dict))


def _record(value, fields, tp, where):
    "A dataclass, TypedDict or NamedTuple from an object."
    value = _parsed(value, dict)
    if type(value) is tp and tp is not dict: return value
    if not isinstance(value, dict): raise _no(value, tp, where)
    missing = [n for n, f in fields.fields.items() if f.required and n not in value]
    unknown = [n for n in value if n not in fields.fields]
    if missing: raise Mismatch(f'{where}.{missing[0]} is missing ({expected(fields.fields[missing[0]].type)})')
    if unknown: raise Mismatch(f'{where} has no {unknown[0]}; it takes {", ".join(fields.fields)}')
    values = {n: coerce(v, fields.fields[n].type, f'{where}.{n}') for n, v in value.items()}
    try: return fields.make(**values)
    except Exception as e: raise Mismatch(f'{where} cannot be made: {type(e).__name__}: {e}') from None


def _model(value, tp, where):
    "A pydantic model, by its own rules; the first complaint is passed on."
    try: return tp.model_validate(_parsed(value, dict))
    except ValueError as e:
        first = e.errors()[0] if hasattr(e, 'errors') else dict(loc=(), msg=str(e))
        raise Mismatch(f'{".".join([where, *map(str, first["loc"])])}: {first["msg"]}') from None


# --- scalars --------------------------------------------------------------------------------------------------------
def _scalar(value, tp, where):
    if type(value) is tp: return value
    if issubclass(tp, enum.Enum): return value if isinstance(value, tp) else _choice(value, tp, tp, where)
    for kind, read in _READERS.items():
        if issubclass(tp, kind):
            try: got = read(value)
            except (ValueError, TypeError, ArithmeticError): raise _no(value, tp, where) from None
            return got if isinstance(got, tp) else _made(got, tp, where)
    return value if isinstance(value, tp) else _made(value, tp, where)


def _made(value, tp, where):
    "A class that reads text, a number, a subclass of a plain type; nothing else comes out of JSON."
    try:
        if isinstance(value, str) or issubclass(tp, (numbers.Number, *_READERS)): return tp(value)
    except Exception: pass
    raise _no(value, tp, where)


def _bool(v):
    if isinstance(v, bool): return v
    word = str(v).strip().lower() if isinstance(v, (str, int, float)) else ''
    if word in ('true', 'yes', 'on', '1', '1.0'): return True
    if word in ('false', 'no', 'off', '0', '0.0'): return False
    raise ValueError


def _int(v):
    if isinstance(v, bool): raise ValueError
    if isinstance(v, str):
        try: return int(v)
        except ValueError: v = float(v)
    if not isinstance(v, (int, float)) or v != int(v): raise ValueError
    return int(v)


def _float(v):
    if isinstance(v, bool) or not isinstance(v, (int, float, str)): raise ValueError
    return float(v)


def _str(v):
    if isinstance(v, bool): return 'true' if v else 'false'
    if not isinstance(v, (str, int, float)): raise ValueError
    return str(v)


def _text(v):
    if not isinstance(v, str): raise ValueError
    return v.strip()


def _date(v):
    try: return datetime.date.fromisoformat(_text(v))
    except ValueError: return datetime.datetime.fromisoformat(_text(v)).date()


# the first that `tp` is a subclass of reads it: bool goes before int, datetime before date
_READERS = {
    bool: _bool, int: _int, float: _float, str: _str,
    datetime.datetime: lambda v: datetime.datetime.fromisoformat(_text(v)), datetime.date: _date,
    datetime.time: lambda v: datetime.time.fromisoformat(_text(v)),
    datetime.timedelta: lambda v: datetime.timedelta(seconds=_float(v)),
    decimal.Decimal: lambda v: decimal.Decimal(_str(v)), uuid.UUID: lambda v: uuid.UUID(_text(v)),
    pathlib.PurePath: lambda v: pathlib.Path(_str(v)), bytes: lambda v: _str(v).encode(),
    bytearray: lambda v: bytearray(_str(v).encode())}


# --- words ----------------------------------------------------------------------------------------------------------
_WORDS = {bool: 'true or false', int: 'an integer', float: 'a number', str: 'a string', types.NoneType: 'null',
          datetime.datetime: 'a time like 2024-01-31T12:30:00', datetime.date: 'a date like 2024-01-31',
          datetime.time: 'a time like 12:30:00', datetime.timedelta: 'a number of seconds', decimal.Decimal: 'a number',
          uuid.UUID: 'a UUID', pathlib.PurePath: 'a path', bytes: 'a string', bytearray: 'a string'}


def expected(tp) -> str:
    "What a value of `tp` must be, in words: `an integer`, `a list of strings`, `one of 'a', 'b'`."
    tp = strip(tp)[0]
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if is_union(tp): return ' or '.join(dict.fromkeys(expected(o) for o in args if o is not types.NoneType))
    if origin is typing.Literal: return _one_of(_wire(o)[0] for o in args)
    if tp is Any or not inspect.isclass(origin): return 'any value'
    if issubclass(origin, enum.Enum): return _one_of(_wire(o)[0] for o in origin)
    fields = record(origin)
    names = fields.fields if fields else origin.model_fields if is_model(origin) else None
    if names is not None: return f'an object with {", ".join(names)}'
    if origin in _CONTAINERS[0][0]: return 'a list' + (f' where each is {expected(args[0])}' if args else '')
    if origin is tuple: return 'a list of ' + (f'{len(args)} values' if args and args[-1] is not ... else 'values')
    if origin in _CONTAINERS[2][0]: return 'an object'
    return next((w for kind, w in _WORDS.items() if issubclass(origin, kind)), origin.__name__)


def _one_of(values): return 'one of ' + ', '.join(map(repr, values))
