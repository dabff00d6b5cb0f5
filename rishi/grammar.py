"""Constrained decoding by llguidance: which tokens may come next, so that the text fits a JSON schema or is one of some
labels. Knows an engine only as a vocabulary, so it serves every backend.

    grammars = for_engine(engine)
    constraint = grammars.json({'type': 'integer'})      # BadRequest when that cannot be enforced
    loop: narrow(logits, constraint.mask()), draw a token, constraint.accept(token), until constraint.done

What llguidance takes but would not hold to the letter is made exact here or refused: dates that no calendar has, keys
that hide behind escapes, `minProperties` met by a key given twice.
"""
from __future__ import annotations

import json
import math
import re
import threading
import weakref
from collections.abc import Callable, Sequence

from .errors import BadRequest, EngineError

__all__ = ['Constraint', 'Grammars', 'for_engine', 'narrow', 'probabilities', 'MAX_DIGITS']

MAX_DIGITS = 20      # a number ends there: greedy decoding of small models likes 10.0000000...
_NUMBER = frozenset(b'0123456789+-.eE')
_HUGE = re.compile(rb'(^|\d)[eE][+-]?\d{3}')
_OPTIONS = dict(whitespace_flexible=False, item_separator=',', key_separator=':', lenient=False, coerce_one_of=False,
                json_allowed_escapes='"\\nrtbf', json_allow_general_unicode_escapes=False)


# --- one answer -----------------------------------------------------------------------------------------------------
class Constraint:
    "The grammar of one answer and how far it has come; made by `Grammars`, good for one answer."

    def __init__(self, matcher, vocab, numbers=None):
        import numpy as np
        self._matcher, self._vocab, self._numbers = matcher, vocab, numbers
        self._bits = np.zeros((vocab.size + 31) // 32, np.uint32)

    def mask(self):
        "Which tokens may come next: uint32 words, token i is bit i % 32 of word i // 32. Raises EngineError if none."
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        if not self._bits.any(): raise EngineError('The grammar has come to a point where no token of this model fits; '
                                                   'loosen the schema there.')
        unwanted = self._numbers and self._numbers.unwanted()
        kept = self._bits & ~unwanted if unwanted is not None else self._bits
        return kept if kept.any() else self._bits

    def accept(self, token: int):
        "Go on with `token`; an end-of-turn token ends the answer. Raises EngineError for one that the mask forbids."
        self._matcher.consume_token(token)
        self._check()
        if self._numbers: self._numbers.feed(self._vocab.tokens[token])

    def _check(self):
        if not self._matcher.is_error(): return
        raise EngineError(f'Constrained decoding failed: {_line(self._matcher.get_error())}.')

    @property
    def done(self) -> bool:
        "Nothing but the end of the turn may follow."
        return self._matcher.is_stopped()

    @property
    def complete(self) -> bool:
        "The text so far is an answer, though more might follow."
        return self._matcher.is_accepting()


class _Numbers:
    "Reads the JSON as it comes and ends each number at MAX_DIGITS, and each exponent at two, so that it fits a float."

    def __init__(self, vocab):
        self.vocab, self.quoted, self.escaped, self.number = vocab, False, False, b''

    def feed(self, data: bytes):
        for c in data:
            if self.quoted: self._inside(c)
            else:
                self.quoted = c == ord('"')
                self.number = self.number + bytes([c]) if c in _NUMBER else b''

    def _inside(self, c):
        self.quoted = self.escaped or c != ord('"')
        self.escaped = not self.escaped and c == ord('\\')

    def unwanted(self):
        "Tokens that would make a number too long or too large: a mask, or None."
        if self.quoted: return None
        digits, e, power = self.number.lower().partition(b'e')
        if len(digits) >= MAX_DIGITS or len(power.lstrip(b'+-')) >= 2: return self.vocab.numeric
        return self.vocab.paired if e else self.vocab.huge


# --- one vocabulary -------------------------------------------------------------------------------------------------
class _Vocab:
    "An engine's tokens, as llguidance wants to see them."
    is_tokenizer_wrapper, bos_token_id = True, None

    def __init__(self, engine):
        ids = range(engine.vocab_size)
        self._engine, self.size = weakref.ref(engine), len(ids)
        self.special_token_ids = [i for i in ids if engine.is_control(i)]
        self.eog = [i for i in ids if engine.is_eog(i)]
        if not self.eog: raise BadRequest(f'{engine.name} has no token that ends a turn, so a grammar cannot end one.')
        self.eos_token_id, self.tokens = self.eog[0], [engine.piece(i) for i in ids]
        hidden = {*self.special_token_ids, *self.eog}
        self.ids = {t: i for i, t in reversed([*enumerate(self.tokens)]) if t and i not in hidden}
        self.huge = _bits(_HUGE.search(t) for t in self.tokens)
        self.numeric = self.huge | _bits(t[:1] and t[0] in _NUMBER for t in self.tokens)
        self.paired = self.huge | _bits(len(t) > 1 and t[0] in _NUMBER and t[1] in _NUMBER for t in self.tokens)

    def __call__(self, text) -> list[int]:
        "Tokens of plain `text`: the model's own, unless those are control tokens or stand for other text."
        data = text if isinstance(text, bytes) else text.encode()
        engine = self._engine()
        own = engine.tokenize(data, False) if engine and not engine.closed else []
        same = all(i < self.size for i in own) and b''.join(self.tokens[i] for i in own) == data
        return own if same and not set(own) & {*self.special_token_ids} else self._longest(data)

    def _longest(self, data):
        "Tokens of `data`, the longest first; a byte that no token has is left out."
        out, at = [], 0
        while at < len(data):
            n = next((n for n in range(min(len(data) - at, 64), 0, -1) if data[at:at + n] in self.ids), 0)
            if n: out.append(self.ids[data[at:at + n]])
            at += n or 1
        return out


class Grammars:
    "The grammars over one engine's vocabulary; made by `for_engine`."

    def __init__(self, engine):
        from llguidance import LLTokenizer
        self._vocab = _Vocab(engine)
        self._tokenizer = LLTokenizer(self._vocab, n_vocab=self._vocab.size, eos_token=self._vocab.eog)

    def json(self, schema: dict | bool) -> Constraint:
        """The next answer is compact JSON that `schema` allows. Numbers end at MAX_DIGITS where the schema lets them.
        Raises BadRequest, naming the keyword, for what cannot be enforced to the letter."""
        from llguidance import LLMatcher
        if schema is True: schema = {}
        if not isinstance(schema, dict): raise BadRequest(f'{schema!r} is not a JSON schema: it must be a dict.')
        try:
            text = json.dumps(_exact(schema), allow_nan=False)
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=_OPTIONS)
        except BadRequest: raise
        except (TypeError, ValueError, RecursionError) as e:
            raise BadRequest(f'The JSON schema is not plain JSON: {_line(str(e))}.') from e
        return self._constraint(grammar, 'The JSON schema', _Numbers(self._vocab))

    def choice(self, labels: Sequence[str]) -> Constraint:
        "The next answer is one of `labels`, letter by letter. Raises BadRequest when they are no choice."
        from llguidance import LLMatcher
        _labels(labels)
        regex = '|'.join(''.join(f'\\x{{{ord(c):x}}}' for c in o) for o in labels)
        return self._constraint(LLMatcher.grammar_from_regex(regex), 'The choice of labels')

    def paths(self, labels: Sequence[str]) -> dict[str, list[int]]:
        "The tokens of each label, as the model would write it; `probabilities` takes them."
        _labels(labels)
        return {o: self._vocab(o) for o in labels}

    def eog(self) -> list[int]:
        "The tokens that end a turn."
        return self._vocab.eog

    def _constraint(self, grammar, what, numbers=None):
        from llguidance import LLMatcher, LLParserLimits
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error(): raise BadRequest(f'{what} cannot be enforced: {_why(matcher.get_error())}. '
                                                'Leave that out or say it another way.')
        found = Constraint(matcher, self._vocab, numbers)
        try: found.mask()
        except EngineError as e:
            raise BadRequest(f'{what} cannot be enforced: nothing this model writes fits it.') from e
        return found


