"""Python types as JSON schemas and back; what the schemas say is held against `jsonschema`."""
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Required, TypedDict, Union
from uuid import UUID

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rishi.errors import BadRequest, EngineError
from rishi.schema import MAX_CHARS, MAX_ITEMS, to_schema


class Colour(Enum):
    RED = 'red'
    GREEN = 'green'


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Moment(Enum):
    START = date(2020, 1, 1)
    END = date(2021, 1, 1)


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Tree:
    name: str
    kids: list['Tree'] = field(default_factory=list)


@dataclass
class Trip:
    to: str
    by: Literal['train', 'bike']
    at: datetime | None = None
    stops: list[Point] = field(default_factory=list)
    colour: Colour = Colour.RED
    length: float = field(init=False, default=0.0)


class Movie(TypedDict, total=False):
    title: Required[str]
    year: int


class Song(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: str = 'b'


Id = NewType('Id', int)

# type, JSON, value
GOOD = [
    (int, '3', 3), (float, '3', 3.0), (float, '2.5', 2.5), (bool, 'true', True), (str, '"é"', 'é'),
    (None, 'null', None), (Any, '{"a":[1]}', {'a': [1]}), (Id, '7', 7),
    (Colour, '"green"', Colour.GREEN), (Level, '2', Level.HIGH), (Moment, '"END"', Moment.END),
    (Literal[1, 'a', True], 'true', True), (Literal[1, 'a', True], '1', 1), (Literal[Colour.RED], '"red"', Colour.RED),
    (Optional[int], 'null', None), (Union[Point, int], '2', 2),  # noqa: UP007, UP045
    (int | str, '"1"', '1'), (int | float, '1.5', 1.5), (Point | None, 'null', None),
    (list[int], '[1,2]', [1, 2]), (list, '[1,"a"]', [1, 'a']), (set[int], '[1,1]', {1}),
    (tuple[int, str], '[1,"a"]', (1, 'a')), (tuple[int, ...], '[1,2,3]', (1, 2, 3)), (tuple[()], '[]', ()),
    (dict[str, Level], '{"k":1}', {'k': Level.LOW}),
    (date, '"2024-02-29"', date(2024, 2, 29)), (time, '"10:00:00Z"', time(10, tzinfo=UTC)),
    (datetime, '"2024-05-06T07:08:09.5+02:00"', datetime(2024, 5, 6, 7, 8, 9, 500000, timezone(timedelta(hours=2)))),
    (UUID, '"12345678-1234-5678-1234-567812345678"', UUID('12345678-1234-5678-1234-567812345678')),
    (Point, '{"x":1}', Point(1.0, 0.0)), (list[Point], '[{"x":1,"y":2.5}]', [Point(1.0, 2.5)]),
    (Tree, '{"name":"a","kids":[{"name":"b"}]}', Tree('a', [Tree('b')])),
    (Trip, '{"to":"Ulm","by":"bike","at":"2024-05-06T07:08:09Z","stops":[{"x":1}],"colour":"green"}',
     Trip('Ulm', 'bike', datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), [Point(1.0)], Colour.GREEN)),
    (Movie, '{"title":"M"}', {'title': 'M'}), (Song, '{"title":"S","year":1}', {'title': 'S', 'year': 1}),
    (Pair, '{"a":1}', Pair(1, 'b')), (Annotated[int, 'how many'], '1', 1),
    ({'type': 'array', 'items': {'type': 'integer'}}, '[1]', [1]),
]
BAD = [
    (int, '1.5'), (int, 'true'), (float, '"1"'), (bool, '1'), (str, '1'), (None, '0'), (Colour, '"blue"'), (Level, '3'),
    (Level, 'true'), (Literal[1], 'true'), (int | str, 'null'), (list[int], '[1,"a"]'), (tuple[int, str], '[1]'),
    (Point, '{"y":1}'), (Point, '{"x":1,"z":2}'), (Point, '[]'), (Movie, '{}'), (Song, '{"year":1}'),
    (Trip, '{"to":"Ulm","by":"car"}'), (Pair, '{}'), (dict[str, int], '{"a":"b"}'),
]
# cut short, or what a schema does not show
WORSE = [(Point, '{"x":1'), (int, ''), (str, '"cut of'), (float, '1e999'), (float, 'NaN'), (date, '"2023-02-29"'),
         (datetime, '"soon"'), (UUID, '"1"')]


def valid(schema, value):
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value)


@pytest.mark.parametrize(('tp', 'text', 'value'), GOOD, ids=lambda o: str(o)[:40])
def test_a_value_comes_back_in_its_type(tp, text, value):
    schema, parse = to_schema(tp)
    got = parse(text)
    assert got == value and type(got) is type(value)
    assert valid(schema, json.loads(text))


@pytest.mark.parametrize(('tp', 'text'), BAD + WORSE, ids=lambda o: str(o)[:40])
def test_no_other_value_gets_through(tp, text):
    with pytest.raises(EngineError) as e: to_schema(tp)[1](text)
    assert '\n' not in str(e.value)


@pytest.mark.parametrize(('tp', 'text'), BAD, ids=lambda o: str(o)[:40])
def test_the_schema_refuses_it_too(tp, text): assert not valid(to_schema(tp)[0], json.loads(text))


