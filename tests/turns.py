"Turns made by hand: lists of events, for tests of what shows them. Kernels of the browser tests import it too."
import time
from pathlib import Path

from rishi.types import CacheReport, Done, Progress, Resp, StepReport, TextDelta, ThinkingDelta, UsageStats
from rishi_jupyter.fold import Header

HERE = str(Path(__file__).parent)
HEADER = Header(chat='main', model='tiny · Q8_0', turn=3, window=2048)
ANSWER = r'''There are **161 samples**. In the figure, **T2 drifted**: it leaves the band on day 9 and does not return,
while the standard error $\sigma/\sqrt{n}$ of the others stays below 0.03. It fell from $148 to $19.

- T1 and T3 are steady.
- The clip names T9, which does not exist; perhaps T2 was meant.

| sensor | mean °C | drift °C/day | outside since |
|---|---|---|---|
| T1 | 21.04 | 0.01 | never |
| T2 | 22.31 | 0.19 | day 9 |

$$
\bar x = \frac{1}{n}
- \sum_i x_i
$$

```python
def first_outside(s, band=0.5):
    "Day on which `s` leaves the band, or None."
    out = (s - s.iloc[:5].mean()).abs() > band  # baseline: days 0 to 4
    return out.idxmax() if out.any() else None
```
'''


def report(cached=120, evaluated=16, generated=87, why='extends the conversation', **kw):
    "What a plain turn of one step reports."
    step = StepReport(cached + evaluated, cached, evaluated, generated, ttft=.11, prefill_s=.1, decode_s=generated / 65,
                      why=why, **kw)
    return CacheReport((step,), HEADER.window, cached + evaluated + generated, 2**20)


def done(text='', reason='stop', **kw):
    "The end of a turn; `kw` as in `report`."
    return Done(Resp(role='assistant', content=text), UsageStats(), report(**kw), reason)


def prefill(n=4, total=136, cached=120):
    "The prompt read in `n` equal pieces."
    return [Progress('prefill', cached + (total - cached) * i // n, total, cached) for i in range(n + 1)]


def pieces(s, n=4): return [s[i:i + n] for i in range(0, len(s), n)]


def turn(answer=ANSWER, thinking='Two questions, one figure. I count first.', n=4):
    "A whole turn."
    return [*prefill(), *map(ThinkingDelta, pieces(thinking, n)), *map(TextDelta, pieces(answer, n)), done(answer)]


def gate(name, stop=None):
    "Events that are none: wait until the file `name` stands beside the notebook, so that a test can look."
    while not Path(name).exists() and not (stop and stop.is_set()): time.sleep(.02)
    yield from ()


def paced(events, pause, stop=None):
    "`events` with `pause` seconds before each; once the event `stop` is set, the end of a cancelled turn."
    for e in events:
        time.sleep(pause)
        if stop is not None and stop.is_set():
            yield done(reason='cancelled', generated=23)
            return
        yield e
