"""JSON values of a model -> Python values of the annotated types; results of tools -> text for the model."""
import datetime
import decimal
import enum
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rishi.tools import Mismatch, Toolbox, clip, coerce, json_type, run, to_text
from rishi.types import ToolCall


class Colour(enum.Enum): red, blue = 'r', 'b'
class Size(enum.IntEnum): small, large = 1, 2


@dataclass
class Point:
    x: int
    y: float = 0.0
    near: list['Point'] = field(default_factory=list)
    def __post_init__(self):
        if self.x < 0: raise ValueError('x is negative')


class Query(TypedDict):
    q: str
    limit: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: str = 'x'


class Upper(str):
    def __new__(cls, text): return super().__new__(cls, text.upper())


def call(*functions, **arguments): return run(ToolCall(functions[0].__name__, arguments), Toolbox(functions))


# --- arguments ------------------------------------------------------------------------------------------------------
D, DT = datetime.date, datetime.datetime
READ = [
    (int, '3', 3), (int, ' 3 ', 3), (int, 3.0, 3), (int, '3.0', 3), (int, -7, -7), (int, '1e3', 1000),
    (float, 3, 3.0), (float, '3.5', 3.5), (float, 2.5, 2.5), (bool, 'true', True), (bool, 'False', False),
    (bool, 0, False), (bool, 'yes', True), (str, 5, '5'), (str, True, 'true'), (str, 'null', 'null'),
    (None, 'null', None), (int | None, None, None), (int | None, 'None', None), (int | None, '', None),
    (int | None, '4', 4), (str | None, '', ''), (int | str, '3', '3'), (str | int, 3, 3), (float | int, 3, 3),
    (int | float, '2.5', 2.5), (D | None, '2024-01-31', D(2024, 1, 31)), (list[int] | list[str], ['a'], ['a']),
    (list[int], ['1', 2.0], [1, 2]),
    (list[int], '[1, 2]', [1, 2]), (list, ['a', 1], ['a', 1]), (set[int], ['1', 1, 2], {1, 2}),
    (frozenset[str], ['a'], frozenset('a')), (tuple[int, str], ['1', 2], (1, '2')), (tuple[int, ...], ['1'], (1,)),
    (tuple, [1], (1,)), (Iterable[int], ['1'], [1]), (dict[str, int], {'a': '1'}, {'a': 1}),
    (dict[int, list[float]], {'1': [2]}, {1: [2.0]}), (dict, '{"a": 1}', {'a': 1}), (Any, {'a': [1]}, {'a': [1]}),
    (Colour, 'r', Colour.red), (Colour, 'red', Colour.red), (Colour, 'Blue', Colour.blue), (Size, 2, Size.large),
    (Size, '2', Size.large), (Size, 2.0, Size.large), (Size, 'small', Size.small), (Literal['a', 'b'], 'B', 'b'),
    (Literal[1, 2], '2', 2), (Literal['1', 1], 1, 1), (Literal[Colour.red], 'r', Colour.red), (Literal[True, 1], 1, 1),
    (Point, {'x': '1'}, Point(1)), (Point, '{"x": 1}', Point(1)), (list[Point], [{'x': 1, 'y': 2}], [Point(1, 2.0)]),
    (Point, {'x': 1, 'near': [{'x': 2}]}, Point(1, 0.0, [Point(2)])), (Query, {'q': 1}, {'q': '1'}),
    (Query, {'q': 'a', 'limit': '3'}, {'q': 'a', 'limit': 3}), (Pair, {'a': 1}, Pair(1)), (Path, 'a/b', Path('a/b')),
    (D, '2024-01-31', D(2024, 1, 31)), (D, '2024-01-31T12:00:00', D(2024, 1, 31)), (DT, '2024-01-31', DT(2024, 1, 31)),
    (DT, '2024-01-31T01:02:03Z', DT(2024, 1, 31, 1, 2, 3, tzinfo=datetime.UTC)),
    (datetime.time, '12:30', datetime.time(12, 30)), (datetime.timedelta, '90', datetime.timedelta(seconds=90)),
    (decimal.Decimal, 1.5, decimal.Decimal('1.5')), (uuid.UUID, str(uuid.UUID(int=5)), uuid.UUID(int=5)),
    (bytes, 'é', 'é'.encode()), (Upper, 'a', Upper('a')), (complex, '1+2j', 1+2j)]


