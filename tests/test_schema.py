"""What a function looks like to a model: names, annotations, docstrings, comments, and text that never changes."""
import datetime
import decimal
import enum
import functools
import json
import os
import subprocess
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import pytest

from rishi.errors import BadRequest
from rishi.tools import Toolbox, json_type, tool_schema


class Colour(enum.Enum): red, blue = 'r', 'b'
class Size(enum.IntEnum): small, large = 1, 2
class Shape(enum.Enum): box, ball = object(), object()


@dataclass
class Point:
    "A point."
    x: int # across
    y: int = 0 # down
    tags: list[str] = field(default_factory=list)
    area: int = field(init=False, default=0)


@dataclass
class Node:
    name: str
    kids: 'list[Node]' = field(default_factory=list)


class Query(TypedDict):
    q: str
    limit: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: str = 'x'


def function(fn): return tool_schema(fn)['function']
def params(fn): return function(fn)['parameters']


def test_the_whole():
    def add(a: int, b: int = 1):
        "Add two numbers."
    assert tool_schema(add) == {'type': 'function', 'function': {
        'name': 'add', 'description': 'Add two numbers.', 'parameters': {
            'type': 'object',
            'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer', 'default': 1}}, 'required': ['a']}}}


def test_nothing_written():
    def get_weather(city, days=3, unit='C', exact=False, more=None): pass
    assert function(get_weather) == {
        'name': 'get_weather', 'description': 'Get weather.', 'parameters': {
            'type': 'object', 'required': ['city'], 'properties': {
                'city': {}, 'days': {'type': 'integer', 'default': 3}, 'unit': {'type': 'string', 'default': 'C'},
                'exact': {'type': 'boolean', 'default': False}, 'more': {}}}}


def test_no_arguments():
    def now(): "The time."
    assert params(now) == {'type': 'object', 'properties': {}}


# --- kinds of callables ---------------------------------------------------------------------------------------------
class Shop:
    def __init__(self, name: str = 'x'): self.name = name
    def price(self, item: str) -> float: "The price of an item."
    @classmethod
    def make(cls, name: str): "Make a shop."
    @staticmethod
    def tax(rate: float): "The tax."
    async def order(self, n: int): "Order."
    def __call__(self, item: str, n: int = 1): "Buy an item."


class Silent:
    "Adds."
    def __call__(self, a: int): pass


def logged(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs): return fn(*args, **kwargs)
    return inner


@logged
def wrapped(a: int): "Wrapped."


@functools.lru_cache
def cached(a: int): "Cached."


def base(a: int, b: str, c=2): "Base."


CALLABLES = [
    (Shop().price, 'price', 'The price of an item.', ['item']), (Shop.make, 'make', 'Make a shop.', ['name']),
    (Shop.tax, 'tax', 'The tax.', ['rate']), (Shop().order, 'order', 'Order.', ['n']),
    (Shop(), 'Shop', 'Buy an item.', ['item', 'n']), (Silent(), 'Silent', 'Adds.', ['a']),
    (wrapped, 'wrapped', 'Wrapped.', ['a']), (cached, 'cached', 'Cached.', ['a']),
    (functools.partial(base, 1), 'base', 'Base.', ['b', 'c']),
    (functools.partial(base, b='x'), 'base', 'Base.', ['a', 'b', 'c']),
    (functools.partial(functools.partial(base, 1), 'x'), 'base', 'Base.', ['c']),
    (Point, 'Point', 'A point.', ['x', 'y', 'tags']), (Node, 'Node', 'Node.', ['name', 'kids'])]


@pytest.mark.parametrize('fn,name,text,names', CALLABLES, ids=[f'{o[1]}{i}' for i, o in enumerate(CALLABLES)])
def test_callables(fn, name, text, names):
    f = function(fn)
    assert (f['name'], f['description'], list(f['parameters']['properties'])) == (name, text, names)


def test_types_survive_wrapping():
    assert params(Shop().price)['properties']['item'] == {'type': 'string'}
    assert params(wrapped)['properties']['a'] == params(cached)['properties']['a'] == {'type': 'integer'}
    assert params(functools.partial(base, 1)) == {'type': 'object', 'required': ['b'], 'properties': {
        'b': {'type': 'string'}, 'c': {'type': 'integer', 'default': 2}}}
    assert params(Silent())['properties'] == {'a': {'type': 'integer'}}
    assert params(Point)['properties']['x'] == {'type': 'integer', 'description': 'across'}


