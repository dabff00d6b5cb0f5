"The strip: one bar in a fixed order, one line, and the details."
import re

from test_markdown import Reader
from turns import report

from rishi.types import CacheReport, StepReport
from rishi_jupyter.panel import bar, clock, count, seconds, strip, summary


def text(html): return ' '.join(Reader(html).text.split())


def test_bar():
    html = bar((1204, 16, 291, 87), 8192)
    assert re.findall(r'class="ri-(\w+)" style="flex-grow:(\d+)"', html) == [
        ('c', '1204'), ('e', '16'), ('m', '291'), ('g', '87'), ('free', '6594')]
    assert 'Window of 8,192 tokens: 1,204 cached, 16 evaluated, 291 media, 87 generated, 6,594 free' in html


def test_bar_leaves_out_what_is_nothing():
    assert 'ri-m' not in bar((1, 2, 0, 3), 10) and 'flex-grow:0' in bar((5, 5, 0, 5), 10)
    assert '3 generated so far"' in bar((0, 2, 0, 3), 0, so_far=True)


def test_strip_of_one_step():
    html = strip(report(1204, 16))
    assert text(html).startswith('cached 1,204 · evaluated 16 · generated 87 · first token 0.11 s · 65 tok/s; extends')
    assert '1,220 tokens = 1,204 cached + 16 evaluated' in text(html) and '1,307 of 2,048 · 64 %' in text(html)
    assert '<table' not in html and 'ri-lost' not in html


def test_a_lost_cache_says_what_it_costs():
    html = strip(report(652, 655, why='history edited at message 3', lost=True))
    assert 'ri-lost' in html and 'history edited at message 3: 655 tokens evaluated again' in text(html)


def test_steps():
    first = StepReport(659, 612, 47, 214, why='first <turn>', did='called <b>', ttft=.7)
    steps = (first, StepReport(1220, 1204, 16, 87))
    html = strip(CacheReport(steps, 8192, 1307))
    assert text(html).startswith('cached 1,204 · evaluated 16 · generated 87') and '<b>' not in html
    assert html.count('<tr>') == 3 and 'called <b> 612 47 0 214 0.70 s' in text(html.replace('</td>', ' </td>'))
    assert summary(CacheReport(steps, 8192, 1307)).endswith('first <turn>')


def test_nothing_computed(): assert strip(CacheReport()) == summary(CacheReport()) == ''


def test_numbers():
    assert count(1204) == '1,204'
    assert [*map(seconds, (.004, .09, 1.31, 5.94))] == ['4 ms', '0.09 s', '1.31 s', '5.9 s']
    assert [clock(.48), clock(-1), clock(75), clock(200)] == ['0.5 s', '0.0 s', '75 s', '3 min 20 s']
