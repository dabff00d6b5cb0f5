"""`chat.map`: many prompts behind one prefix, several at once. Their sequences share the cells of the prefix and are
decoded in one batch; a row that has ended makes place for the next.

A map is a row of short jobs on the engine's thread, so that other requests get in between. Its rows have slots of their
own: no conversation is given up for them, rather fewer rows run at once.
"""
from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from .engine import PoolFull, Token
from .errors import BadRequest, ContextWindowExceededError, EngineError, RishiError
from .kv import Slot, choose, common_prefix_len
from .owner import Stop
from .turn import Turn
from .types import Sampling, resp_text

__all__ = ['MapMixin']

SLICE = .15     # seconds that one job takes; another request waits no longer than that and one batch


class MapMixin:
    "The part of a Chat that answers many prompts."
    map_res: list | None = None          # the results of the last map, None where one is missing

    def map(self, prompts, *, schema=None, sp=None, messages=None, max_output_tokens=None, batch=8, progress=True,
            **settings) -> list:
        """Answer each of `prompts` (texts: a list, a column of a table) on its own, as if it were the next message of
        the conversation, or of `messages` (`()`: none); the history does not change. Returns a list of Resp in the
        order of the prompts, for a pandas Series a Series with its index. With `schema` the results are values of it,
        as `structured` returns them. A prompt that fails has its error (a RishiError) in the place of its result.

        The common prefix is evaluated once, and up to `batch` rows run at a time where the engine can. `progress` shows
        a bar, or is called with (done, total). `cancel()` ends it: what is not finished holds an EngineError. After an
        interrupt the rows that were finished are in `chat.map_res`. `sp` and `settings` are those of `oneshot`."""
        rows = _rows(prompts)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise BadRequest(f'batch={batch!r} cannot be used: it must be a whole number of at least 1.')
        side, parse = self._for_rows(schema, sp, self.hist if messages is None else messages, settings)
        self.map_res, stop = [None] * len(rows), Stop()
        work = _together if self.engine.batched else _one_by_one
        self._stops.append(stop)
        try:
            with _shown(progress, len(rows)) as tell:
                with closing(work(side, rows, side._sampling(max_output_tokens), batch, stop)) as answers:
                    for i, answer in answers:
                        self.map_res[i] = parse(answer)
                        tell()
        finally: self._stops.remove(stop)
        self.map_res = [_unfinished(i) if r is None else r for i, r in enumerate(self.map_res, 1)]
        return _like(prompts, self.map_res)

    def _for_rows(self, schema, sp, messages, settings):
        "The chat that answers the rows, and what makes a result of an answer."
        sp = self.sp if sp is None else sp
        if schema is None: return self._aside(messages, sp=sp, **settings), lambda answer: answer
        from .grammar import for_engine
        from .schema import to_schema
        json_schema, parse = to_schema(schema)
        grammars = for_engine(self.engine)
        grammars.json(json_schema)       # what cannot be enforced is told now
        return self._side(sp, messages, lambda: grammars.json(json_schema), **settings), _value(parse)


def _rows(prompts) -> list:
    if isinstance(prompts, (str, bytes, Mapping)) or hasattr(prompts, 'columns') or not hasattr(prompts, '__iter__'):
        raise BadRequest(f'map cannot take a {type(prompts).__name__}: give a list of texts, or one column of a table.')
    return list(prompts)


def _like(prompts, results):
    "A Series for a Series. Whoever has one has imported pandas."
    pandas = sys.modules.get('pandas')
    if pandas is None or not isinstance(prompts, pandas.Series): return results
    out = pandas.Series(index=prompts.index, name=prompts.name, dtype=object)
    for i, r in enumerate(results): out.iat[i] = r
    return out


def _value(parse):
    "What makes a value of an answer that a schema constrained."
    def value(answer):
        if isinstance(answer, RishiError): return answer
        how = answer['meta']['finish_reason']
        if how != 'stop': return EngineError(f'The answer was not complete ({how}): allow more with max_output_tokens.')
        try: return parse(resp_text(answer))
        except ValueError as e: return EngineError(f'The answer is no value of the schema: {" ".join(str(e).split())}')
    return value


def _unfinished(i): return EngineError(f'Row {i} was not finished, since the map was cancelled; ask it again.')


