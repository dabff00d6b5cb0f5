"""What is written about a function: its docstring in numpy, google or sphinx style, and comments beside its parameters.

    def add(a:int, # first number         <- these win over the docstring
            b:int=1, # second number
    )->int: # the sum
"""
from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass, field

__all__ = ['Docs', 'read_docs', 'read_docstring', 'read_comments']


@dataclass(frozen=True)
class Docs:
    "`text` is the prose of a docstring, `params` maps names to one line each, `returns` says what comes back."
    text: str = ''
    params: dict = field(default_factory=dict)
    returns: str = ''


def read_docs(obj, docstring: str | None) -> Docs:
    "The docstring and the comments in the source of `obj`, as one."
    doc, notes = read_docstring(docstring or ''), read_comments(obj)
    return Docs(doc.text, {**doc.params, **notes.params}, notes.returns or doc.returns)


def _flat(lines): return ' '.join(' '.join(lines).split())


# --- docstrings -----------------------------------------------------------------------------------------------------
_ARGS = {'args', 'arguments', 'parameters', 'params', 'keyword args', 'keyword arguments', 'other parameters'}
_RETURNS = {'returns', 'return', 'yields'}
_FIELD = re.compile(r'[:@](?P<kind>param|parameter|arg|argument|key|keyword|type|rtype|returns?)\b'
                    r'(?:\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+))?\s*:\s*(?P<text>.*)')
_ITEM = re.compile(r'\*{0,2}(?P<name>\w+)\s*(?:\((?P<type>[^()]*(?:\([^()]*\)[^()]*)*)\))?\s*:\s*(?P<text>.*)')
_NUMPY_ITEM = re.compile(r'(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$')


@dataclass
class _Section:
    kind: str                  # 'text', 'args', 'returns' or 'types'
    lines: list
    indented: bool = False     # ends at the first line that is not indented
    numpy: bool = False


def read_docstring(text: str) -> Docs:
    "Prose, parameters and result of a docstring; what is in no known section is prose."
    prose, params, returns = [], {}, ''
    for s in _sections(inspect.cleandoc(text).splitlines()):
        if s.kind == 'text': prose += s.lines
        elif s.kind == 'args': params |= (_numpy_items if s.numpy else _items)(s.lines)
        elif s.kind == 'returns': returns = _flat(s.lines)
    return Docs(re.sub(r'\n{3,}', '\n\n', '\n'.join(prose)).strip(), params, returns)


def _sections(lines):
    now, i = _Section('text', []), 0
    while i < len(lines):
        new, used = _heading(lines, i)
        if not new and now.indented and re.match(r'\S', lines[i]): new = _Section('text', [])
        if new:
            yield now
            now = new
        if not used:
            now.lines.append(lines[i])
            used = 1
        i += used
    yield now


def _heading(lines, i):
    "The section that begins at line `i` and how many lines its heading takes, or (None, 0)."
    line, below = lines[i], lines[i + 1] if i + 1 < len(lines) else ''
    word = line.strip().lower()
    if line.strip() and re.fullmatch(r'\s*-{3,}\s*', below):
        kind = _kind(word)
        return _Section(kind, [line, below] if kind == 'text' else [], numpy=True), 2
    if not line[:1].isspace() and word.endswith(':') and _kind(word[:-1]) != 'text':
        return _Section(_kind(word[:-1]), [], indented=True), 1
    m = _FIELD.match(line)
    return (_field(m), 1) if m else (None, 0)


def _kind(word): return 'args' if word in _ARGS else 'returns' if word in _RETURNS else 'text'


def _field(m):
    if m['kind'].endswith('type'): return _Section('types', [], indented=True)
    if m['kind'].startswith('return'): return _Section('returns', [m['text']], indented=True)
    return _Section('args', [f'{m["name"]}: {m["text"]}'], indented=True)


def _items(lines): return _gather(lines, _ITEM, lambda m: ([m['name']], [m['text']]))
def _numpy_items(lines): return _gather(lines, _NUMPY_ITEM, lambda m: (re.findall(r'\w+', m['names']), []))


def _gather(lines, pattern, read):
    "Items at the outer indent, each with the deeper lines below it."
    found, text = {}, []
    lines = [o for o in lines if o.strip()]
    base = min((_indent(o) for o in lines), default=0)
    for line in lines:
        m = pattern.match(line.strip()) if _indent(line) == base else None
        if m:
            names, text = read(m)
            found |= dict.fromkeys(names, text)
        else: text.append(line)
    return {n: _flat(o) for n, o in found.items() if _flat(o)}


def _indent(line): return len(line) - len(line.lstrip())


# --- comments -------------------------------------------------------------------------------------------------------
_NOISE = re.compile(r'(noqa|type:|pragma|fmt:|pylint|pyright|mypy|ruff|nosec)', re.I)


def read_comments(obj) -> Docs:
    "The comments beside or above the parameters of a function, or the fields of a class, if its source is at hand."
    try:
        source = textwrap.dedent(inspect.getsource(obj))
        node = ast.parse(source).body[0]
        notes, alone, header = _scan(source)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError): return Docs()
    spans = list(_spans(node))
    if isinstance(node, ast.ClassDef): return Docs(params=_beside(spans, notes, alone, node.lineno))
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)): return Docs()
    below = node.body[0].lineno > header
    mine = below and header > node.lineno and node.returns is None and any(end == header for *_, end in spans)
    text = '' if mine else notes.pop(header, '')                 # `mine`: it is the last parameter's
    returns = text if below and (node.returns is not None or header > node.lineno) else ''
    return Docs(params=_beside(spans, notes, alone, node.lineno), returns=returns)


def _scan(source):
    "-> ({line: comment}, lines that hold nothing else, the line of the colon that ends a `def`)."
    notes, alone, depth, header, seen = {}, set(), 0, 0, False
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        if t.type == tokenize.COMMENT:
            text = t.string.lstrip('#').strip()
            if not _NOISE.match(text): notes[t.start[0]] = text
            if not t.line[:t.start[1]].strip(): alone.add(t.start[0])
        elif t.type == tokenize.NAME and t.string == 'def': seen = True
        elif t.type == tokenize.OP:
            depth += (t.string in '([{') - (t.string in ')]}')
            if seen and not header and t.string == ':' and not depth: header = t.start[0]
    return notes, alone, header


def _spans(node):
    "(name, first line, last line) of each parameter or field."
    if isinstance(node, ast.ClassDef):
        yield from ((o.target.id, o.lineno, o.end_lineno) for o in node.body
                    if isinstance(o, ast.AnnAssign) and isinstance(o.target, ast.Name))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        a = node.args
        plain = a.posonlyargs + a.args
        pairs = list(zip(plain, [None] * (len(plain) - len(a.defaults)) + a.defaults))
        pairs += [(a.vararg, None), *zip(a.kwonlyargs, a.kw_defaults), (a.kwarg, None)]
        yield from ((p.arg, p.lineno, (d or p).end_lineno) for p, d in pairs if p)


def _beside(spans, notes, alone, first):
    found = {}
    for name, start, end in spans:
        if sum(e == end for _, _, e in spans) > 1: continue      # whose comment would it be?
        text, line = notes.get(end, ''), start - 1
        above = []
        while line in alone and line > first:
            above.insert(0, notes.get(line, ''))
            line -= 1
        if text or any(above): found[name] = text or _flat(above)
    return found
