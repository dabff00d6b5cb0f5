"""What a splitter makes of a text, for tests: the parts joined, and the text cut into pieces."""
from rishi.dialect import Splitter


def parts(dialect, cut, start='unset', tools=None):
    "All parts of the pieces `cut`, neighbours of a kind joined."
    split, out = Splitter(dialect, start, tools), []
    for kind, value in [p for piece in cut for p in split.feed(piece)] + split.end():
        if out and out[-1][0] == kind != 'call': out[-1] = (kind, out[-1][1] + value)
        else: out.append((kind, value))
    return out


def fold(dialect, cut, start='unset', tools=None):
    "(thinking, text, calls)"
    found = parts(dialect, cut, start, tools)
    texts = [''.join(v for k, v in found if k == kind) for kind in ('think', 'text')]
    return *texts, [v for k, v in found if k == 'call']


def pieces(text, size): return [text[i:i + size] for i in range(0, len(text), size)]