@contextmanager
def _shown(progress, total):
    "What is to be called after each row."
    done = 0
    def count():
        nonlocal done
        done += 1
        if callable(progress): progress(done, total)
        elif bar: bar.update()
    bar = None
    if progress and not callable(progress):
        from huggingface_hub.utils import tqdm
        bar = tqdm(total=total, unit='row')
    try: yield count
    finally:
        if bar: bar.close()


# --- one after another ------------------------------------------------------------------------------------------------
def _one_by_one(side, texts, sampling, batch, stop) -> Iterator[tuple]:
    "(index, answer) of each text, where an engine evaluates one sequence at a time."
    for i, text in enumerate(texts):
        try:
            turn = _turn(side, text)
            for _ in turn.go(sampling, stop): pass
        except RishiError as e:
            side.engine.check_open()
            yield i, e
            continue
        if stop.is_set(): return
        yield i, turn.resp


def _turn(side, text): return Turn(side, side._message('' if text is None else text), ())


# --- several in one batch ---------------------------------------------------------------------------------------------
def _together(side, texts, sampling, batch, stop) -> Iterator[tuple]:
    "(index, answer) of each text, as they end."
    engine, pool, todo = side.engine, _Pool(side.engine, batch), enumerate(texts)
    def fill():
        "Prepare rows, here, while the engine's thread works on others; (index, error) of those that cannot be asked."
        while len(pool.waiting) < max(batch, 2) and (item := next(todo, None)):
            try: pool.waiting.append(_row(side, *item, sampling))
            except RishiError as e: yield item[0], e
    try:
        yield from fill()
        pool.share()
        while pool.left and not stop.is_set():
            with closing(engine.owner.stream(pool.work, stop)) as job:
                for row in job:
                    if not isinstance(row, _Row): continue
                    yield row.index, row.error or _answer(row, side)
                    yield from fill()
        engine.check_open()
    finally: engine.owner.later(pool.close)


@dataclass(eq=False)
class _Row:
    "One prompt: `ids` are its tokens, `prompt` of them, and then those of its answer; `slot` holds the first of them."
    index: int
    ids: list[int]
    prompt: int
    sampling: Sampling | None = None     # its `max_tokens` are those of this row
    constraint: object = None
    turn: Turn | None = None
    split: object = None
    draw: Callable | None = None         # samples the next token
    slot: Slot = field(default_factory=Slot)
    finish: str = ''
    error: RishiError | None = None

    @property
    def missing(self): return len(self.ids) - len(self.slot.cells)


def _row(side, index, text, sampling):
    "Render and tokenise one prompt; what it shares with the row before is not tokenised again."
    turn = _turn(side, text)
    _, enc, start, room = turn._prompt(sampling.max_tokens)
    side._known, constraint = enc, side._constraint()
    if not enc.ids: raise EngineError('The prompt is empty: the chat template rendered no text.')
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
    return _Row(index, list(enc.ids), len(enc.ids), sampling, constraint, turn, turn._splitter(constraint, start))


def _answer(row, side):
    "The answer of a row that has ended, told apart as in a turn."
    tokens = (Token(i, side.engine.piece(i)) for i in row.ids[row.prompt:])
    for _ in row.turn._read(tokens, row.split, []): pass
    row.turn.finish = row.finish
    row.turn.close_step()
    return row.turn.resp


