"""Python types as JSON schemas, and JSON text back as values of those types.

    schema, parse = to_schema(Answer)
    parse('{"n":3}')                                     # Answer(n=3); EngineError for anything else

Types say nothing about length, and small models like to go on, so what is unlimited gets a limit: MAX_CHARS for a text,
MAX_ITEMS for a list or a dict (numbers are ended by `rishi.grammar`). `Annotated[str, MaxLen(9000)]`, or pydantic's
`Field(max_length=9000)`, sets another. A JSON schema given as a dict is taken as it is: it is the grammar's to
hold, `parse` only reads.
"""
from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections import abc
from collections.abc import Callable
from datetime import date, datetime, time
from enum import Enum
from uuid import UUID

from .errors import BadRequest, EngineError

__all__ = ['to_schema', 'MAX_CHARS', 'MAX_ITEMS']

MAX_CHARS, MAX_ITEMS = 2000, 100
_KEYWORDS = set('''$ref $defs $schema $id $comment $anchor type enum const properties required additionalProperties
patternProperties minProperties maxProperties items prefixItems minItems maxItems anyOf oneOf allOf not pattern format
minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf title description default examples
definitions uniqueItems contains if then else propertyNames dependentRequired dependentSchemas'''.split())


def to_schema(tp) -> tuple[dict, Callable]:
    """The JSON schema of `tp` and `parse(text) -> value`. `tp` is a dataclass, a pydantic model, a TypedDict, a
    NamedTuple, an Enum, a Literal, str, int, float, bool, None, a date, time, datetime or UUID, a list, tuple, set or
    dict of such, a Union, or a JSON schema as a dict (values stay plain JSON). Raises BadRequest for any other;
    `parse` raises EngineError for text that is cut short or no value of `tp`."""
    if isinstance(tp, dict):
        _check_schema(tp)
        return tp, _parser('the JSON schema', lambda x: x)
    kinds = _Kinds()
    schema, build = kinds.of(tp)
    return _whole(schema, {k: v for k, (v, _) in kinds.defs.items()}), _parser(_name(tp), build)


def _whole(schema, defs):
    "A schema with its definitions; one that only names a definition is that definition, unless others need it too."
    name = schema.get('$ref', '').removeprefix('#/$defs/')
    if name and f'"#/$defs/{name}' not in json.dumps([*defs.values()]): schema = defs.pop(name)
    return {**schema, '$defs': defs} if defs else schema


