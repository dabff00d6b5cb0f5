"""Where a call ends. Each scanner follows one way of writing arguments, so that a closing mark inside a string is text.

A scanner says which `marks` it waits for and takes them through `mark`. While `asks` is set it wants to `look` at what
comes next, white space apart: it returns how many characters it takes, or None when it must see more. `done` says that
the call has ended; `whole`, that it may end here if nothing follows.
"""
from __future__ import annotations

__all__ = ['Braces', 'Tags', 'Plain', 'begins']


def begins(*words: str):
    "A test for the first characters of a text: True, False, or None while either may come."
    def test(s):
        if any(s.startswith(w) for w in words): return True
        return None if any(w.startswith(s) for w in words) else False
    return test


class Braces:
    """An object or a list: it ends where its brackets balance outside strings, or at a closing mark outside strings.
    Before the first bracket anything may stand. Only brackets of the kind that came first are counted."""

    def __init__(self, closes, pair='{}', quotes=('"', "'"), escapes=True):
        self.closes, self.pair, self.quotes, self.escapes = tuple(closes), pair, quotes, escapes
        self.depth, self.quote, self.asks, self.done = 0, '', False, False
        self.junk = '}])`,;' if closes else ';'

    @property
    def whole(self): return self.asks

    @property
    def marks(self):
        if self.quote: return (self.quote, '\\\\', '\\' + self.quote) if self.escapes else (self.quote,)
        return (self.pair[0], *self.closes) if not self.depth else (*self.pair, *self.quotes, *self.closes)

    def mark(self, m):
        if self.quote: self.quote = '' if m == self.quote else self.quote
        elif m in self.closes: self.done = True
        elif m in self.quotes: self.quote = m
        else:
            self.depth += 1 if m == self.pair[0] else -1
            self.asks = not self.depth

    def look(self, s, final):
        "After the last bracket: the closing mark, one more object, or what does not belong to the call."
        close = next((c for c in self.closes if s.startswith(c)), None)
        if close is None and not final and any(c.startswith(s) for c in self.closes): return None
        if s[0] == self.pair[0] and not close:
            self.asks = False
            return 0
        if s[0] in self.junk and not close: return 1
        self.done = True
        return len(close or '')


class Tags:
    """Values between `opening` and `closing` tags: inside a value nothing counts but a `closing` with one of `follow`
    after it, so values may hold any tag."""
    whole = False

    def __init__(self, closes, opening, closing, follow):
        self.closes, self.opening, self.closing = tuple(closes), opening, closing
        self.after = begins(*follow, *closes)
        self.inside = self.asks = self.done = False

    @property
    def marks(self): return (self.closing,) if self.inside else (self.opening, *self.closes)

    def mark(self, m):
        if self.inside: self.asks = True
        elif m == self.opening: self.inside = True
        else: self.done = True

    def look(self, s, final):
        ends = self.after(s)
        if ends is None and not final: return None
        self.asks, self.inside = False, not ends
        return 0


class Plain:
    "Up to the first closing mark, whatever stands before it; with `free`, the end of the text will do."
    asks = False

    def __init__(self, closes, free=False): self.marks, self.whole, self.done = tuple(closes), free, False
    def mark(self, m): self.done = True
