"""A turn drawn as HTML or text. Pure: a `State` of `fold` in, a string out.

What a running view replaces on its own carries `data-slot`, what only it can serve carries `data-live`; static HTML
has neither.
"""
from __future__ import annotations

import re
from itertools import groupby

from rishi.types import notice

from . import panel
from .fold import Card, Header, Said, State, Thought, apply, fail, stop
from .markdown import esc, formatted, ticked, visible
from .panel import clock, count, seconds
from .style import SHEET

__all__ = ['Header', 'State', 'apply', 'stop', 'fail', 'html', 'text', 'ending', 'article', 'groups', 'status', 'line',
           'figures', 'note', 'phase_word', 'meter', 'draw', 'question', 'spelled', 'clipped', 'outcome', 'STOP']


# --- words ----------------------------------------------------------------------------------------------------------
PHASES = dict(start='Starting', wait='Waiting for another turn',
              download='Downloading the model', load='Loading the model', media='Reading the media',
              prefill='Reading the prompt', thinking='Thinking', answering='Answering', tool='Running a tool',
              approval='Waiting for you', done='Done', stopped='Stopped', error='Failed')


def status(state) -> str:
    "The article's name: 'Turn 7 of chat main, done'."
    if state.error: return f'Turn not made: {_told(state.error)[0].rstrip(".")}'
    word = PHASES[state.phase]
    return f'Turn {state.header.turn} of chat {state.header.chat}, {word[:1].lower()}{word[1:]}'


def phase_word(state) -> str:
    "What goes on, as it is announced."
    return PHASES[state.phase]


def _bytes(done, total):
    unit, name = (10**9, 'GB') if max(done, total) >= 10**9 else (10**6, 'MB')
    form = (lambda n: f'{n / unit:.2f}') if unit == 10**9 else (lambda n: f'{n / unit:.1f}')
    return f'{form(done)} of {form(total)} {name}' if total else f'{form(done)} {name}'


def _share(p):
    total = p.total - p.cached
    return min(1.0, max(0.0, (p.done - p.cached) / total)) if total > 0 else 1.0


def _numbers(state) -> list[str]:
    "What the live line says in figures, in order."
    p = state.progress
    match state.phase:
        case 'download': return [_bytes(p.done, p.total) + (f' · {100 * _share(p):.0f} %' if p.total else '')]
        case 'load': return [f'{100 * _share(p):.0f} %']
        case 'media': return [f'{p.done} of {p.total}']
        case 'prefill': return [f'{100 * _share(p):.0f} % of {count(p.total - p.cached)} tokens', *_to_go(state)]
        case 'thinking' | 'answering': return [f'{count(state.tokens)} tokens', *_pace(state)]
    return []


def _to_go(state):
    past, share = state.t - state.since, _share(state.progress)
    return [f'about {(1 - share) / share * past:.1f} s to go'] if past > .5 and .02 < share < 1 else []


def _pace(state):
    past = state.t - state.first
    return [f'{(state.tokens - 1) / past:.0f} tok/s'] if past > .3 and state.tokens > 1 else []


def _told(error):
    "One line of an error as (what failed, the rest)."
    name, ours, message = error
    if not ours: return 'The turn failed.', f'{name}: {message}' if message else name
    m = re.match(r'(.{3,100}?)(?:: |[.!?] |[.!?]?$)', message)
    what, rest = (m[1], message[m.end():]) if m else ('The turn failed', message)
    return f'{what}.', rest[:1].upper() + rest[1:] if re.match('[a-z]+ ', rest) else rest


def _note_end(state):
    "What ended the turn, where it was not the model: (bold words, the rest)."
    n = state.done.report.generated if state.done else state.tokens
    if state.phase == 'stopped':
        if not state.done and not state.prompt:
            return 'Stopped by you', ' before the model was ready. Chat unchanged.'
        if not n: return 'Stopped by you', ' before the first token.'
        return 'Stopped by you', (f' after {count(n)} tokens. The partial answer is kept, and so is its cache; '
                                  'the next turn goes on from here.')
    if state.done and state.done.finish_reason == 'length':
        return 'Stopped at the limit', (f' of {count(n)} tokens, which `--max-tokens` sets. The next turn goes on from '
                                        'here.')
    if state.done and (why := notice(state.done.resp)): return 'No answer', f'. {why}'
    return None