def _check_schema(s):
    try: json.dumps(s, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise BadRequest(f'A JSON schema holds plain JSON only: {e}.') from e
    if s and not _KEYWORDS & s.keys():
        raise BadRequest(f'{_short(s)} is no JSON schema: it has no keyword such as `type` or `properties`.')


def _parser(name, build):
    def parse(text: str):
        try: return build(json.loads(text, parse_constant=_refuse, parse_float=_float))
        except json.JSONDecodeError as e:
            raise EngineError(f'The answer is not whole JSON ({e.msg} at {e.pos}); allow more tokens.') from e
        except (ValueError, TypeError) as e:
            raise EngineError(f'The answer is no {name}: {" ".join(str(e).split())}.') from e
    return parse


def _refuse(word): raise ValueError(f'{word} is no JSON')


def _float(text):
    if math.isinf(x := float(text)): raise ValueError(f'{text} is too large for a float')
    return x


# --- from a type to (schema, build); `build(json value) -> value` raises ValueError for another type's value ---------
class _Kinds:
    "Schemas of types as they are met; `defs` holds those that have a name, so that a type may contain itself."

    def __init__(self): self.defs, self._names = {}, {}

    def of(self, tp):
        origin, args = typing.get_origin(tp), typing.get_args(tp)
        if origin is typing.Annotated: return self._annotated(*args)
        if not isinstance(tp, abc.Hashable): raise BadRequest(f'{_short(tp)} is no type. {_KNOWN}')
        if tp in _PLAIN: return _PLAIN[tp]
        if isinstance(tp, (typing.NewType, getattr(typing, 'TypeAliasType', typing.NewType))):
            return self.of(tp.__supertype__ if isinstance(tp, typing.NewType) else tp.__value__)
        if origin in (typing.Union, types.UnionType): return _either([self.of(a) for a in args])
        if origin is typing.Literal: return _literal(args)
        if (origin or tp) in _MANY: return self._many(origin or tp, args)
        if (origin or tp) is tuple: return self._tuple(args)
        if (origin or tp) in (dict, abc.Mapping, abc.MutableMapping): return self._dict(args)
        if isinstance(tp, type) and issubclass(tp, Enum): return _enum(tp)
        if isinstance(tp, type) and not origin: return self._named(tp)
        raise BadRequest(f'{_short(tp)} cannot be asked for: it has no JSON schema here. {_KNOWN}')

    def _annotated(self, tp, *notes):
        schema, build = _limited(self.of(tp), notes)
        if 'minItems' in schema and (typing.get_origin(tp) or tp) in (set, frozenset, abc.Set):
            raise BadRequest(f'{_short(tp)} cannot have a least size: a model may list an item twice. Use a list.')
        return schema, build

    def _many(self, kind, args):
        item, build = self.of(args[0] if args else typing.Any)
        make = _MANY[kind]
        return {'type': 'array', 'items': item, 'maxItems': MAX_ITEMS}, lambda x: make([build(o) for o in _is(list, x)])

    def _tuple(self, args):
        if not args: args = (typing.Any, ...)
        if len(args) == 2 and args[1] is ...:
            schema, build = self._many(list, args[:1])
            return schema, lambda x: tuple(build(x))
        if args == ((),): args = ()
        items, builds = zip(*map(self.of, args)) if args else ((), ())
        size = dict(minItems=len(items), maxItems=len(items))
        return {'type': 'array', 'prefixItems': [*items], 'items': False, **size}, lambda x: _tuple_of(builds, x)

    def _dict(self, args):
        key, value = args or (str, typing.Any)
        if key is not str: raise BadRequest(f'A dict with keys {_short(key)} cannot be asked for: use str keys.')
        item, build = self.of(value)
        return ({'type': 'object', 'additionalProperties': item, 'maxProperties': MAX_ITEMS},
                lambda x: {k: build(v) for k, v in _is(dict, x).items()})

    def _named(self, tp):
        "A class with fields: its schema stands in `defs` under its name, once."
        name = self._names.get(tp)
        if name is None:
            name = self._names[tp] = _free(re.sub(r'\W+', '_', tp.__name__), self._names.values())
            self.defs[name] = {}, None                   # held while its own fields are looked at
            self.defs[name] = self._pydantic(tp, name) if hasattr(tp, 'model_json_schema') else self._fields(tp)
        return {'$ref': f'#/$defs/{name}'}, lambda x: self.defs[name][1](x)

    def _pydantic(self, tp, name):
        schema = tp.model_json_schema(ref_template=f'#/$defs/{name}/$defs/{{model}}')
        return _bounded(schema), lambda x: tp.model_validate_json(json.dumps(x))

    def _fields(self, tp):
        fields, make = _fields_of(tp), dict if typing.is_typeddict(tp) else tp
        kinds = {k: self.of(t) for k, (t, _) in fields.items()}
        required = [k for k, (_, needed) in fields.items() if needed]
        schema = {'type': 'object', 'properties': {k: s for k, (s, _) in kinds.items()}, 'required': required,
                  'additionalProperties': False}
        def build(x):
            missing = [k for k in required if k not in _is(dict, x)]
            if missing or x.keys() - kinds: raise ValueError(f'its keys are {[*x]}, not {[*kinds]}')
            return make(**{k: kinds[k][1](v) for k, v in x.items()})
        return schema, build


def _fields_of(tp) -> dict:
    "name -> (type, whether it must be given) of a dataclass, TypedDict or NamedTuple."
    try: hints = typing.get_type_hints(tp, include_extras=True)
    except NameError as e:
        raise BadRequest(f'{_name(tp)} cannot be asked for: {e}; define that type in a module.') from e
    if dataclasses.is_dataclass(tp):
        free = dataclasses.MISSING
        return {f.name: (hints[f.name], f.default is free and f.default_factory is free)
                for f in dataclasses.fields(tp) if f.init}
    if typing.is_typeddict(tp): return {k: _needed(t, k in tp.__required_keys__) for k, t in hints.items()}
    if issubclass(tp, tuple) and hasattr(tp, '_fields'):
        return {k: (hints.get(k, typing.Any), k not in tp._field_defaults) for k in tp._fields}
    raise BadRequest(f'{_name(tp)} cannot be asked for: it has no JSON schema here. {_KNOWN}')


def _needed(tp, needed):
    "Without its Required or NotRequired, which count for more than what the class says."
    origin = typing.get_origin(tp)
    if origin not in (typing.Required, typing.NotRequired): return tp, needed
    return typing.get_args(tp)[0], origin is typing.Required


def _free(name, taken):
    n, taken = 1, {*taken}
    while (found := name if n == 1 else f'{name}{n}') in taken: n += 1
    return found


# --- kinds of values ------------------------------------------------------------------------------------------------
def _is(kind, x):
    if type(x) is not kind: raise ValueError(f'{_short(x)} is not a {kind.__name__}')
    return x


def _as_float(x):
    if type(x) not in (int, float): raise ValueError(f'{_short(x)} is not a number')
    return float(x)


def _nothing(x):
    if x is not None: raise ValueError(f'{_short(x)} is not null')


def _tuple_of(builds, x):
    if len(_is(list, x)) != len(builds): raise ValueError(f'{len(x)} items, not {len(builds)}')
    return tuple(b(o) for b, o in zip(builds, x))


def _text(format, build): return {'type': 'string', 'format': format}, lambda x: build(_is(str, x))


def _either(kinds):
    def build(x):
        for _, b in kinds:
            try: return b(x)
            except (ValueError, TypeError): continue
        raise ValueError(f'{_short(x)} is none of its types')
    return {'anyOf': [s for s, _ in kinds]}, build


def _literal(values):
    plain = {_plain(v): v for v in values}
    def build(x):
        for text, v in plain.items():
            if json.loads(text) == x and type(json.loads(text)) is type(x): return v
        raise ValueError(f'{_short(x)} is none of {", ".join(plain)}')
    return {'enum': [json.loads(o) for o in plain]}, build


def _plain(v):
    "A literal value as JSON text; a member of an Enum by its value, or by its name where that is no JSON."
    if isinstance(v, Enum): return _plain(v.value) if type(v.value) in _SCALARS else json.dumps(v.name)
    if type(v) in _SCALARS: return json.dumps(v)
    raise BadRequest(f'{v!r} cannot be asked for: JSON has no such value.')


def _enum(tp):
    if not len(tp): raise BadRequest(f'{_name(tp)} cannot be asked for: it has no members.')
    return _literal([*tp])


def _limited(kind, notes):
    "A kind with what `annotated_types` and the like say about it; any other note is an error, unless it is a text."
    schema, build = dict(kind[0]), kind[1]
    for note in notes:
        if text := note if isinstance(note, str) else getattr(note, 'description', None): schema['description'] = text
    for note in [m for n in notes for m in getattr(n, 'metadata', [n])]:
        if isinstance(note, str): continue
        if found := {k: v for name, k in _limit_names(schema) if (v := getattr(note, name, None)) is not None}:
            schema |= found
        else: raise BadRequest(f'The note {_short(note)} on a type cannot be enforced; leave it out.')
    return schema, build


def _limit_names(schema):
    size = {'array': 'Items', 'object': 'Properties'}.get(schema.get('type'), 'Length')
    return [('ge', 'minimum'), ('gt', 'exclusiveMinimum'), ('le', 'maximum'), ('lt', 'exclusiveMaximum'),
            ('multiple_of', 'multipleOf'), ('min_length', f'min{size}'), ('max_length', f'max{size}'),
            ('pattern', 'pattern')]


def _bounded(s):
    "A schema by pydantic with our limits, no keys beyond those it lists, and its tagged unions as `anyOf`."
    if isinstance(s, list): return [_bounded(o) for o in s]
    if not isinstance(s, dict): return s
    named = ('properties', '$defs')
    out = {k: v if k in ('enum', 'const', 'default', 'examples') else
           {n: _bounded(o) for n, o in v.items()} if k in named else _bounded(v) for k, v in s.items()}
    if out.pop('discriminator', None): out['anyOf'] = out.pop('oneOf')
    if 'minItems' not in out: out.pop('uniqueItems', None)   # of sets: what comes twice is in them once
    if out.get('format') in ('path', 'password'): del out['format']
    for kind, key, value in _BOUNDS:
        if out.get('type') == kind and not _FINITE & out.keys(): out.setdefault(key, value)
    if 'properties' in out: out.pop('maxProperties')
    return out


# --- tables ---------------------------------------------------------------------------------------------------------
_SCALARS = (str, int, float, bool, type(None))
_PLAIN = {
    typing.Any: ({}, lambda x: x), object: ({}, lambda x: x),
    None: ({'type': 'null'}, _nothing), type(None): ({'type': 'null'}, _nothing),
    bool: ({'type': 'boolean'}, lambda x: _is(bool, x)), int: ({'type': 'integer'}, lambda x: _is(int, x)),
    float: ({'type': 'number'}, _as_float), str: ({'type': 'string', 'maxLength': MAX_CHARS}, lambda x: _is(str, x)),
    date: _text('date', date.fromisoformat), time: _text('time', time.fromisoformat),
    datetime: _text('date-time', datetime.fromisoformat), UUID: _text('uuid', UUID),
}
_MANY = {list: list, set: set, frozenset: frozenset, abc.Sequence: list, abc.Iterable: list, abc.Set: frozenset}
_FINITE = {'const', 'enum', 'format', 'pattern'}
_BOUNDS = (('string', 'maxLength', MAX_CHARS), ('array', 'maxItems', MAX_ITEMS), ('object', 'maxProperties', MAX_ITEMS),
           ('object', 'additionalProperties', False))
_KNOWN = ('Use a dataclass, a pydantic model, a TypedDict, an Enum, a Literal, str, int, float, bool, dates, '
          'lists, dicts and unions of them, or a JSON schema.')


def _short(x):
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + '...'


def _name(tp): return getattr(tp, '__name__', None) or _short(tp)