@pytest.mark.parametrize('tp,value,want', READ, ids=[f'{t}<-{v!r}' for t, v, _ in READ])
def test_coerce(tp, value, want):
    got = coerce(value, tp)
    assert got == want and type(got) is type(want)


REFUSED = [
    (int, 'x', 'an integer, not "x"'), (int, 2.5, 'an integer, not 2.5'), (int, True, 'an integer, not true'),
    (int, None, 'an integer, not null'), (int, [1], 'an integer'), (int, '1e999', 'an integer'),
    (float, 'x', 'a number'), (float, {}, 'a number'), (bool, 'maybe', 'true or false'), (bool, 2, 'true or false'),
    (str, None, 'a string'),
    (str, {'a': 1}, 'a string'), (str, ['a'], 'a string'), (list[int], ['a'], r'v\[0\] must be an integer'),
    (list[int], 3, 'a list where each is an integer'), (list[str], 'a', 'a list'), (set, [[1]], 'a list'),
    (tuple[int, int], [1], 'a list of 2 values'), (dict[str, int], {'a': 'x'}, r'v\.a must be an integer'),
    (dict, [1], 'an object'), (Colour, 'green', "one of 'r', 'b', not \"green\""),
    (Literal['a', 1], 'c', "one of 'a', 1"), (int | bool, 'x', 'an integer or true or false'),
    (int | None, 'x', 'an integer, not "x"'), (None, 'x', 'null'),
    (Point, {'y': 1}, r'v\.x is missing \(an integer\)'), (Point, {'x': 1, 'z': 1}, 'has no z; it takes x, y, near'),
    (Point, {'x': 'a'}, r'v\.x must be an integer'), (Point, {'x': -1}, 'ValueError: x is negative'),
    (Point, 'a', 'an object with x, y, near'), (Point, {'x': 1, 'near': [{}]}, r'v\.near\[0\]\.x is missing'),
    (Query, {}, r'v\.q is missing'), (Path, 3.5j, 'a path'), (D, 'tomorrow', 'a date like'), (D, 3, 'a date like'),
    (uuid.UUID, 'x', 'a UUID'), (threading.Thread, 'x', 'Thread'), (threading.Thread, {'a': 1}, 'Thread')]


@pytest.mark.parametrize('tp,value,text', REFUSED, ids=[f'{t}<-{v!r}' for t, v, _ in REFUSED])
def test_refused(tp, value, text):
    with pytest.raises(Mismatch, match=text): coerce(value, tp, 'v')


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
                    lambda o: st.lists(o, max_size=3) | st.dictionaries(st.text(max_size=3), o, max_size=3),
                    max_leaves=6)


@given(st.sampled_from([t for t, *_ in READ + REFUSED]), JSON)
def test_any_value_is_read_or_refused(tp, value):
    try: got = coerce(value, tp, 'v')
    except Mismatch: return
    assert isinstance(to_text(got), str) and isinstance(json_type(tp), dict)


def test_pydantic_arguments():
    pydantic = pytest.importorskip('pydantic')
    class Item(pydantic.BaseModel):
        name: str
        n: int = 1
    def buy(item: Item): return item
    assert json.loads(call(buy, item={'name': 'a', 'n': '2'}).content) == {'name': 'a', 'n': 2}
    assert json.loads(call(buy, item='{"name": "a"}').content) == {'name': 'a', 'n': 1}
    r = call(buy, item={'name': 'a', 'n': 'x'})
    assert r.error.startswith('item.n: ') and '\n' not in r.error


# --- results --------------------------------------------------------------------------------------------------------
class Plain:
    def __repr__(self): return 'Plain()'