# --- HTML -----------------------------------------------------------------------------------------------------------
ICONS = dict(no='<circle cx="8" cy="8" r="6"/><path d="M8 4.8v3.8M8 11.1v.1"/>',
             branch='<circle cx="4.5" cy="3.8" r="1.7"/><circle cx="4.5" cy="12.2" r="1.7"/>'
                    '<circle cx="11.5" cy="5.8" r="1.7"/><path d="M4.5 5.5v5M11.5 7.5c0 2.4-3.5 2.4-5.6 3.4"/>',
             glass='<path d="M4 2.5h8M4 13.5h8M5 2.5c0 3 3 4 3 5.5s-3 2.5-3 5.5M11 2.5c0 3-3 4-3 5.5s3 2.5 3 5.5"/>'
                   '<path d="M6.6 12.6L8 10.8l1.4 1.8z" fill="currentColor"/>',
             stop='<rect x="4" y="4" width="8" height="8" rx="1" fill="currentColor"/>')
CHEV = '<span class="ri-chev" aria-hidden="true"></span>'
MAIN = ' class="ri-main"'
STOP = ('<button class="ri-end" type="button" data-send=\'{"stop":1}\' data-live>'
        f'<svg class="ri-i" viewBox="0 0 16 16" aria-hidden="true">{ICONS["stop"]}</svg>Stop</button>')


def _icon(name): return f'<svg class="ri-i" viewBox="0 0 16 16" aria-hidden="true">{ICONS[name]}</svg>'


def _head(state):
    h = state.header
    when = clock(state.t)
    if state.phase == 'stopped': when = f'stopped at {when}'
    turn = f'turn {h.turn} · {when}' if h.turn else when
    return (f'<header class="ri-head"><b>{esc(h.chat)}</b> <span>{esc(h.model)}</span> '
            f'<span class="ri-end ri-num">{turn}</span></header>')


def note(state) -> str:
    "The note of the header, such as that a turn was replaced."
    if not state.header.note: return ''
    first, dot, rest = state.header.note.partition(' · ')
    return (f'<p class="ri-note" role="note">{_icon("branch")} <span class="ri-ink">{ticked(first)}</span>'
            f'{dot}{ticked(rest)}</p>')


def _slot(name, inner, live, tag='span'): return f'<{tag} data-slot="{name}">{inner}</{tag}>' if live else inner


def _since(state, live):
    mark = f' data-since="{state.since:.2f}"' if live else ''
    return f'<span class="ri-num" role="timer"{mark}>{clock(state.t - state.since)}</span>'


def figures(state) -> str:
    "The numbers of the live line as HTML."
    return ' '.join(f'<span class="ri-num">{n}</span>' for n in _numbers(state))


def line(state, live=False) -> str:
    """The line that says what goes on. In a running view its figures are slot `n`, the thinking is slot `think`. While
    a question stands, nothing is above it."""
    if state.phase == 'approval': return ''
    word, nums = PHASES[state.phase], _slot('n', '' if live else figures(state), live)
    if state.phase == 'thinking' and state.reasoning:
        inner = '<div data-slot="think"></div>' if live else f'<div>{esc(state.parts[-1].text)}</div>'
        return (f'<details class="ri-think"><summary>{CHEV} <span class="ri-dot" aria-hidden="true"></span>'
                f'<b>{word}</b> {_since(state, live)} {nums}</summary>{inner}</details>')
    about = f' <span>{esc(state.header.model)}</span>' if state.phase in ('start', 'download', 'load') else ''
    return f'<p class="ri-now"><b>{word}</b>{about} {nums} {_since(state, live)}</p>'


def meter(state) -> str:
    "The bar of a running turn: how far the work before the first token is, then the growing strip."
    p = state.progress
    if state.phase in ('download', 'load', 'media', 'prefill') and p.total:
        pct, fill = 100 * _share(p), ' style="--fill:var(--evaluated)"' * (state.phase == 'prefill')
        return f'<progress max="100" value="{pct:.0f}"{fill} aria-label="{PHASES[state.phase]}">{pct:.0f} %</progress>'
    if not state.prompt or not state.stats or state.phase == 'approval': return ''
    q = state.prompt
    return panel.bar((q.cached, q.total - q.cached, 0, state.tokens), state.header.window, so_far=True)


def groups(parts):
    "Indexed parts, with the cards that follow each other together: (index of the first, list of parts)."
    for _, g in groupby(enumerate(parts), lambda p: 'cards' if isinstance(p[1], Card) else p[0]):
        g = list(g)
        yield g[0][0], [p for _, p in g]


