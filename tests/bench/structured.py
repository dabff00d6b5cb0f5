"""Constrained decoding of 200 public JSON schemas by SmolLM2 at temperatures 0 to 2: is every finished answer valid,
and what does the mask cost beside decoding?

The schemas are those of tests/schemas (JSON-Schema-Test-Suite). Round by round each schema is asked at another
temperature; a run ends after all four or after the given seconds, and says how many answers that made. A validator
that shares nothing with the grammar (`jsonschema`) judges them. Schemas in refused.json have to raise beforehand.
"""
import json
import re
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import jsonschema
import numpy as np

from rishi.core import load_engine
from rishi.errors import BadRequest
from rishi.grammar import for_engine, narrow
from rishi.owner import Stop
from rishi.types import Sampling

SCHEMAS = Path(__file__).parents[1]/'schemas'
TEMPS, TOKENS = (0, .7, 1.5, 2), 48
# JSON Schema's patterns are ECMAScript's, where these are ASCII; in Python's they are Unicode
ASCII = {r'\d': '[0-9]', r'\D': '[^0-9]', r'\w': '[0-9A-Za-z_]', r'\W': '[^0-9A-Za-z_]'}


def loaded():
    steps = load_engine(n_ctx=512)
    while True:
        try: next(steps)
        except StopIteration as e: return e.value


def schemas(name): return json.loads((SCHEMAS/f'{name}.json').read_text('utf-8'))


def prompt(engine):
    "One prompt for all, so that it is evaluated once; its examples are short, and so are the answers after them."
    messages = [dict(role='system', content='You answer in short JSON.')]
    for example in ('{"foo":1}', '"bar"', '[2]', '{"foo":"bar"}', '{}', '3'):
        messages += [dict(role='user', content='JSON?'), dict(role='assistant', content=example)]
    messages.append(dict(role='user', content='JSON?'))
    return engine.tokenize(engine.template.render(messages, now=datetime.now()).encode(), True)


def logits(engine):
    import llama_cpp
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(engine._native.ctx, -1), (engine.vocab_size,))


def answer(engine, constraint, ids, sampling, spent):
    "(text, finish reason); runs on the owner's thread. `spent` gathers seconds for the mask and for the rest."
    clock = time.perf_counter
    engine._keep(len(ids) - 1)
    engine.eval(ids[-1:])
    sample, out = engine._sampler(sampling, None), []
    while len(out) < TOKENS:
        t0 = clock()
        narrow(logits(engine), constraint.mask())
        t1 = clock()
        token = sample()
        if engine.is_eog(token): return text(engine, out), 'stop'
        t2 = clock()
        constraint.accept(token)
        t3 = clock()
        out.append(token)
        if constraint.done: return text(engine, out), 'stop'
        engine.eval([token])
        spent.update(mask=t1 - t0 + t3 - t2, decode=t2 - t1 + clock() - t3, tokens=1)
    return text(engine, out), 'length'


def text(engine, tokens): return b''.join(map(engine.piece, tokens)).decode(errors='replace')


def fault(schema, answer):
    "What is wrong with a finished answer, or ''."
    kind = jsonschema.validators.extend(jsonschema.validators.validator_for(schema), {'pattern': pattern})
    try: kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(answer))
    except (ValueError, jsonschema.ValidationError) as e: return str(e).splitlines()[0]
    return ''


def pattern(validator, wanted, instance, schema):
    wanted = re.sub(r'\\[dDwW]', lambda m: ASCII[m[0]], wanted)
    if isinstance(instance, str) and not re.search(wanted, instance):
        yield jsonschema.ValidationError(f'{instance!r} does not match {wanted!r}')


def refused(grammars):
    "How many of the schemas that cannot be enforced raise before anything is generated, and how many there are."
    raised, cases = 0, schemas('refused')
    for case in cases:
        try: grammars.json(case['schema'])
        except BadRequest: raised += 1
        else: print(f'TAKEN     {case["name"]}')
    return raised, len(cases)


def decode_all(engine, grammars, seconds):
    counts, spent, by_temp = Counter(), Counter(), {t: Counter() for t in TEMPS}
    cases, ids, started = schemas('enforced'), prompt(engine), time.perf_counter()
    engine._stop = Stop()
    engine.owner.call(lambda: engine.eval(ids))
    for round in range(len(TEMPS)):
        for i, case in enumerate(cases):
            if time.perf_counter() - started > seconds: return counts, spent, by_temp
            temp = TEMPS[(i + round) % len(TEMPS)]
            constraint, how = grammars.json(case['schema']), Sampling(temp=temp, seed=i)
            got, finish = engine.owner.call(lambda c=constraint, s=how: answer(engine, c, ids, s, spent))
            why = fault(case['schema'], got) if finish == 'stop' else ''
            kind = 'truncated' if finish == 'length' else 'invalid' if why else 'valid'
            counts.update([kind]); by_temp[temp].update([kind])
            if why: print(f'INVALID   {case["name"]} at {temp}: {got!r}: {why}')
    return counts, spent, by_temp


def main(seconds=160) -> int:
    engine = loaded()
    t = time.perf_counter()
    grammars = for_engine(engine)
    built = time.perf_counter() - t
    raised, bad = refused(grammars)
    counts, spent, by_temp = decode_all(engine, grammars, seconds)
    engine.close()
    n, total = spent['tokens'], sum(counts.values())
    mask, decode = spent['mask'] / n * 1000, spent['decode'] / n * 1000
    for temp, c in by_temp.items(): print(f'temperature {temp:3}: {c["valid"]:4} valid {c["invalid"]:3} invalid '
                                          f'{c["truncated"]:4} cut short at {TOKENS} tokens')
    finished = counts['valid'] + counts['invalid']
    print(f'valid {counts["valid"]} of {finished} finished; {counts["truncated"]} of {total} '
          f'cut short (an error, never half a value); {raised} of {bad} that cannot be enforced were refused up front')
    print(f'the mask: {mask:.2f} ms a token beside {decode:.2f} ms of decoding ({mask / decode:.1%}), '
          f'{built:.2f} s once for the vocabulary')
    good = not counts['invalid'] and raised == bad and total >= 200
    print(json.dumps(dict(name='structured', value=round(mask / decode, 4), unit='mask time / decode time', ok=good,
                          valid=counts['valid'], invalid=counts['invalid'], truncated=counts['truncated'], total=total,
                          refused=raised, refusable=bad, mask_ms=round(mask, 3), decode_ms=round(decode, 2))))
    return 0 if good else 1


if __name__ == '__main__': sys.exit(main(*map(int, sys.argv[1:])))
