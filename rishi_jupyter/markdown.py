"""Text of a model, a tool or a file name -> safe HTML. Nothing else in rishi turns foreign text into markup.

Two fences stand behind each other: markdown-it with HTML and images off, then `nh3` with a list of what may pass.
What could hide or act (control characters, direction overrides, HTML comments) is written out, so that it is seen.
"""
import json
import re
from functools import lru_cache
from html import escape

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ['esc', 'visible', 'ticked', 'render', 'split', 'formatted', 'code_block', 'FORMATS']

FORMATS = ('markdown', 'text', 'code', 'json', 'html')
LONG_LINE, LONG_CODE = 20_000, 200_000      # characters; beyond these no inline markup, no highlighting
DEEP = 60                                   # levels of nesting; the parser drops what lies deeper
MATH = 'ri-math mathjax_process tex2jax_process'
TAGS = set('p h1 h2 h3 h4 h5 h6 ul ol li pre code em strong s blockquote hr br table thead tbody tr th td a div span i'
           .split())
CLASSES = dict(div=set('ri-scroll ri-block ri-math mathjax_process tex2jax_process'.split()),
               span=set('k s m nf c ri-math mathjax_process tex2jax_process'.split()),
               th={'ri-left'}, td={'ri-left'}, i={'ri-copy'})
ATTRS = dict(a={'href', 'title'}, ol={'start'}, pre={'tabindex', 'aria-label'}, th={'scope'},
             div={'tabindex', 'role', 'aria-label'})
COPY_SLOT = '<i class="ri-copy"></i>'       # model text cannot spell it: every `<` of its own is escaped
COPY = ('<button class="ri-bare" type="button" aria-label="Copy the code" data-copy data-live>'
        '<svg class="ri-i" viewBox="0 0 16 16" aria-hidden="true"><rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/>'
        '<path d="M3.5 10.5h-.6a.9.9 0 01-.9-.9V3.4c0-.5.4-.9.9-.9h6.2c.5 0 .9.4.9.9V4"/></svg>Copy</button>')

_ODD = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb'
                  '\U000e0000-\U000e007f]')


def _spell(m):
    c = ord(m[0])
    return chr(0x2400 + c) if c < 32 else '␡' if c == 127 else f'[U+{c:04X}]'


def visible(s) -> str:
    "`s` with control, direction and invisible characters written out; line ends become `\\n`."
    return _ODD.sub(_spell, str(s).replace('\r\n', '\n'))


def esc(s) -> str:
    "`s` as HTML text or attribute value."
    return escape(visible(s))


def ticked(s) -> str:
    "A sentence of ours as HTML: `backticks` become code, nothing else is markup."
    return re.sub(r'`([^`]+)`', r'<code>\1</code>', esc(s))


# --- maths ----------------------------------------------------------------------------------------------------------
_UNSAFE_TEX = re.compile(r'\\(style|class|cssId|href|url|bbox|mmlToken|require|includegraphics|data|csname|unicode|let|'
                         r'[gex]?def|(re)?new\w+|provide\w+|Declare\w+)(?![a-zA-Z])')
_TEX_SIGN = re.compile(r'[\\^_={}]')
_INLINE = ((re.compile(r'\$\$(.{1,4000}?)\$\$', re.S), '$$'), (re.compile(r'\\\[(.{1,500}?)\\\]', re.S), '$$'),
           (re.compile(r'\\\((.{1,500}?)\\\)', re.S), '$'),
           (re.compile(r'(?<![\w\\$])\$(?![\s$])([^$]*?[^\s$\\])\$(?![\w$])'), '$'))


def _maths(src, pos):
    "The TeX that starts at `pos`: (source, dollars, end), or None. `$5 and $6` are prices."
    for pattern, mark in _INLINE:
        m = pattern.match(src, pos)
        if m and not (m[1][:1].isdigit() and not _TEX_SIGN.search(m[1]) and ' ' in m[1]):
            return m[1], mark, m.end()


def _math_inline(state, silent):
    if state.src[state.pos] not in '$\\': return False
    found = _maths(state.src, state.pos)
    if not found: return False
    if not silent:
        token = state.push('math', '', 0)
        token.content, token.markup = found[:2]
    state.pos = found[2]
    return True


def _math_block(state, start, end, silent):
    "A display formula over several lines, which Markdown would take for lists or headings."
    first = state.bMarks[start] + state.tShift[start]
    close = {'$$': '$$', '\\[': '\\]'}.get(state.src[first:first + 2])
    if not close or state.is_code_block(start): return False
    end = min(end, start + 100)
    last = next((n for n in range(start, end) if state.sCount[n] < state.blkIndent or
                 state.src[first + 2 if n == start else state.bMarks[n]:state.eMarks[n]].rstrip().endswith(close)), end)
    shut = last < end and state.sCount[last] >= state.blkIndent
    if not shut and not (state.env.get('grows') and last == end == state.lineMax): return False
    if silent: return True
    token = state.push('math', '', 0)
    token.content = state.src[first + 2:state.eMarks[last - (not shut)]].rstrip()[:-2 if shut else None]
    token.markup, token.block, token.map, token.meta = '$$', True, [start, last + shut], {'open': not shut}
    state.line = last + shut
    return True


def _draw_math(self, tokens, i, options, env):
    t = tokens[i]
    tag, kind = ('div' if t.block else 'span'), 'ri-math' if _UNSAFE_TEX.search(t.content) else MATH
    return f'<{tag} class="{kind}">{t.markup}{escape(t.content)}{t.markup}</{tag}>' + '\n' * t.block