def draw(state, group, live=False, last=False) -> str:
    "One group of parts as HTML; `last` puts the mark of a turn that was stopped at its end."
    first = group[0]
    if isinstance(first, Thought): return _thought(first) if state.reasoning else ''
    if isinstance(first, Said): return _said(state, first, live, last)
    cards = ''.join(_tool(c, state, live) for c in group if not (c.asked and state.phase == 'approval'))
    return f'<div class="ri-tools" role="group" aria-label="Tools used">{cards}</div>' if cards else ''


def _thought(part):
    return (f'<details class="ri-think"><summary>{CHEV}Thought for {clock(part.ended - part.began)}</summary>'
            f'<div>{esc(part.text.strip())}</div></details>')


def _said(state, part, live, last):
    inner = formatted(part.text.strip('\n'), state.fmt, live)
    if last and state.phase == 'stopped':
        cut, end = '<span class="ri-cut">[stopped here]</span>', inner.rstrip().rfind('</p>')
        whole = end >= 0 and end == len(inner.rstrip()) - 4
        inner = f'{inner[:end]} {cut}</p>' if whole else f'{inner}<p>{cut}</p>'
    return f'<div class="ri-md">{inner}</div>' if inner.strip() else ''


def _clip(s, n=160):
    s = ' '.join(s.split())
    return s if len(s) <= n else f'{s[:n - 1]}…'


def spelled(call) -> str:
    "A call as Python would write it, whole."
    return f'{call.name}({", ".join(f"{k}={v!r}" for k, v in call.arguments.items())})'


def clipped(call) -> str:
    "The same, cut to a line."
    return _clip(spelled(call))


def outcome(card) -> str:
    "What came of a call, in a line: the result, `failed: ...`, or who did not let it run."
    r = card.result
    if not r.error: return _clip(r.content)
    if not _refused(r): return f'failed: {_clip(r.error)}'
    who, why = 'denied by you' if card.answer and not card.answer.ok else 'not run', r.error.partition(': ')[2]
    return _clip(f'{who}: {why}' if why else who)


def _refused(r): return r.error == r.content      # the line to the model of a call that failed begins with `Error: `


def _tool(card, state, live):
    call, r = f'<code>{esc(clipped(card.call))}</code>', card.result
    if r is None: return _pending(card, call, state, live)
    res, kind = esc(outcome(card)), ''
    if not r.error: res = f'<code class="ri-res">{res}</code>'
    elif _refused(r): res = f'<span class="ri-say">{res}</span>'
    else: res, kind = f'<span class="ri-res">{_icon("no")} {res}</span>', ' ri-bad'
    dl = ' '.join(f'<dt>{esc(k)}</dt> <dd>{v}</dd>' for k, v in _rows(card))
    return (f'<details class="ri-tool{kind}"><summary>{CHEV} {call} <span aria-hidden="true">→</span> {res} '
            f'<span class="ri-t ri-num">{_took(r)}</span></summary> <dl>{dl}</dl></details>')


def _took(r):
    if _refused(r): return ''
    return seconds(r.seconds) if r.seconds >= .001 else '&lt; 1 ms'


def _pending(card, call, state, live):
    if state.over:
        return f'<div class="ri-tool"><div class="ri-row">{call} <span class="ri-say">not finished</span></div></div>'
    first = next(p for p in state.parts if isinstance(p, Card) and p.result is None)
    if card is not first or state.phase == 'approval':
        return f'<div class="ri-tool"><div class="ri-row">{call} <span class="ri-say">waiting</span></div></div>'
    mark = f' data-since="{card.began:.2f}"' if live else ''
    return (f'<div class="ri-tool"><div class="ri-row"><span class="ri-glass" aria-hidden="true">{_icon("glass")}⏳'
            f'</span> {call} <span class="ri-say">running</span> '
            f'<span class="ri-t ri-num"{mark}>{clock(state.t - card.began)}</span></div></div>')


def _rows(card):
    "Name and HTML of what is folded under a call."
    r, a, code = card.result, card.answer, lambda v: f'<code>{esc(v)}</code>'
    yield from ((k, code(repr(v))) for k, v in card.call.arguments.items())
    if a and a.ok: yield 'approved', 'by you, from now on' if a.always else 'by you'
    if r.error: yield 'told to the model', code(r.content)
    else: yield 'result', code(r.content)


