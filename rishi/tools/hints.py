"""Annotations, read with patience: what a name stands for, and the fields of a class that is made from a dict."""
from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ['Field', 'Record', 'home', 'hints', 'strip', 'has_fields', 'record', 'is_model', 'is_union', 'alternatives']

_WRAPPERS = {'Required', 'NotRequired', 'ReadOnly', 'Final', 'ClassVar', 'Unpack'}


def home(fn):
    "The function or class that holds the annotations, the docstring and the source of the callable `fn`."
    if isinstance(fn, functools.partial): return home(fn.func)
    if inspect.isclass(fn): return fn
    if inspect.ismethod(fn): return inspect.unwrap(fn.__func__)
    if inspect.isroutine(fn) or hasattr(fn, '__wrapped__'): return inspect.unwrap(fn)
    return inspect.unwrap(type(fn).__call__)


def hints(obj) -> dict:
    "The annotations of a function or class, by name; one that cannot be resolved is `Any`."
    if inspect.isclass(obj) and not (has_fields(obj) or is_model(obj)): obj = obj.__init__
    try: return typing.get_type_hints(obj, include_extras=True)
    except Exception: pass      # a name under TYPE_CHECKING, a local class: resolve what can be
    scope = {**vars(sys.modules.get(obj.__module__, types)), **getattr(obj, '__globals__', {})}
    holders = reversed(obj.__mro__) if inspect.isclass(obj) else [obj]
    return {name: _resolve(o, scope) for h in holders for name, o in getattr(h, '__annotations__', {}).items()}


def _resolve(annotation, scope):
    if isinstance(annotation, typing.ForwardRef): annotation = annotation.__forward_arg__
    if not isinstance(annotation, str): return annotation
    try: return eval(annotation, dict(scope))       # what `typing.get_type_hints` does, one name at a time
    except Exception: return Any


def strip(tp):
    "(type, description) of an annotation without `Annotated`, `NewType`, aliases and the like."
    text = ''
    while True:
        if typing.get_origin(tp) is typing.Annotated:
            text = text or next((o for o in map(_description, tp.__metadata__) if o), '')
            tp = tp.__origin__
        elif getattr(typing.get_origin(tp), '_name', '') in _WRAPPERS: tp = typing.get_args(tp)[0]
        elif hasattr(tp, '__supertype__'): tp = tp.__supertype__
        elif type(tp).__name__ == 'TypeAliasType': tp = tp.__value__
        elif isinstance(tp, typing.TypeVar): tp = tp.__bound__ or Any
        elif isinstance(tp, (str, typing.ForwardRef)) or tp is inspect.Parameter.empty or tp is object: tp = Any
        else: return tp, text


def _description(o):
    if isinstance(o, str): return o
    text = getattr(o, 'description', None) or getattr(o, 'documentation', None)
    return text if isinstance(text, str) else ''


def is_union(tp) -> bool:
    "Whether `tp` is `A | B`, `Union` or `Optional`."
    return typing.get_origin(tp) in (typing.Union, types.UnionType)


def alternatives(tp) -> list:
    "The members of a union; a type that is none is its own only member."
    return list(typing.get_args(tp)) if is_union(tp) else [tp]


def is_model(tp) -> bool:
    "Whether `tp` is a pydantic model, told without importing pydantic."
    return inspect.isclass(tp) and hasattr(tp, 'model_validate') and hasattr(tp, 'model_json_schema')


@dataclass(frozen=True)
class Field:
    "One entry of a `Record`."
    type: Any
    required: bool = True


@dataclass(frozen=True)
class Record:
    "A class that is built by `make(**values)` from named fields: dataclass, TypedDict or NamedTuple."
    make: Callable
    fields: dict


def has_fields(tp) -> bool:
    "Whether `tp` is a dataclass, a TypedDict or a NamedTuple."
    return inspect.isclass(tp) and (dataclasses.is_dataclass(tp) or hasattr(tp, '__required_keys__')
                                    or issubclass(tp, tuple) and hasattr(tp, '_fields'))


def record(tp) -> Record | None:
    "How to build `tp` from a dict, or None if it is no class with fields."
    tp = typing.get_origin(tp) or tp
    if not has_fields(tp): return None
    if dataclasses.is_dataclass(tp): found = _dataclass_fields(tp)
    elif hasattr(tp, '_fields'): found = {n: n not in tp._field_defaults for n in tp._fields}
    else: found = {n: n in tp.__required_keys__ for n in tp.__annotations__}
    known = hints(tp)
    return Record(tp, {n: Field(known.get(n, Any), required) for n, required in found.items()})


def _dataclass_fields(tp):
    missing = dataclasses.MISSING
    return {f.name: f.default is missing and f.default_factory is missing for f in dataclasses.fields(tp) if f.init}