SELF = []
SELF.append(SELF)
TEXTS = [
    ('a\nb', 'a\nb'), ('', ''), (None, 'None'), (True, 'True'), (3, '3'), (0.1, '0.1'),
    ({'a': [1, None]}, '{"a": [1, null]}'),
    (['é', '日'], '["é", "日"]'), ((1, 2), '[1, 2]'), ({'b', 'a'}, '["a", "b"]'), ({3, 20, 1}, '[1, 3, 20]'),
    (Pair(1), '{"a": 1, "b": "x"}'),
    (Point(1), '{"x": 1, "y": 0.0, "near": []}'), ([Point(1, near=[Point(2)])], None), (Colour.red, 'r'),
    (Size.large, '2'), ({'c': Colour.red}, '{"c": "r"}'), (Path('a/b'), 'a/b'), ([Path('a')], '["a"]'),
    (D(2024, 1, 2), '2024-01-02'), ({'d': D(2024, 1, 2)}, '{"d": "2024-01-02"}'),
    (decimal.Decimal('1.50'), '1.50'), (b'abc', 'abc'), (b'\xff\x00', '<2 bytes>'), (Plain(), 'Plain()'),
    ([Plain()], '["Plain()"]'), ({(1, 2): 3}, '{(1, 2): 3}'),
    (SELF, '[[...]]'), (iter([1, 2]), '[1, 2]'), ((i for i in 'ab'), '["a", "b"]'), (range(3), 'range(0, 3)'),
    (OrderedDict(a=1), '{"a": 1}'), ('\ud800', '\\ud800'), (['\udcff'], '["\\udcff"]'), (float('nan'), 'nan'),
    (Point, None)]


@pytest.mark.parametrize('value,text', TEXTS, ids=lambda o: repr(o)[:30])
def test_results_as_text(value, text):
    def f(): return value
    r = call(f)
    assert r.error is None and r.content == (text or r.content)
    r.content.encode()


def test_tables_and_arrays():
    pd, np = pytest.importorskip('pandas'), pytest.importorskip('numpy')
    df = pd.DataFrame({'a': [1, 2]})
    assert to_text(df) == repr(df) and to_text(np.arange(3)) == 'array([0, 1, 2])'
    assert to_text(np.float64(0.5)) == '0.5' and to_text(np.int64(3)) == '3' and to_text(np.bool_(True)) == 'True'
    inner = {'a': np.arange(3), 'n': np.int64(3), 't': df}
    assert json.loads(to_text(inner)) == {'a': [0, 1, 2], 'n': 3, 't': repr(df)}
    assert coerce(3, np.int64) == 3 and json_type(np.float32) == {'type': 'number'}
    with pytest.raises(Mismatch): coerce(3, np.ndarray)


def test_results_that_cannot_be_shown():
    class Bad:
        def __repr__(self): raise RuntimeError('no')
    def items():
        yield 1
        raise OSError('gone')
    def f(): return Bad()
    assert call(f).error == 'the result cannot be shown: RuntimeError: no'
    assert call(items).error == 'the result cannot be shown: OSError: gone'


def test_endless_iterators_end():
    def count():
        i = 0
        while True: yield (i := i + 1)
    assert json.loads(call(count).content) == list(range(1, 1001))


def test_long_results_are_cut():
    def f(n: int): return 'x'*n
    def g(): raise ValueError('y'*100)
    box = Toolbox([f, g])
    r = run(ToolCall('f', {'n': 12000}), box, max_len=3000)
    assert r.content == 'x'*3000 + '… 9,000 of 12,000 characters cut' and r.error is None
    assert run(ToolCall('f', {'n': 10}), box, max_len=10).content == 'x'*10
    assert run(ToolCall('g'), box, max_len=20).error == 'ValueError: yyyyyyyy… 92 of 112 characters cut'
    assert clip('abc', None) == 'abc' and clip('abc', 1) == 'a… 2 of 3 characters cut'
