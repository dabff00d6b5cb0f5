"Model text to HTML: everything is seen, nothing acts (the cases of raw markup, prices and unclosed fences)."
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rishi_jupyter.markdown import FORMATS, code_block, esc, formatted, render, split, ticked, visible


class Reader(HTMLParser):
    "Text and tags of a piece of HTML; notes what is left open."

    def __init__(self, html):
        super().__init__()
        self.tags, self.attrs, self.open, self.text, self.wrong = [], [], [], '', []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attrs += [(tag, *a) for a in attrs]
        if tag not in ('br', 'hr', 'img'): self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag: self.wrong.append(tag)

    def handle_data(self, data): self.text += data


def seen(text): return Reader(render(text)).text


@pytest.mark.parametrize('text', [
    '<img src=x onerror="alert(1)">', '<script>alert(1)</script>', '<I am an apple>', '<!-- hidden -->', '<b>x</b>',
    '<function_call> is a tag name', 'from $148 to $19', 'a\n<style>body { color: red }</style>', '[r]: http://x.y "t"',
    'US$5 and A$ 6, or $5, or AU$', 'the $HOME and $PATH variables', '[l](javascript:alert(1))', '&notanentity; a & b'])
def test_every_character_is_seen(text):
    assert seen(text).strip() == text


def test_nothing_acts():
    html = render('![i](http://h/i.png) [j](JaVaScRiPt:x) [d](data:text/html,x) <img src=x onerror=y>\n\n'
                  '<iframe src=//h></iframe>\n\n```js" onclick="x\n1\n```\n\n[a](http://h "onclick=x")')
    r = Reader(html)
    assert not {'img', 'script', 'iframe', 'style'} & set(r.tags)
    assert not [a for a in r.attrs if a[1].startswith('on') or a[1] in ('style', 'src', 'id')]
    assert {v for _, k, v in r.attrs if k == 'href'} == {'http://h/i.png', 'http://h'}
    assert all('noopener' in v for t, k, v in r.attrs if k == 'rel')


@pytest.mark.parametrize('bad, shown', [
    ('\x1b[31mred', '␛[31mred'), ('a\u202eb', 'a[U+202E]b'), ('a\u200bb', 'a[U+200B]b'), ('\U000e0041', '[U+E0041]'),
    ('a\x00b', 'a␀b'), ('a\rb', 'a␍b'), ('a\r\nb', 'a\nb')])
def test_what_would_hide_is_written_out(bad, shown):
    assert visible(bad) == shown and seen(bad).strip() == shown
    assert Reader(code_block(bad)).text.strip().endswith(shown)


def formulas(text): return re.findall(r'mathjax_process tex2jax_process">(.*?)</', render(text), re.S)


@pytest.mark.parametrize('text, found', [
    (r'a $\sigma/\sqrt{n}$ b', [r'$\sigma/\sqrt{n}$']),
    ('$x$ and $5^{2}$', ['$x$', '$5^{2}$']), (r'\(a_b\)', ['$a_b$']),
    ('$$\na\n- b\n$$', ['$$\na\n- b\n$$']), ('\\[\nx\n\\]', ['$$\nx\n$$']), ('`$x$`', []), ('```\n$x$\n```', []),
    ('from $148 to $19', []), ('it costs $5, not $6.', []), (r'\$x\$', []), ('$a<b$', ['$a&lt;b$']),
    (r'$\style{a}{b}$ $\href{javascript:x}{y}$ $\def\x{y}$', [])])
def test_formulas_and_prices(text, found): assert formulas(text) == found


def test_code():
    html = render('```python\ndef f(x): return "a" # c\n```\nafter')
    for piece in ('k">def', 'nf">f', 's">', 'c"># c'): assert f'<span class="{piece}' in html
    assert '<div>python ' in html and 'aria-label="Code, python"' in html and 'data-live' not in html
    assert 'data-live' in render('```\nx\n```', live=True)
    assert Reader(render('```nosuchlanguage\n<x>\n```')).text.strip().endswith('<x>')


def test_an_open_fence_is_closed():
    r = Reader(render('```\ncode\n# no heading'))
    assert r.open == [] and r.wrong == [] and 'h1' not in r.tags


def test_tables():
    html = render('| a | b |\n|---|:--|\n| 1 | <b> |')
    assert '<td class="ri-left">&lt;b&gt;</td>' in html and 'class="ri-scroll" tabindex="0"' in html


MARKED = st.lists(st.sampled_from([
    'a', ' ', '\n', '\n\n', '- ', '> ', '# ', '```', '`', '*', '**', '|', '|--|', '$', '$$', '<b>', '[x](y)', '    ',
    '1. ', '---', '\\[', '\\]', 'é', '🙂', '\x1b']), max_size=40)


@settings(max_examples=150, deadline=None)
@given(MARKED)
def test_any_text_is_whole_markup(parts):
    r = Reader(render(''.join(parts)))
    assert r.open == [] and r.wrong == []


@settings(max_examples=150, deadline=None)
@given(MARKED, st.integers(1, 7))
@example(['`', '\n', '$$', '`'], 1)
@example(['`', '\n', '$$', '\n', '`'], 1)
def test_finished_blocks_stay_as_they_are(parts, step):
    text, done, cut = ''.join(parts), '', 0
    for end in range(0, len(text) + step, step):
        now = text[:end]
        block, tail, n = split(now[cut:])
        done, cut = done + block, cut + n
        assert Reader(done).open == [] and Reader(tail).open == []
    assert ''.join(seen(text).split()).startswith(''.join(Reader(done).text.split()))


LONG = ['a' * 10**6, '[' * 10**6, '*a' * 9_999, '[' * 19_999, 'a `' * 6000, '![[' * 6000, r'\(' * 9000, '\\[\n' * 5000,
        'a $$\n' * 3000, '> ' * 5000 + 'end', '- ' * 5000 + 'end', '```\nx\n' * 3000]


@pytest.mark.parametrize('text', LONG, ids=[repr(t[:4]) for t in LONG])
def test_long_text_neither_hangs_nor_vanishes(text): assert len(seen(text).split('end')[0]) >= len(text) // 9


@pytest.mark.parametrize('fmt', FORMATS)
def test_formats_escape(fmt):
    html = formatted('```html\n<script>x</script>\n```\n<script>y</script>', fmt)
    assert '<script' not in html and Reader(html).open == []


def test_formats():
    assert 'after' not in formatted('before\n```python\nx = 1\n```\nafter', 'code')
    assert Reader(formatted('{"a": [1, "é"]}', 'json')).text.strip().startswith('json \n{\n  "a": [\n    1,\n    "é"')
    assert 'no json' in formatted('no json', 'json')
    assert formatted('*a*\n b', 'text') == '<pre class="ri-text">*a*\n b</pre>'


def test_sentences_of_ours():
    assert ticked('use `-o <n>`') == 'use <code>-o &lt;n&gt;</code>'
    assert esc('"<\x07>"') == '&quot;&lt;␇&gt;&quot;'
