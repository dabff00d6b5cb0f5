"""Constrained decoding, on a vocabulary of bytes, on one of awkward tokens, and on real models."""
import gc
import json
import math
import random
import weakref
from datetime import date, datetime
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rishi.engine import Step, Token
from rishi.errors import BadRequest, EngineClosed, EngineError
from rishi.grammar import MAX_DIGITS, for_engine, narrow, probabilities
from rishi.owner import Stop
from rishi.types import Sampling

SCHEMAS = Path(__file__).parent/'schemas'
ENFORCED = json.loads((SCHEMAS/'enforced.json').read_text('utf-8'))
REFUSED = json.loads((SCHEMAS/'refused.json').read_text('utf-8'))
DIGITS = {'type': 'object', 'properties': {'t': {'type': 'string', 'pattern': r'\d+'}}, 'required': ['t'],
          'additionalProperties': False}


class Words:
    "A vocabulary: all bytes, then `words`, a token of nothing, a control token and two ends of a turn."
    closed = False

    def __init__(self, *words):
        self.pieces = [*(bytes([i]) for i in range(256)), *(w.encode() for w in words), b'']
        self.pieces += [b'<ctl>', b'<end>', b'<eot>']
        self.vocab_size, self.name = len(self.pieces), 'words'
        self.control = self.vocab_size - 3
    def check_open(self):
        if self.closed: raise EngineClosed('closed')
    def piece(self, id): return self.pieces[id]
    def is_control(self, id): return id >= self.control
    def is_eog(self, id): return id > self.control
    def tokenize(self, data, first):
        out = []
        while data:
            fits = [i for i, p in enumerate(self.pieces) if p and data.startswith(p)]
            id = max(fits, key=lambda i: len(self.pieces[i]))
            out.append(id)
            data = data[len(self.pieces[id]):]
        return out


@pytest.fixture(scope='module')
def words(): return Words('"a', '":', '00', '000', '1e', 'e999', ',1e9999', '99', '},', 'yes', 'no', ' yes', '\u00e9"')


@pytest.fixture(scope='module')
def letters():
    "No words: where the text is forced, a mask holds its longest token only, so texts are tried byte by byte on these."
    return Words()


@pytest.fixture(scope='module')
def grammars(letters): return for_engine(letters)


def allowed(mask, size): return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder='little')[:size])


def takes(constraint, text):
    "Whether `text` is a whole answer, byte by byte through the masks."
    for b in text.encode():
        if b not in allowed(constraint.mask(), 256): return False
        constraint.accept(b)
    return constraint.complete


def compact(value): return json.dumps(value, ensure_ascii=False, separators=(',', ':'))


# --- what a schema allows -------------------------------------------------------------------------------------------
@pytest.mark.parametrize('case', ENFORCED, ids=[c['name'] for c in ENFORCED])
def test_public_schemas_let_nothing_invalid_through(grammars, case):
    for value in case['invalid']:
        if r'\S' in str(case['schema']) and value == '\ufeff': continue   # ECMAScript calls the byte order mark a space
        assert not takes(grammars.json(case['schema']), compact(value)), value


def test_most_of_what_is_valid_can_be_said(grammars):
    said = [takes(grammars.json(c['schema']), compact(v)) for c in ENFORCED for v in c['valid']]
    assert sum(said) / len(said) > .85       # the rest: 1.0 for an integer, keys in another order


@pytest.mark.parametrize('case', REFUSED, ids=[c['name'] for c in REFUSED])
def test_what_cannot_be_enforced_raises_before_anything_is_generated(grammars, case):
    with pytest.raises(BadRequest) as e: grammars.json(case['schema'])
    assert case['keyword'] in str(e.value) and '\n' not in str(e.value)


def test_an_unanchored_pattern_holds(grammars):
    for text in ('{"t":"12"}', '{"t":"a1b"}'): assert takes(grammars.json(DIGITS), text)
    for text in ('{"t":"ab"}', '{"t":""}', '{"time":"1"}', '{}', '{"t":1}', '{ "t":"1"}', '{"t":"\u0663"}'):
        assert not takes(grammars.json(DIGITS), text)


@pytest.mark.parametrize('text', ['{"\\u0061":"x"}', '{"a":1,"a":"x"}', '{"a":"x"}', '{"b":1,"a":"x"}'])
def test_no_key_comes_in_disguise(grammars, text):
    assert not takes(grammars.json({'type': 'object', 'properties': {'a': {'type': 'integer'}}}), text)


