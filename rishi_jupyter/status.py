"What `%rishi` tells: small tables that print as text and show as HTML."
from __future__ import annotations

from dataclasses import dataclass

__all__ = ['Table', 'Strip', 'status', 'models', 'chats', 'slots', 'tools', 'doctor', 'size']

EXAMPLES = (('Qwen/Qwen3-0.6B-GGUF', '0.6 billion parameters, thinks when asked'),
            ('Qwen/Qwen3-4B-GGUF', '4 billion parameters, the same family'),
            ('unsloth/gemma-4-E2B-it-GGUF', 'reads pictures and sound too'))


@dataclass(frozen=True)
class Table:
    "Rows of text below `head`; `title` says what they are."
    title: str
    rows: tuple[tuple[str, ...], ...]
    head: tuple[str, ...] = ()

    def text(self) -> str:
        "Columns padded with blanks, below the title."
        lines = ([self.head] if self.head else []) + list(self.rows)
        wide = [max(map(len, column)) for column in zip(*lines)]
        padded = ('  '.join(f'{c:{w}}' for c, w in zip(line, wide)).rstrip() for line in lines)
        return '\n'.join([self.title, *(f'  {p}' for p in padded)])

    def html(self) -> str:
        "The same as a table; every word in it is escaped."
        from .markdown import esc
        def line(tag, cells): return '<tr>' + ''.join(f'<{tag} {_LEFT}>{esc(c)}</{tag}>' for c in cells) + '</tr>'
        head = f'<thead>{line("th", self.head)}</thead>' if self.head else ''
        body = ''.join(line('td', r) for r in self.rows)
        return f'<table><caption {_LEFT}><b>{esc(self.title)}</b></caption>{head}<tbody>{body}</tbody></table>'

    __repr__ = text
    _repr_html_ = html


_LEFT = 'style="text-align:left"'


@dataclass(frozen=True)
class Strip:
    "The cache panel of a turn, by itself."
    report: object

    def __repr__(self):
        from .panel import summary
        return 'Cache in the last turn\n  ' + summary(self.report)

    def _repr_html_(self):
        from .panel import strip
        from .style import SHEET
        return f'<style>{SHEET}</style><article class="rishi">{strip(self.report)}</article>'


def size(n) -> str:
    "Bytes for people: '98 MB', '2.5 GB'."
    return f'{n / 1e9:.1f} GB' if n >= 1e9 else f'{n / 1e6:.0f} MB'


def status(session) -> list:
    "The model, the chats, the slots of the cache, and what the last turn made of it."
    bound = session.chats.get(session.last)
    if bound is None: return [Table('Model', _planned(session))]
    engine = bound.chat.engine
    rows = [('model', f'{engine.name}, not loaded now')] if engine.closed else engine.info().items()
    return [Table('Model', _words(rows)), *chats(session), *slots(session, engine), *_cache(bound.chat)]


def _words(rows): return tuple((str(k), str(v)) for k, v in rows)


def _planned(session):
    s = session.settings
    return _words([('model', s.model or 'SmolLM2-135M-Instruct, the embedded one'),
                   ('loaded', 'by the first %%rishi cell'), *s.options.items()])


def _cache(chat):
    report = chat.cache_report()
    return [Strip(report)] if report.steps else []


def chats(session) -> list:
    "The chats of the kernel."
    if not session.chats: return [Table('Chats', (('none yet', 'the first %%rishi cell makes one'),))]
    rows = tuple(_chat_row(session, n, b.chat) for n, b in session.chats.items())
    return [Table('Chats', rows, ('name', 'model', 'turns', 'window used', 'tokens'))]


def _chat_row(session, name, chat):
    e = chat.engine
    used = 'not loaded' if e.closed else f'{chat.token_count:,} of {chat.ctx_limit:,}'
    return name, e.name, str(session.turns(name)), used, str(chat.use)


def slots(session, engine) -> list:
    "The slots of the engine's cache: whose each is, what it does, what it takes."
    held = [] if engine.closed else engine.slots_info()
    if not held: return []
    names = {b.chat._key: n for n, b in session.chats.items()} | {None: ''}
    rows = tuple((names.get(s['owner'], 'one made in Python'), s['state'], f'{s["tokens"]:,}',
                  f'{s["bytes"] / 2**20:.1f} MiB') for s in held)
    title = f'Cache: {engine.cells_used:,} of {engine.n_ctx:,} tokens in use, shared ones counted once'
    return [Table(title, rows, ('chat', 'state', 'tokens', 'memory'))]


APPROVAL = {None: 'run unasked', 'always': 'run unasked', 'ask': 'you are asked', 'never': 'not run'}


def tools(session, name) -> list:
    "The tools of a chat, what they do, and what becomes of their calls."
    from .request import CellRequest
    bound = session.chats.get(name) if name == 'main' else session.bound(name)
    _, about = session.tools_of(CellRequest(chat=name))
    if not about: return [Table(f'Tools of chat {name}', (('none', 'a cell names them: %%rishi -T NAME'),))]
    def calls(tool):
        if bound.approve is None and bound.chat.approve: return 'its own `approve` decides'
        return 'run, you said “Always”' if bound.approve == 'ask' and tool in bound.granted else APPROVAL[bound.approve]
    rows = tuple((n, said, calls(n)) for n, said in about.items())
    return [Table(f'Tools of chat {name}', rows, ('name', 'what it does', 'calls'))]


def models(session) -> list:
    "What is loaded, what is on this machine, and what a name looks like."
    loaded = tuple((e.name, f'window {e.n_ctx:,}') for e in session.engines.values() if not e.closed)
    return [*([Table('Loaded', loaded)] if loaded else []), Table('On this machine', _here() or (('none', ''),)),
            Table('Names to try: %%rishi -m NAME fetches the model once', EXAMPLES)]


def _here():
    from rishi import hub
    from rishi.errors import ModelNotFound
    try: first = (('(no name needed)', hub.embedded().name),)
    except ModelNotFound as e: first = (('(no name needed)', str(e)),)
    return first + tuple((c.repo, f'{", ".join(c.files)}: {size(c.size)}') for c in hub.downloaded())


def doctor() -> list:
    "What is needed to run a model, and what of it is here."
    from rishi.doctor import remedy, report
    rows = report()
    todo = remedy(rows)
    end = ('', f'No model can be run yet. {todo}' if todo else 'A model can be run.', '')
    return [Table('Doctor', (*(tuple(map(str, r)) for r in rows), end), ('what', 'found', 'advice'))]