def test_lambda_wants_a_name():
    with pytest.raises(BadRequest, match='name'): Toolbox([lambda x: x])
    box = Toolbox({'double': lambda x: 2*x})
    assert box.names == ['double'] and box['double'](2) == 4
    named = lambda x: x
    named.__name__ = 'same'
    assert tool_schema(named)['function']['name'] == 'same'


@pytest.mark.parametrize('bad', [3, 'add', {'type': 'function'}, Path('x')])
def test_not_callable(bad):
    with pytest.raises(BadRequest, match='not callable') as e: tool_schema(bad)
    assert '\n' not in str(e.value)


def needs_callback(f: Callable): pass
def needs_class(tp: type[int]): pass


@pytest.mark.parametrize('bad', [needs_callback, needs_class, Shop.price, dict.get, min], ids=str)
def test_cannot_be_a_tool(bad):
    with pytest.raises(BadRequest) as e: tool_schema(bad)
    assert '\n' not in str(e.value) and 'cannot be a tool' in str(e.value)


@pytest.mark.parametrize('name', ['', 'a b', 'a.b', 'x'*65, 'rm -rf', 'a\nb'])
def test_bad_names(name):
    def f(): pass
    f.__name__ = name
    with pytest.raises(BadRequest): tool_schema(f)


def test_what_no_model_can_give_is_left_out():
    def f(a: int, key: Callable = len, cls: type | None = None): pass
    assert list(params(f)['properties']) == ['a']


def test_rest_arguments():
    def f(a, /, *names: str, on: bool = True, **more: float): pass
    got = params(f)
    assert got['required'] == ['a'] and got['additionalProperties'] == {'type': 'number'}
    assert got['properties'] == {'a': {}, 'names': {'type': 'array', 'items': {'type': 'string'}},
                                 'on': {'type': 'boolean', 'default': True}}
    def g(**more): pass
    assert params(g)['additionalProperties'] is True


# --- annotations ----------------------------------------------------------------------------------------------------
UserId, T = NewType('UserId', int), TypeVar('T', bound=str)
POINT = {'type': 'object', 'required': ['x'], 'properties': {
    'x': {'type': 'integer', 'description': 'across'}, 'y': {'type': 'integer', 'description': 'down'},
    'tags': {'type': 'array', 'items': {'type': 'string'}}}}
TYPES = [
    (int, {'type': 'integer'}), (float, {'type': 'number'}), (bool, {'type': 'boolean'}), (str, {'type': 'string'}),
    (None, {'type': 'null'}), (Any, {}), (object, {}), (bytes, {'type': 'string'}), (UserId, {'type': 'integer'}),
    (T, {'type': 'string'}), (decimal.Decimal, {'type': 'number'}), (Path, {'type': 'string'}),
    (datetime.date, {'type': 'string', 'format': 'date'}),
    (datetime.datetime, {'type': 'string', 'format': 'date-time'}),
    (datetime.time, {'type': 'string', 'format': 'time'}), (datetime.timedelta, {'type': 'number'}),
    (uuid.UUID, {'type': 'string', 'format': 'uuid'}), (list, {'type': 'array'}), (dict, {'type': 'object'}),
    (list[int], {'type': 'array', 'items': {'type': 'integer'}}), (list[Any], {'type': 'array'}),
    (Sequence[str], {'type': 'array', 'items': {'type': 'string'}}),
    (Iterable[int], {'type': 'array', 'items': {'type': 'integer'}}),
    (set[int], {'type': 'array', 'items': {'type': 'integer'}, 'uniqueItems': True}),
    (tuple[int, ...], {'type': 'array', 'items': {'type': 'integer'}}), (tuple, {'type': 'array'}),
    (tuple[int, str], {'type': 'array', 'prefixItems': [{'type': 'integer'}, {'type': 'string'}],
                       'minItems': 2, 'maxItems': 2}),
    (dict[str, int], {'type': 'object', 'additionalProperties': {'type': 'integer'}}),
    (Mapping[str, list[int]], {'type': 'object',
                               'additionalProperties': {'type': 'array', 'items': {'type': 'integer'}}}),
    (Literal['a', 'b'], {'type': 'string', 'enum': ['a', 'b']}), (Literal[1, 'b'], {'enum': [1, 'b']}),
    (Literal[Colour.red], {'type': 'string', 'enum': ['r']}), (Colour, {'type': 'string', 'enum': ['r', 'b']}),
    (Size, {'type': 'integer', 'enum': [1, 2]}), (Shape, {'type': 'string', 'enum': ['box', 'ball']}),
    (int | str, {'anyOf': [{'type': 'integer'}, {'type': 'string'}]}), (int | Any, {}),
    (int | None, {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}), (Path | str, {'type': 'string'}),
    (Annotated[int, 'a count'], {'type': 'integer', 'description': 'a count'}), (Point, POINT),
    (list[Point], {'type': 'array', 'items': POINT}),
    (Query, {'type': 'object', 'required': ['q'],
             'properties': {'q': {'type': 'string'}, 'limit': {'type': 'integer'}}}),
    (Pair, {'type': 'object', 'required': ['a'], 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'string'}}}),
    (Node, {'type': 'object', 'required': ['name'], 'properties': {
        'name': {'type': 'string'}, 'kids': {'type': 'array', 'items': {'type': 'object'}}}}),
    (types.SimpleNamespace, {})]