@pytest.mark.parametrize(('schema', 'word'), [
    ({'type': 'string', 'pattern': 'a(?!b)'}, 'pattern'), ({'type': 'string', 'format': 'colour'}, 'format'),
    ({'type': 'array', 'uniqueItems': True}, 'uniqueItems'), ({'properties': {'a': {'not': {}}}}, 'not'),
    ({'not': {}, 'x-guidance': {'lenient': True}}, 'not'), ({'$ref': 'https://example.com/a'}, '$ref'),
    ({'oneOf': [{'type': 'integer'}, {'minimum': 2}]}, 'oneOf'), ({'minProperties': 2}, 'minProperties'),
    ({'enum': ['a\0b']}, 'enum'), ({'properties': {'\x7f': {}}}, 'properties'), ({'type': 'strng'}, 'type'),
    ({'type': 'integer', 'minimum': 5, 'maximum': 3}, 'minimum'), ({'const': math.nan}, 'JSON'),
    ({'const': {1}}, 'JSON'), (False, 'schema'), ('integer', 'schema'), ({'const': '\ud800'}, 'JSON'),
])
def test_refusals_name_the_keyword(grammars, schema, word):
    with pytest.raises(BadRequest, match=word.replace('$', r'\$')): grammars.json(schema)


def test_a_place_where_nothing_fits_is_an_error(grammars):
    with pytest.raises(BadRequest, match='nothing'): grammars.json({'type': 'string', 'pattern': '^\x01$'})
    c = grammars.json({'const': 'ab'})
    for b in b'"a': c.accept(b)
    with pytest.raises(EngineError) as e: c.accept(ord('c'))
    assert len(str(e.value)) < 140 and 'verbose' not in str(e.value) and '\n' not in str(e.value)
    with pytest.raises(EngineError): c.mask()


def test_guidance_in_the_schema_cannot_bend_the_json(grammars):
    bent = {'type': 'array', 'x-guidance': {'item_separator': ';', 'whitespace_flexible': True}}
    assert takes(grammars.json(bent), '[1,2]') and not takes(grammars.json(bent), '[1;2]')
    assert not takes(grammars.json(bent), '[1, 2]')


@given(st.dates() | st.sampled_from([date(2000, 2, 29), date(1600, 2, 29), date(4, 2, 29), date(9999, 12, 31)]))
@settings(deadline=None)
def test_every_date_can_be_said(grammars, day): assert takes(grammars.json({'format': 'date'}), f'"{day.isoformat()}"')


@given(st.from_regex(r'[0-9]{4}-(02-(28|29|30)|0[0-9]-3[01]|1[0-3]-(00|31))', fullmatch=True))
@settings(deadline=None)
def test_no_day_that_no_calendar_has(grammars, text):
    try: date.fromisoformat(text)
    except ValueError: assert not takes(grammars.json({'type': 'string', 'format': 'date'}), f'"{text}"')
    else: assert takes(grammars.json({'type': 'string', 'format': 'date'}), f'"{text}"')


def test_a_format_and_a_pattern_hold_together(grammars):
    schema = {'type': 'string', 'format': 'date', 'pattern': '^2024'}
    assert takes(grammars.json(schema), '"2024-02-29"') and not takes(grammars.json(schema), '"2023-02-28"')
    assert takes(grammars.json({'properties': {'format': {'const': 'date'}}}), '{"format":"date"}'), 'a key, no keyword'


# --- random walks: any token of the mask, to the end ----------------------------------------------------------------
def walk(engine, constraint, seed, limit=400):
    "Text of a finished answer drawn evenly from each mask, or None."
    draw, out = random.Random(seed), b''
    for _ in range(limit):
        ids = allowed(constraint.mask(), engine.vocab_size)
        token = draw.choice([i for i in ids if engine.is_eog(i)] or [*ids])
        if engine.is_eog(token): return out.decode()
        constraint.accept(int(token))
        out += engine.piece(token)
        if constraint.done: return out.decode()


@pytest.mark.parametrize('schema', [
    DIGITS, {'type': 'number'}, {'type': 'array', 'items': {'type': 'number'}, 'minItems': 3, 'maxItems': 5},
    {'type': 'string', 'maxLength': 9}, {'type': 'string', 'format': 'date-time'},
    {'type': 'integer', 'minimum': 10**15}, {'enum': ['\u00e9"', '<ctl>', 10**18, None]},
    {'type': 'array', 'items': {'enum': [5, 'e999', '"1']}, 'minItems': 2, 'maxItems': 4},
], ids=str)
def test_any_walk_ends_in_something_valid(words, grammars, schema):
    kind, ended = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()), 0
    for seed in range(25):
        text = walk(words, for_engine(words).json(schema), seed)
        if text is None: continue
        value, ended = json.loads(text), ended + 1
        kind.validate(value)
        if schema.get('format'): datetime.fromisoformat(value)
    assert ended > 5


