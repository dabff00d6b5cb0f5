"""Every family's tapes, replayed whole, in every two-way split and by characters; and how families are told apart."""
import json
from pathlib import Path

import pytest
from parts import fold, pieces

from rishi.dialect import by_name, detect
from rishi.dialect.table import FAMILIES
from rishi.errors import BadRequest

TAPES = Path(__file__).parent/'tapes'
FILES = {f.stem: json.loads(f.read_text('utf-8')) for f in sorted(TAPES.glob('*.json'))}
ALL = [pytest.param(family, tape, id=f'{family}: {tape["what"]}') for family, f in FILES.items() for tape in f['tapes']]


def expected(tape):
    e = tape['expect']
    calls = [(c['name'], c['arguments'], c.get('id', ''), c.get('error', '')) for c in e['calls']]
    return e['thinking'], e['text'], calls


def heard(family, tape, cut):
    thinking, text, calls = fold(by_name(family), cut, tape.get('start', 'unset'), tape.get('tools'))
    return thinking, text, [(c.name, c.arguments, c.id, c.error) for c in calls]


@pytest.mark.parametrize('family, tape', ALL)
def test_tape(family, tape):
    raw = tape['raw']
    assert heard(family, tape, [raw]) == expected(tape)
    assert heard(family, tape, list(raw)) == expected(tape)
    for i in range(1, len(raw)): assert heard(family, tape, [raw[:i], raw[i:]]) == expected(tape), i


@pytest.mark.parametrize('family, tape', ALL)
def test_raw_of_calls_is_what_was_written(family, tape):
    parts = fold(by_name(family), pieces(tape['raw'], 5), tape.get('start', 'unset'), tape.get('tools'))
    alone = [c.raw for c in parts[2] if len(parts[2]) == 1]
    assert all(raw and raw in tape['raw'] for raw in alone)
    assert all(c.raw for c in parts[2])


def test_every_family_has_tapes_and_says_where_they_are_from():
    assert set(FILES) == {d.name for d in FAMILIES}
    for name, f in FILES.items():
        assert f['family'] == name and 'not recorded from weights' in f['source'] and f['tapes']
        assert detect(f'... {f["template_marker"]} ...').name == name


def test_families_by_name():
    assert by_name('glm').name == 'glm'
    with pytest.raises(BadRequest, match='hermes'): by_name('glmm')


@pytest.mark.parametrize('family', [d.name for d in FAMILIES])
def test_where_thinking_stands_after_the_prompt(family):
    d = by_name(family)
    opens, closes = d.think
    assert d.thinking('assistant\n') == 'unset'
    assert d.thinking(f'assistant\n{opens}\n') == 'open'
    assert d.thinking(f'assistant\n{opens}\n\n{closes}\n\n') == 'closed'
    assert d.thinking(f'assistant\n{closes}') == 'closed'


def test_templates_of_the_test_models(tiny_chat):
    assert detect((tiny_chat.parent/'tiny-chat'/'chat_template.jinja').read_text('utf-8')).name == 'hermes'
    assert detect((tiny_chat.parent/'tiny-omni'/'chat_template.jinja').read_text('utf-8')).name == 'plain'