@pytest.mark.parametrize('tp,schema', TYPES, ids=[str(t) for t, _ in TYPES])
def test_types(tp, schema): assert json_type(tp) == schema


def test_defaults():
    def f(a: int | None = None, b: Colour = Colour.blue, c: Path = Path('x'), d: float = float('inf'), e=(1, 2),
          g: Literal['x', 'y'] = 'x', h: list[str] | None = None, i: str | int | None = None): pass
    assert params(f) == {'type': 'object', 'properties': {
        'a': {'type': 'integer'}, 'b': {'type': 'string', 'enum': ['r', 'b'], 'default': 'b'}, 'c': {'type': 'string'},
        'd': {'type': 'number'}, 'e': {'type': 'array', 'default': [1, 2]},
        'g': {'type': 'string', 'enum': ['x', 'y'], 'default': 'x'},
        'h': {'type': 'array', 'items': {'type': 'string'}},
        'i': {'anyOf': [{'type': 'string'}, {'type': 'integer'}]}}}


def test_annotations_as_text():
    space = {}
    exec('from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING: import polars as pl\n'
         'def f(a: int, b: list[str], c: pl.Frame, d: Missing = 1): pass', space)
    props = params(space['f'])['properties']
    assert props['a'] == {'type': 'integer'} and props['b'] == {'type': 'array', 'items': {'type': 'string'}}
    assert props['c'] == {} and props['d'] == {'type': 'integer', 'default': 1}


def test_pydantic():
    pydantic = pytest.importorskip('pydantic')
    class Item(pydantic.BaseModel):
        "Not told."
        name: str = pydantic.Field(description='what it is')
        title: str = 'x'
        parts: list['Item'] = []
    Item.model_rebuild(_types_namespace={'Item': Item})
    def buy(item: Item, n: int = 1): "Buy."
    got = params(buy)['properties']['item']
    assert got['properties']['name'] == {'type': 'string', 'description': 'what it is'}
    assert got['properties']['title'] == {'type': 'string', 'default': 'x'}
    assert got['required'] == ['name'] and '$' not in json.dumps(got)
    def count(n: Annotated[int, pydantic.Field(description='how many')]): pass
    assert params(count)['properties']['n'] == {'type': 'integer', 'description': 'how many'}
    assert function(Item)['description'] == 'Not told.'


def test_text_is_stable():
    code = ('from test_schema import *\n'
            'print(json.dumps([tool_schema(o[0]) for o in CALLABLES] + [json_type(o) for o, _ in TYPES]))')
    how = dict(capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    runs = [subprocess.run([sys.executable, '-c', code], env={**os.environ, 'PYTHONHASHSEED': seed}, **how).stdout
            for seed in '01']
    assert runs[0] == runs[1] and json.loads(runs[0])