@pytest.mark.parametrize('tp', [
    bytes, complex, object(), print, [int], 'Point', {'name': str}, {'name': 'string'}, dict[int, str], Literal[b'x'],
    True, type('Empty', (), {}), Enum('Nobody', []), list[bytes], Annotated[int, object()],
    {'type': 'number', 'minimum': math.nan},
], ids=lambda o: str(o)[:40])
def test_what_has_no_schema_is_refused(tp):
    with pytest.raises(BadRequest) as e: to_schema(tp)
    assert '\n' not in str(e.value)


def test_a_type_of_a_function_that_cannot_be_found_says_so():
    @dataclass
    class Outer:
        inner: 'Inner'  # noqa: F821
    with pytest.raises(BadRequest, match='Inner'): to_schema(Outer)


def test_texts_and_lists_end_somewhere():
    text, items, named = to_schema(str)[0], to_schema(list[str])[0], to_schema(dict[str, str])[0]
    assert text['maxLength'] == items['items']['maxLength'] == MAX_CHARS
    assert items['maxItems'] == named['maxProperties'] == MAX_ITEMS
    assert 'maxLength' not in to_schema(date)[0] and to_schema({'type': 'string'})[0] == {'type': 'string'}


def test_limits_of_an_annotation_count():
    note = pydantic.Field(max_length=3, pattern='^a', description='short')
    noted = {'type': 'string', 'maxLength': 3, 'pattern': '^a', 'description': 'short'}
    assert to_schema(Annotated[str, note])[0] == noted
    assert to_schema(Annotated[list[int], pydantic.Field(min_length=2)])[0]['minItems'] == 2
    with pytest.raises(BadRequest, match='twice'): to_schema(Annotated[set[int], pydantic.Field(min_length=2)])
    span = to_schema(Annotated[int, pydantic.Field(ge=1, lt=5)])[0]
    assert span == {'type': 'integer', 'minimum': 1, 'exclusiveMaximum': 5}


def test_a_type_that_holds_itself_is_a_definition_and_another_stands_in_place():
    tree, point = to_schema(Tree)[0], to_schema(Point)[0]
    assert tree['$ref'] == '#/$defs/Tree'
    assert tree['$defs']['Tree']['properties']['kids']['items'] == {'$ref': '#/$defs/Tree'}
    assert '$defs' not in point and point['required'] == ['x'] and point['additionalProperties'] is False


def test_two_classes_of_one_name_are_two_definitions():
    def make(tp): return dataclass(type('Same', (), {'__annotations__': {'v': tp}, '__module__': __name__}))
    one, two = make(int), make(str)
    schema, parse = to_schema(tuple[one, two])
    assert parse('[{"v":1},{"v":"a"}]') == (one(1), two('a')) and valid(schema, [{'v': 1}, {'v': 'a'}])
    assert not valid(schema, [{'v': 'a'}, {'v': 1}])


def test_pydantic_models():
    class Cat(pydantic.BaseModel):
        kind: Literal['cat']
        lives: int = pydantic.Field(ge=0, le=9)
    class Dog(pydantic.BaseModel):
        kind: Literal['dog']
        names: set[str] = set()
    class Home(pydantic.BaseModel):
        pet: Cat | Dog = pydantic.Field(discriminator='kind')
        since: date
        note: str = pydantic.Field('', alias='remark')
        @pydantic.field_validator('note')
        @classmethod
        def polite(cls, v):
            if 'damn' in v: raise ValueError('be polite')
            return v
    schema, parse = to_schema(Home)
    home = parse('{"pet":{"kind":"cat","lives":9},"since":"2024-02-29","remark":"hi"}')
    assert home == Home(pet=Cat(kind='cat', lives=9), since=date(2024, 2, 29), remark='hi')
    assert not valid(schema, {'pet': {'kind': 'dog'}, 'since': '2024-02-29', 'extra': 1}), 'no keys beyond the listed'
    with pytest.raises(EngineError, match='be polite'):
        parse('{"pet":{"kind":"dog"},"since":"2024-02-29","remark":"damn"}')
    with pytest.raises(EngineError): parse('{"pet":{"kind":"cat","lives":10},"since":"2024-02-29"}')


def test_a_pydantic_model_within_other_types_keeps_its_definitions():
    class Point(pydantic.BaseModel):         # the name of a dataclass above
        z: int
    class Line(pydantic.BaseModel):
        ends: tuple[Point, Point]
    @dataclass
    class Both:
        line: Line
        point: Point
    Both.__annotations__.update(line=Line, point=Point)
    schema, parse = to_schema(tuple[Both, globals()['Point']])
    text = '[{"line":{"ends":[{"z":1},{"z":2}]},"point":{"z":3}},{"x":1}]'
    both, point = parse(text)
    assert both.line.ends[1] == Point(z=2) and both.point == Point(z=3) and point.x == 1.0
    assert valid(schema, json.loads(text)) and not valid(schema, json.loads(text.replace('"z":2', '"x":2')))


FLAT = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(FLAT, lambda o: st.lists(o) | st.dictionaries(st.text(), o), max_leaves=10)


@given(JSON)
@settings(deadline=None)
def test_any_json_comes_back_as_it_was(value): assert to_schema({})[1](json.dumps(value)) == value


@given(st.sampled_from([tp for tp, *_ in GOOD if not isinstance(tp, dict)]), JSON)
@settings(deadline=None)
def test_parse_takes_nothing_that_the_schema_refuses(tp, value):
    schema, parse = to_schema(tp)
    try: parse(json.dumps(value))
    except EngineError: return
    assert valid(schema, value)