class _Pool:
    "The rows that run. Apart from `waiting` it is the engine's thread alone that touches them while a job runs."

    def __init__(self, engine, width):
        self.engine, self.width, self.waiting, self.rows, self.prefix = engine, width, deque(), [], None

    @property
    def left(self) -> bool: return bool(self.rows or self.waiting)

    def share(self):
        "What the first rows begin with is evaluated once, before them."
        first, *others = [r.ids for r in self.waiting] or [[]]
        n = min((common_prefix_len(first, ids) for ids in others), default=0)
        if n: self.prefix = _Row(-1, first[:n], n)

    def work(self, stop, emit):
        "One job: some batches; each row that ends is emitted."
        until = time.perf_counter() + SLICE
        self._look()
        while self._join() and not stop.is_set():
            for row in self._step(stop): emit(row)
            if time.perf_counter() > until: return

    def close(self):
        "Give all cells back."
        mine = {*self.rows, *self.waiting, self.prefix}
        self.engine._drop([s for s in self.engine.slots if isinstance(s.owner, _Row) and s.owner in mine])

    # --- who runs -----------------------------------------------------------------------------------------------------
    def _there(self, row): return row.slot.seq is not None and row.slot in self.engine.slots

    def _look(self):
        "Others ran since the last job: those rows that stay were of use."
        self._lost()
        self.engine._clock += 1
        for r in (*self.rows, *filter(None, [self.prefix])): r.slot.used = self.engine._clock

    def _lost(self) -> bool:
        "Rows whose slot was taken are to be seated again; True when there are some."
        lost = [r for r in self.rows if not self._there(r)]
        self.rows = [r for r in self.rows if self._there(r)]
        self.waiting.extendleft(reversed(lost))
        return bool(lost)

    def _join(self) -> bool:
        "Seat rows while there is room; False when nothing is left to do."
        if self.prefix and self.waiting and not self.rows and not self._there(self.prefix):
            if self._room(self.prefix): self._seat(self.prefix)
            else: self.prefix = None
        while self.waiting and not self._shares() and len(self.rows) < self.width:
            if self.rows and not self._room(self.waiting[0]): break
            self.rows.append(row := self.waiting.popleft())
            self._seat(row)
        if self._lost(): self.width = max(len(self.rows), 1)          # seating one took the cells of another
        return self.left

    def _shares(self) -> bool: return bool(self.prefix and self._there(self.prefix) and self.prefix.missing)

    def _room(self, row) -> bool:
        "Whether a sequence is free for a row, or held by nobody and not what the row begins with."
        eng = self.engine
        if sum(s.seq is not None for s in eng.slots) < eng.n_seq: return True
        return eng._spare(choose(eng.slots, row, row.ids, eng.can_trim, False).slot)

    def _seat(self, row): row.slot = self.engine._place(row.ids, row, branch=False)

    # --- one batch ----------------------------------------------------------------------------------------------------
    def _step(self, stop) -> list[_Row]:
        "Evaluate one batch and draw the next tokens; returns the rows that have ended."
        parts = list(self._parts())
        ended = [r for r in self.rows if r.error] if not self._eval(parts, stop) else self._drawn(parts)
        for row in ended:
            self.rows.remove(row)
            self._drop(row)
            row.draw = None
        return ended

    def _parts(self):
        "(row, tokens) of the next batch: first one token of each that is being written, then what fits of the prompts."
        left = self.engine.batch
        for row in [self.prefix] if self._shares() else sorted(self.rows, key=lambda r: r.missing):
            n = len(row.slot.cells)
            if left: yield row, row.ids[n:n + left]
            left -= min(row.missing, left)

    def _eval(self, parts, stop) -> bool:
        "Evaluate them; False when it did not come to that."
        rows = [(tokens, row.slot.seq, len(row.slot.cells)) for row, tokens in parts]
        if self.engine.snaps: stop = self.engine._never       # broken off, it would cost the state of every row
        try: whole = self.engine._eval_rows(rows, stop)
        except PoolFull: return self._narrow(parts[0][0])
        if not whole:
            for row, _ in parts: self.engine._cut(row.slot, len(row.slot.cells))
        return whole

    def _narrow(self, row) -> bool:
        "Make room: of what is nobody's, then with one row less, and for a single row from whoever has some."
        if self.engine._spare(): self.engine._make_room(None)
        elif len(self.rows) > 1:
            self.waiting.appendleft(last := self.rows.pop())
            self.width = len(self.rows)
            self._drop(last)
        elif self.engine._make_room(row.slot): pass
        elif row is self.prefix:
            self._drop(row)
            self.prefix = None
        else: row.error = ContextWindowExceededError(len(row.ids), self.engine.n_ctx)
        return False

    def _drop(self, row): self.engine._drop([s for s in self.engine.slots if s.owner is row])

    def _drawn(self, parts) -> list[_Row]:
        "Take the parts in and draw a token for each row that is evaluated to its end; returns those that have ended."
        at, ended = -1, []
        for row, tokens in parts:
            row.slot.cells.extend(tokens)
            at += len(tokens)
            if row is not self.prefix and not row.missing and self._draw(row, at): ended.append(row)
        return ended

    def _draw(self, row, at) -> bool:
        "Draw the next token of a row from the logits of token `at` of the batch; True when that was its last."
        try:
            row.draw = row.draw or self.engine._sampler(row.sampling, row.constraint)
            token = row.draw(at)
        except RishiError as e:
            row.error = e
            return True
        if self.engine.is_eog(token): row.finish = 'stop'
        else:
            row.ids.append(token)
            if row.constraint and row.constraint.done: row.finish = 'stop'
            elif len(row.ids) - row.prompt >= row.sampling.max_tokens: row.finish = 'length'
        return bool(row.finish)