# --- code -----------------------------------------------------------------------------------------------------------
def _css_class(kind):
    from pygments.token import Comment, Keyword, Name, Number, Operator, String
    pairs = ((Comment, 'c'), (Keyword, 'k'), (Operator.Word, 'k'), (Number, 'm'), (String, 's'),
             (Name.Function, 'nf'), (Name.Class, 'nf'), (Name.Decorator, 'nf'), (Name.Tag, 'k'), (Name.Attribute, 'nf'))
    return next((c for group, c in pairs if kind in group), '')


@lru_cache(32)
def _lexer(lang):
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound
    try: return get_lexer_by_name(lang, stripnl=False, ensurenl=False)
    except ClassNotFound: return None


def _highlight(code, lang):
    long = len(code) > LONG_CODE or max(map(len, code.split('\n'))) > LONG_LINE
    lexer = _lexer(lang) if lang and not long else None
    if lexer is None: return escape(code)
    spans = ((_css_class(kind), escape(s)) for kind, s in lexer.get_tokens(code))
    return ''.join(f'<span class="{c}">{s}</span>' if c else s for c, s in spans)


def _block(code, info):
    lang = (info.split() or [''])[0].strip('{.}')
    name = f'Code, {info}' if info else 'Code'
    return (f'<div class="ri-block"><div>{escape(info) or "code"} {COPY_SLOT}</div>\n<pre tabindex="0" '
            f'aria-label="{escape(name)}"><code>{_highlight(code, lang.lower())}</code></pre></div>\n')


def _draw_fence(self, tokens, i, options, env): return _block(tokens[i].content.rstrip('\n'), tokens[i].info.strip())


# --- tables ---------------------------------------------------------------------------------------------------------
def _draw_cell(self, tokens, i, options, env):
    left = 'left' in str(tokens[i].attrGet('style'))
    return f'<{tokens[i].tag}' + (' class="ri-left">' if left else '>')


def _open_table(self, *args): return '<div class="ri-scroll" tabindex="0" role="region" aria-label="Table"><table>'
def _close_table(self, *args): return '</table></div>\n'


# --- the parser -----------------------------------------------------------------------------------------------------
def _spare_long_lines(state):
    "Inline rules look back and forth: what is as long as a book page is shown as it is."
    for t in state.tokens:
        if t.type == 'inline' and len(t.content) > LONG_LINE: t.type = 'text'


@lru_cache(1)
def _md():
    md = MarkdownIt('commonmark', {'html': False, 'maxNesting': DEEP})
    md.enable(['table', 'strikethrough']).disable(['image', 'reference'])
    md.core.ruler.before('inline', 'long', _spare_long_lines)
    md.inline.ruler.before('escape', 'math', _math_inline)
    md.block.ruler.before('fence', 'math', _math_block, {'alt': ['paragraph', 'blockquote', 'list']})
    for name, draw in dict(math=_draw_math, fence=_draw_fence, code_block=_draw_fence, th_open=_draw_cell,
                           td_open=_draw_cell, table_open=_open_table, table_close=_close_table).items():
        md.add_render_rule(name, draw)
    return md


def _draw(tokens, live):
    return _clean(_md().renderer.render(tokens, _md().options, {}), live)


def _clean(raw, live):
    html = nh3.clean(raw, tags=TAGS, attributes=ATTRS, allowed_classes=CLASSES, url_schemes={'http', 'https', 'mailto'},
                     link_rel='noopener noreferrer nofollow', set_tag_attribute_values={'a': {'target': '_blank'}})
    return html.replace(COPY_SLOT, COPY if live else '')


def _parse(text, **env):
    "The tokens of `text`; where the parser would drop what is nested too deeply, one block that shows all of it."
    text = visible(text)
    tokens = _md().parse(text, env)
    if all(t.level < DEEP - 1 for t in tokens): return tokens
    return [Token('fence', 'code', 0, content=text, map=[0, text.count('\n')], block=True)]


def render(text, live=False) -> str:
    "Markdown `text` as safe HTML; `live` adds what needs a running view."
    return _draw(_parse(text), live)


def split(text, live=False) -> tuple[str, str, int]:
    """For text that still grows: HTML of the blocks that are finished, HTML of the last one, and how many characters
    of `text` the finished ones take. Nothing that comes later changes a finished block."""
    tokens = _parse(text, grows=True)
    tops = [i for i, t in enumerate(tokens) if t.level == 0 and t.nesting >= 0]
    if tops and tokens[tops[-1]].meta.get('open'): tops.pop()       # it may yet belong to the block before it
    last = max(tops, default=0)
    if not last: return '', _draw(tokens, live), 0
    lines = text.split('\n', tokens[last].map[0])
    return _draw(tokens[:last], live), _draw(tokens[last:], live), len(text) - len(lines[-1])


def code_block(code, lang='') -> str:
    "`code` as a highlighted block."
    return _clean(_block(visible(code).rstrip('\n'), visible(lang)), False)


def _fences(text) -> list[Token]: return [t for t in _md().parse(text) if t.type == 'fence']


def _pretty(text):
    try: return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError): return None


def formatted(text, fmt='markdown', live=False) -> str:
    "An answer drawn as `fmt` asks: Markdown, plain text, its fenced code only, JSON set in lines, or HTML as source."
    if fmt == 'markdown': return render(text, live)
    if fmt == 'html': return code_block(text, 'html')
    fences = _fences(text) if fmt in ('code', 'json') else []
    if fmt == 'json':
        pretty = _pretty(fences[0].content if fences else text)
        if pretty is not None: return code_block(pretty, 'json')
    if fmt == 'code': return ''.join(code_block(f.content, f.info.strip()) for f in fences) or code_block(text)
    return f'<pre class="ri-text">{esc(text)}</pre>'