_made, _lock = weakref.WeakKeyDictionary(), threading.Lock()


def for_engine(engine) -> Grammars:
    """The grammars of `engine`, made at the first call (0.3 s for 49k tokens) and kept while the engine lives. It needs
    `vocab_size`, `piece`, `is_control`, `is_eog` and `tokenize`. Raises EngineClosed."""
    engine.check_open()
    with _lock:
        if engine not in _made: _made[engine] = Grammars(engine)
        return _made[engine]


# --- logits ---------------------------------------------------------------------------------------------------------
def narrow(logits, mask):
    "Set to minus infinity, in place, the entries of the 1-d float array `logits` whose bit in `mask` is not set."
    import numpy as np
    bits = np.unpackbits(mask.view(np.uint8), bitorder='little')[:len(logits)]
    np.putmask(logits[:len(bits)], bits == 0, -np.inf)
    logits[len(bits):] = -np.inf


def probabilities(paths: dict[str, Sequence[int]], logits: Callable, eog: Sequence[int]) -> dict[str, float]:
    """How likely each label is under constrained decoding at temperature 1: the product, along its tokens, of each
    token's share among those that lead on to some label. They sum to 1. `logits(prefix)` gives the next-token logits
    (1-d) after a tuple of tokens; it is asked only where labels part. The end of the turn (`eog`) stands for stopping
    where one label begins another. Two labels with the same tokens raise BadRequest."""
    by_path = {tuple(p): label for label, p in paths.items()}
    if len(by_path) < len(paths) or () in by_path: raise BadRequest('Two labels have the same tokens, or one has none.')
    return {by_path[p]: math.exp(w) for p, w in _shares((), list(by_path), logits, eog)}


