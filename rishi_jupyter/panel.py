"A turn's cache report as the strip below the answer: one bar, one line, and the details folded under the line. Pure."
from .markdown import esc

__all__ = ['bar', 'strip', 'summary', 'count', 'clock', 'seconds']

SERIES = (('c', 'cached'), ('e', 'evaluated'), ('m', 'media'), ('g', 'generated'))


def count(n) -> str:
    "1204 -> '1,204'"
    return f'{round(n):,}'


def clock(s) -> str:
    "What a watch would show: 0.48 -> '0.5 s', 75 -> '75 s', 200 -> '3 min 20 s'."
    s = max(0.0, s)
    return f'{s:.1f} s' if s < 59.95 else f'{s:.0f} s' if s < 119.5 else f'{round(s) // 60} min {round(s) % 60} s'


def seconds(s) -> str:
    "How long something short took: 0.004 -> '4 ms', 0.11 -> '0.11 s', 5.94 -> '5.9 s'."
    return f'{s * 1000:.0f} ms' if s < .0095 else f'{s:.2f} s' if s < 1.995 else clock(s)


def bar(counts, window, so_far=False) -> str:
    "The strip's bar: `counts` are tokens (cached, evaluated, media, generated), what is left of `window` is free."
    free = max(0, window - sum(counts))
    shown = [(cls, name, n) for (cls, name), n in zip(SERIES, counts) if n]
    words = ', '.join(f'{count(n)} {name}' for _, name, n in shown) or 'nothing yet'
    label = f'Window of {count(window)} tokens: {words}' if window else words
    tail = ' so far' if so_far else f', {count(free)} free' if window else ''
    cells = ''.join(f'<i class="ri-{cls}" style="flex-grow:{n}"></i>' for cls, _, n in shown)
    return (f'<div class="ri-bar" role="img" aria-label="{label}{tail}">{cells}'
            f'<i class="ri-free" style="flex-grow:{free}"></i></div>')


def _counts(step): return step.cached, step.evaluated, step.media, step.generated


def _speeds(step):
    first = [f'first token {seconds(step.ttft)}'] if step.generated else []
    rate = step.generated / step.decode_s if step.decode_s > 0 and step.generated > 1 else 0
    return first + ([f'{rate:.0f} tok/s' if rate >= 10 else f'{rate:.1f} tok/s'] if rate else [])


def _why(report):
    "Why the prefix ended; where tokens are paid for again, it says how many."
    step = next((s for s in report.steps if s.lost), None)
    if step is None or 'evaluated again' in step.why: return step.why if step else report.why
    return f'{step.why}: {count(step.evaluated)} tokens evaluated again'


def _named(step):
    keep = dict(zip(('cached', 'evaluated', 'generated'), (True,) * 3))
    return [(cls, f'{name} {count(n)}') for (cls, name), n in zip(SERIES, _counts(step)) if n or name in keep]


def summary(report) -> str:
    "The strip's line as plain text."
    if not report.steps: return ''
    step = report.steps[-1]
    return ' · '.join([words for _, words in _named(step)] + _speeds(step) + [_why(report)] * bool(report.why))


def _line(report):
    step = report.steps[-1]
    keys = [f'<span class="ri-key ri-{cls}">{words}</span>' for cls, words in _named(step)]
    keys += [f'<span class="ri-num">{words}</span>' for words in _speeds(step)]
    why = f' <span class="ri-why">{esc(_why(report))}</span>' if report.why else ''
    return f'<span class="ri-line"><span>{" · ".join(keys)}<span class="ri-sr">; </span></span>{why}</span>'


def _table(steps):
    if len(steps) < 2: return ''
    names = ('step', 'cached', 'evaluated', 'media', 'generated', 'first token')
    head = ''.join(f'<th scope="col">{n}</th>' for n in names)
    rows = ((esc(s.did), *map(count, _counts(s)), seconds(s.ttft)) for s in steps)
    body = ''.join('<tr>' + ''.join(f'<td>{c}</td>' for c in row) + '</tr>' for row in rows)
    return (f'<table><caption class="ri-sr">Steps of this turn</caption><thead><tr>{head}</tr></thead>'
            f'<tbody>{body}</tbody></table>')


def _prompt(step):
    terms = [f'{count(n)} {name}' for name, n in (('cached', step.cached), ('evaluated', step.evaluated),
                                                  ('media', step.media)) if n]
    return f'{count(step.prompt_tokens)} tokens' + (f' = {" + ".join(terms)}' if terms else '')


def _facts(report):
    yield 'prompt', _prompt(report.steps[-1])
    if report.window:
        share = 100 * report.window_used / report.window
        yield 'window', f'{count(report.window_used)} of {count(report.window)} · {share:.0f} %'
    if report.prefill_tps: yield 'prompt read at', f'{count(report.prefill_tps)} tok/s'
    if report.media_encoded or report.media_reused:
        yield 'media', f'{report.media_encoded} encoded, {report.media_reused} reused'
    if report.kv_bytes: yield 'memory', f'{report.kv_bytes / 2**20:.1f} MiB of cache'


def strip(report, finish='') -> str:
    "The whole strip of `report`, or '' where nothing was computed; `finish` is a finish reason worth telling."
    if not report.steps: return ''
    facts = [*_facts(report), *([('finish reason', finish)] if finish else [])]
    dl = ''.join(f'<dt>{name}</dt> <dd class="ri-num">{esc(value)}</dd> ' for name, value in facts)
    return (f'<footer class="ri-strip{" ri-lost" * report.lost}" role="group" aria-label="Cache">'
            f'{bar(_counts(report.steps[-1]), report.window)}'
            f'<details><summary>{_line(report)} <span class="ri-chev" aria-hidden="true"></span></summary>'
            f'{_table(report.steps)}<dl class="ri-facts">{dl}</dl></details></footer>')