def test_numbers_end_and_fit_a_float(words, grammars):
    pair = {'type': 'array', 'items': {'type': 'number'}, 'minItems': 2, 'maxItems': 2}
    for seed in range(60):
        text = walk(words, for_engine(words).json(pair), seed)
        assert text and all(math.isfinite(x) for x in json.loads(text))
        assert all(len(n) <= MAX_DIGITS + 8 for n in text.strip('[]').split(','))


def test_digits_go_on_where_the_schema_or_a_text_needs_them(grammars):
    assert takes(grammars.json({'const': 1e20}), str(10**20)) and MAX_DIGITS < 21
    assert takes(grammars.json({'type': 'string'}), '"' + '1' * 50 + '\\"' + '1' * 50 + '"')
    assert not takes(grammars.json({'type': 'integer'}), '1' * 50)


# --- constraints ----------------------------------------------------------------------------------------------------
def test_the_end_of_the_turn_comes_when_and_only_when_it_may(letters, grammars):
    words, c = letters, grammars.choice(['yes', 'yes, really'])
    eog = {words.vocab_size - 2, words.vocab_size - 1}
    assert grammars.eog() == sorted(eog) and not eog & {*allowed(c.mask(), words.vocab_size)} and not c.complete
    for b in b'yes': c.accept(b)
    assert c.complete and not c.done and {*allowed(c.mask(), words.vocab_size)} == eog | {ord(',')}
    for b in b', really': c.accept(b)
    assert c.complete and c.done


def test_one_constraint_is_one_answer(grammars):
    first = grammars.choice(['no', 'yes'])
    first.accept(ord('n'))
    assert takes(grammars.choice(['no', 'yes']), 'yes')
    with pytest.raises(EngineError): first.accept(ord('y'))


def test_control_tokens_are_never_let_in_and_their_text_is_plain_text(letters, words, grammars):
    assert letters.control not in allowed(grammars.json({'type': 'string'}).mask(), letters.vocab_size)
    assert takes(grammars.json({'const': '<ctl>'}), '"<ctl>"') and takes(grammars.choice(['<ctl>']), '<ctl>')
    assert grammars.paths(['<ctl>']) == {'<ctl>': [*b'<ctl>']}
    whole = {o: [words.pieces.index(o.encode())] for o in ('yes', ' yes')}
    assert for_engine(words).paths(['yes', ' yes']) == whole


@given(st.lists(st.text(st.characters(codec='utf-8'), min_size=1, max_size=6), min_size=1, max_size=4, unique=True))
@settings(deadline=None)
def test_any_texts_can_be_labels(grammars, labels):
    for label in labels: assert takes(grammars.choice(labels), label)
    assert not takes(grammars.choice(labels), ''.join(labels) + 'x')


@pytest.mark.parametrize('labels', [[], [''], ['a', 'a'], 'ab', [1], None])
def test_what_is_no_choice_is_refused(grammars, labels):
    with pytest.raises(BadRequest): grammars.choice(labels)
    with pytest.raises(BadRequest): grammars.paths(labels)


def test_grammars_are_kept_while_the_engine_lives():
    engine = Words()
    kept, ref = for_engine(engine), weakref.ref(engine)
    assert for_engine(engine) is kept and for_engine(Words()) is not kept
    del engine
    gc.collect()
    assert ref() is None
    closed = Words()
    closed.closed = True
    with pytest.raises(EngineClosed): for_engine(closed)


# --- logits and probabilities ---------------------------------------------------------------------------------------
@pytest.mark.parametrize('n', [1, 31, 32, 33, 40, 90])
def test_narrow_leaves_what_the_mask_allows(n):
    mask, logits = np.array([0b1010, 0x80000001], np.uint32), np.arange(n, dtype=np.float32)
    narrow(logits, mask)
    assert {*np.flatnonzero(np.isfinite(logits))} == {i for i in (1, 3, 32, 63) if i < n}
    assert all(logits[i] == i for i in np.flatnonzero(np.isfinite(logits)))


def softmax(row, ids):
    e = np.exp([row[i] - max(row[j] for j in ids) for i in ids])
    return dict(zip(ids, e / e.sum()))


def test_probabilities_are_those_of_drawing_under_the_mask():
    rows = {(): [0., 1, 2, 3, 9], (1,): [1., 0, 0, 2, 0]}
    got = probabilities({'a': [1], 'ab': [1, 3], 'c': [2, 0, 1]}, lambda p: rows[p], eog=[4, 0])
    first, after = softmax(rows[()], [1, 2]), np.exp([2., 0, 1])     # token 3, then the two ends
    a = first[1] * (after[1] + after[2]) / after.sum()
    assert got == pytest.approx({'a': a, 'ab': first[1] * after[0] / after.sum(), 'c': first[2]})
    assert sum(got.values()) == pytest.approx(1)


PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6, unique_by=tuple)


@given(PATHS, st.integers(0, 99))
def test_probabilities_sum_to_one(paths, seed):
    def logits(prefix): return np.random.default_rng([seed, len(prefix), *prefix]).normal(0, 50, 5)
    got = probabilities({str(p): p for p in paths}, logits, eog=[4])
    assert got.keys() == {str(p) for p in paths} and sum(got.values()) == pytest.approx(1)


def test_probabilities_ask_only_where_labels_part():
    asked = []
    probabilities({'a': [1, 2, 3], 'b': [1, 2, 4]}, lambda p: asked.append(p) or [0.] * 6, eog=[0])
    assert asked == [(1, 2)] and probabilities({'only': [1, 2]}, None, eog=[0]) == {'only': 1}
    with pytest.raises(BadRequest): probabilities({'a': [1], 'b': [1]}, None, eog=[0])


# --- real models ----------------------------------------------------------------------------------------------------
def load(path):
    from rishi.llama.engine import load
    steps = load(model_path=path, n_ctx=512, n_threads=1)
    while True:
        try: next(steps)
        except StopIteration as e: return e.value


@pytest.fixture(scope='module', params=['smol', 'tiny_chat'])
def engine(request):
    engine = load(request.getfixturevalue(request.param))
    yield engine
    engine.close()


def chatml(engine, text):
    return engine.tokenize(f'<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n'.encode(), True)


def decode(engine, constraint, prompt='Give me some data.', **sampling):
    "(text, finish reason) of an answer."
    step, how = Step(), Sampling(max_tokens=60, **sampling)
    got = engine.stream(chatml(engine, prompt), how, Stop(), step, constraint)
    return b''.join(t.data for t in got if isinstance(t, Token)).decode(errors='replace'), step.finish


@pytest.mark.needs('llama')
@pytest.mark.parametrize('temp', [0, .7, 1.5, 2])
def test_a_model_answers_within_the_schema_at_any_temperature(engine, temp):
    schema = {'type': 'object', 'properties': {'city': {'type': 'string', 'maxLength': 8, 'pattern': '^[A-Z]'},
              'n': {'type': 'integer', 'minimum': 1, 'maximum': 999}, 'tag': {'enum': ['a', 'b']}},
              'required': ['city', 'n', 'tag'], 'additionalProperties': False}
    for wild in (dict(), dict(top_k=0, top_p=1.0, min_p=0.0), dict(repeat_penalty=1.3, presence_penalty=.5)):
        text, finish = decode(engine, for_engine(engine).json(schema), temp=temp, seed=7, **wild)
        assert finish == 'stop'
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.needs('llama')
@pytest.mark.parametrize('temp', [0, 2])
def test_a_model_chooses_a_label(engine, temp):
    labels = ['positive', 'negative', 'n\u00e9ither nor']
    text, finish = decode(engine, for_engine(engine).choice(labels), temp=temp, seed=3)
    assert text in labels and finish == 'stop'


@pytest.mark.needs('llama')
def test_the_pattern_of_digits_on_a_model(engine):
    text, finish = decode(engine, for_engine(engine).json(DIGITS), prompt='time?', temp=0)
    if finish == 'stop': jsonschema.validate(json.loads(text), DIGITS)
    else: assert finish == 'length'                                  # an error for whoever asked


@pytest.mark.needs('llama')
def test_probabilities_on_a_model(engine):
    labels, grammars, asked = ['yes', 'no', 'maybe'], for_engine(engine), []
    ids, paths = chatml(engine, 'Give me some data.'), grammars.paths(labels)
    def logits(prefix):
        asked.append(prefix)
        return engine.logits([*ids, *prefix])
    got = probabilities(paths, logits, grammars.eog())
    assert sum(got.values()) == pytest.approx(1) and set(got) == set(labels)
    if len({p[0] for p in paths.values()}) == 3:
        assert asked == [()] and decode(engine, grammars.choice(labels), temp=0)[0] == max(got, key=got.get)


@pytest.mark.needs('llama')
def test_a_models_tokens_of_labels_are_its_own(engine):
    paths = for_engine(engine).paths(['positive', ' caf\u00e9', '<|im_end|>'])
    assert {o: b''.join(map(engine.piece, p)).decode() for o, p in paths.items()} == {o: o for o in paths}
    assert not any(engine.is_control(i) for p in paths.values() for i in p)
    assert paths['positive'] == engine.tokenize(b'positive', False)