def _shares(prefix, below, logits, eog, weight=0.0):
    "(path, log probability) of each path of `below`, all of which start with `prefix`."
    n, branches = len(prefix), {}
    for p in below: branches.setdefault(p[n:n + 1], []).append(p)
    weights = _branch_weights(branches, logits(prefix), eog) if len(branches) > 1 else dict.fromkeys(branches, 0.0)
    for step, paths in branches.items():
        if step: yield from _shares(prefix + step, paths, logits, eog, weight + weights[step])
        else: yield paths[0], weight + weights[step]


def _branch_weights(branches, row, eog):
    "Log share of each branch: a token, or () for the end of the turn."
    score = {step: _logsum([float(row[i]) for i in step or eog]) for step in branches}
    total = _logsum(score.values())
    return {step: s - total for step, s in score.items()}


def _logsum(values):
    values = list(values)
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def _bits(flags):
    import numpy as np
    flags = np.fromiter(map(bool, flags), bool)
    words = np.zeros((len(flags) + 31) // 32 * 32, bool)
    words[:len(flags)] = flags
    return np.packbits(words, bitorder='little').view(np.uint32)


# --- schemas made exact ---------------------------------------------------------------------------------------------
_LEAP = '(0[48]|[2468][048]|[13579][26])'
_YEAR = r'(\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)'
_DATE = (rf'({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))'
         rf'|(\d\d{_LEAP}|{_LEAP}00)-02-29)')
_CLOCK = r'([01]\d|2[0-3]):[0-5]\d'
_TIME = rf'{_CLOCK}:[0-5]\d(\.\d{{1,6}})?(Z|[+-]{_CLOCK})'
FORMATS = {'date': f'^{_DATE}$', 'time': f'^{_TIME}$', 'date-time': f'^{_DATE}T{_TIME}$'}
_DATA = {'const', 'enum', 'default', 'examples', 'required'}
_NAMED = {'properties', 'patternProperties', '$defs', 'definitions'}


def _exact(s):
    "A copy of schema `s` without what llguidance would let slip; raises BadRequest where that cannot be had."
    if isinstance(s, list): return [_exact(o) for o in s]
    if not isinstance(s, dict): return s
    _writable(s)
    _distinct(s)
    out = {k: _part(k, v) for k, v in s.items() if k != 'x-guidance'}
    exact = FORMATS.get(out.get('format')) if isinstance(out.get('format'), str) else None
    if exact:
        del out['format']
        out['allOf'] = [*out.get('allOf', []), {'pattern': exact}]
    return out


def _part(k, v):
    if k in _DATA: return v
    if k in _NAMED and isinstance(v, dict): return {name: _exact(o) for name, o in v.items()}
    return _exact(v)


def _writable(s):
    "The escapes that write control characters could write any key twice over, so they are off."
    for k in ('const', 'enum', 'properties', 'required'):
        for text in _texts(list(s[k]) if k == 'properties' and isinstance(s[k], dict) else s.get(k)) if k in s else ():
            if re.search('[\0-\7\x0b\x0e-\x1f\x7f]', text):
                raise BadRequest(f'The JSON schema cannot be enforced: `{k}` has {text!r}, with a control character.')


def _texts(v):
    if isinstance(v, str): yield v
    elif isinstance(v, dict):
        for k, o in v.items(): yield from (k, *_texts(o))
    elif isinstance(v, list):
        for o in v: yield from _texts(o)


def _distinct(s):
    least, required = s.get('minProperties', 0), s.get('required')
    sure = len(set(required)) if isinstance(required, list) else 0
    if isinstance(least, (int, float)) and least > sure + 1:
        raise BadRequest(f'The JSON schema cannot be enforced: `minProperties` {least}, for a model may give one key '
                         'twice. List the keys in `required`.')


def _labels(labels):
    if isinstance(labels, str) or not labels or not all(isinstance(o, str) and o for o in labels):
        raise BadRequest(f'{labels!r} cannot be chosen from: give a list of texts that are not empty.')
    if len(set(labels)) < len(labels): raise BadRequest(f'A label is listed twice in {labels!r}.')


# --- messages -------------------------------------------------------------------------------------------------------
def _line(text): return ' '.join(text.replace('<non-verbose/>', '').split()).rstrip('.')


def _why(text):
    "What llguidance said, in one line that names the keyword."
    if m := re.match(r'Unimplemented keys: (\[.*?\])', text):
        return 'llguidance does not know ' + ', '.join(f'`{k}`' for k in json.loads(m[1]))
    if m := re.match(r'regex parse error:\s*\n\s*(.*?)\n.*error: (.*)', text, re.S):
        return f'`pattern` {m[1]!r}: {_line(m[2])}'
    if text.startswith('Unknown format'): return f'`format` {text.split(": ", 1)[-1]!r} is not known'
    if text.startswith('Resource'): return f'`$ref` to {text.split(chr(39))[1]!r} leads out of the schema'
    if text.startswith('oneOf'): return '`oneOf` whose branches are not plainly apart; use `anyOf`'
    if 'range' in text: return f'`minimum` or `maximum` is out of reach ({_line(text)})'
    return _line(text.split('\n')[0])