def question(state, live=False) -> str:
    "What the model asks to run, while somebody has to decide; with buttons where clicks arrive."
    card = next((p for p in state.parts if isinstance(p, Card) and p.asked and not p.result), None)
    if not card or state.phase != 'approval': return ''
    about = state.about.get(card.call.name, '')
    about += '.' * (about[-1:] not in ('', '.', '?', '!'))
    return (f'<div class="ri-ask" role="group" aria-label="A question to you"><p role="alert">The model asks to run '
            f'<code class="ri-call">{esc(spelled(card.call))}</code></p> <p class="ri-row">{esc(about)} Nothing runs '
            f'until you choose.</p>{_buttons(card.call) if live and state.buttons else ""}</div>')


def _buttons(call):
    name = esc(call.name)
    def button(answer, word, more=''):
        return f'<button type="button" data-answer="{answer}" data-call="{esc(call.id)}"{more}>{word}</button>'
    return (f'<div class="ri-row" data-live>{button("once", "Approve", MAIN)} '
            + button('always', 'Always', f' aria-label="Always approve {name} in this chat"')
            + f' {button("deny", "Deny")} <span>“Always” holds for <code>{name}</code> in this chat.</span></div>')


def _ending(state):
    if state.error:
        what, rest = _told(state.error)
        return (f'<p class="ri-err" role="alert" title="{esc(state.error[0])}"><b>{ticked(what)}</b> {ticked(rest)} '
                f'<small>Chat unchanged.</small></p>')
    told = _note_end(state)
    out = f'<p class="ri-note"><b>{told[0]}</b>{ticked(told[1])}</p>' if told else ''
    if not state.stats or not state.done: return out
    return out + panel.strip(state.done.report, state.done.finish_reason if told else '')


def article(state, body) -> str:
    "`body` as the article of a turn. MathJax may look at the formulas in it, and at nothing else."
    busy = '' if state.over else ' aria-busy="true"'
    kind = 'rishi mathjax_ignore tex2jax_ignore'
    return f'<article class="{kind}" aria-label="{esc(status(state))}"{busy}>{body}</article>'


def html(state, live=False, sheet=True) -> str:
    "The whole turn. Static by default: nothing in it needs a kernel or a script, and it carries its own sheet."
    top = (_head(state) if state.over and not state.error else '' if state.over else
           '' if state.phase == 'approval' else
           f'<div class="ri-live"><div class="ri-slot">{line(state, live)}</div>{STOP if live else ""}</div>')
    grouped = list(groups(state.parts))
    if state.phase == 'thinking' and state.reasoning: grouped = grouped[:-1]
    parts = [draw(state, g, live, last=i == grouped[-1][0]) for i, g in grouped]
    end = _ending(state) if state.over else question(state, live) + meter(state)
    style = f'<style>{SHEET}</style>' if sheet else ''
    return article(state, '\n'.join(filter(None, [style, top, note(state), *parts, end])))


# --- text -----------------------------------------------------------------------------------------------------------
def _quoted(s): return '\n'.join(f'  | {o}' for o in s.strip().split('\n'))


def _thought_text(part, state):
    return f'Thought for {clock((part.ended or state.t) - part.began)}:\n{_quoted(part.text)}'


def _as_text(part, state):
    match part:
        case Thought(): return _thought_text(part, state) if state.reasoning else ''
        case Said(): return part.text.strip()
        case Card(result=None): return f'⏳ {clipped(part.call)}'
        case Card(): return f'{clipped(part.call)} → {outcome(part)}'


def text(state) -> str:
    "The turn as plain text: the thinking marked, the answer, what ended it, one line on the cache."
    out = [_as_text(p, state) for p in state.parts]
    if state.header.note: out.insert(0, f'({state.header.note})')
    return visible('\n\n'.join(filter(None, [*out, ending(state)])))


def ending(state) -> str:
    "What stands below the answer in the text form."
    cut, told = state.phase == 'stopped' and _cut(state), _note_end(state)
    out = ['[stopped here]' if cut else '', ''.join(told) if told else '']
    if state.error: out.append(f'{state.error[0]}: {state.error[2]}'.rstrip('.: ') + '. Chat unchanged.')
    if not state.over: out.append(' · '.join([PHASES[state.phase], *_numbers(state)]))
    if state.done and state.stats and state.done.report.steps: out.append(f'[{panel.summary(state.done.report)}]')
    return visible('\n'.join(filter(None, out)))


def _cut(state): return bool(state.parts) and isinstance(state.parts[-1], Said)
