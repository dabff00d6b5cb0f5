"""Chats on one small engine do all that users do, in any order: no wrong answer, no leak of cells, no dead engine.

Each answer is held against a second engine, which is cold; each step against the sequences of the native memory.
"""
import gc

import numpy as np
import pytest
from gguf_maker import write
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from untrimmable import MODELS

from rishi import Chat, resp_text
from rishi.core import finish, load_engine
from rishi.errors import ContextWindowExceededError
from rishi.history import checked, turns
from rishi.types import Progress, TextDelta, ThinkingDelta

SAY = ['My name is Zora.', 'What is my name?', 'What is 5 + 7?', 'Tell me a story about Ana.', 'Count from 1 to 50.',
       'Reply with exactly: pong', 'Ünïcödé? 🦊']
SYSTEM = ['', 'Whatever the user says, reply with exactly: pong. ' * 4]
CHATS, HOST = 4, 600_000
# (model, sequences, runs, by how much of their scale logits may differ). Cells lie elsewhere in the memory than in that
# of a cold engine, and so are summed in another order, which weights of 8 bits make much of.
RUNS = [('tiny-chat', 3, 40, .02), ('tiny-chat', 1, 10, .02), *((name, 3, 20, .001) for name in MODELS)]
say, which, length = st.sampled_from(SAY), st.integers(0, CHATS - 1), st.integers(1, 24)


class CacheMachine(RuleBasedStateMachine):
    "What users do."

    def __init__(self, engine, cold, folder, noise):
        super().__init__()
        self.engine, self.cold, self.noise = engine, cold, noise
        self.chats, self.file, self.saved = [], folder/'chat.kv', None

    # --- chats come and go ------------------------------------------------------------------------------------------
    @initialize(sp=st.sampled_from(SYSTEM))
    def begin(self, sp): self.open(sp, False, False)

    @precondition(lambda self: len(self.chats) < CHATS)
    @rule(sp=st.sampled_from(SYSTEM), think=st.booleans(), idle=st.booleans())
    def open(self, sp, think, idle):
        self.chats.append(Chat(engine=self.engine, sp=sp, think=think, temp=0, idle_prefill=idle))

    @precondition(lambda self: len(self.chats) < CHATS)
    @rule(i=which)
    def fork(self, i): self.chats.append(self.chat(i).fork())

    @precondition(lambda self: len(self.chats) > 1)
    @rule(i=which)
    def close(self, i):
        chat = self.chat(i)
        self.chats.remove(chat)
        chat.close()

    # --- turns ------------------------------------------------------------------------------------------------------
    @rule(i=which, msg=say, n=length)
    def turn(self, i, msg, n):
        chat = self.chat(i)
        asked = chat.preflight(msg, n)
        if self.refused(chat, msg, n): return
        assert chat.cache_report().steps[0].prompt_tokens == asked.prompt_tokens
        self.right(chat)

    @rule(i=which, n=length)
    def regenerate(self, i, n):
        chat = self.chat(i)
        if not chat.hist: return
        if chat.hist[-1]['role'] == 'assistant': chat.hist.pop()
        if not self.refused(chat, None, n): self.right(chat)

    @rule(i=which, msg=say, k=st.integers(0, 12), how=st.sampled_from(['close', 'cancel']))
    def interrupt(self, i, msg, k, how):
        chat, n = self.chat(i), 0
        try:
            stream = chat(msg, stream='events')
            for e in stream:
                n += isinstance(e, (TextDelta, ThinkingDelta))
                if n < k or k == 0 and not isinstance(e, Progress): continue
                if how == 'close': break
                chat.cancel()
            stream.close()
        except ContextWindowExceededError: return
        self.right(chat)

    @rule(i=which)
    def too_long(self, i):
        before = list(self.chat(i).hist)
        assert self.refused(self.chat(i), 'word ' * 600, 4) and self.chat(i).hist == before

    # --- beside the conversation ------------------------------------------------------------------------------------
    @rule(i=which, msg=say, n=length)
    def oneshot(self, i, msg, n):
        chat = self.chat(i)
        cells = lambda: [list(s.cells) for s in self.engine.slots if s.owner is chat._key]
        mine = lambda: self.engine.owner.call(cells)
        there, before = list(chat.hist), mine()
        chat.oneshot(msg, max_output_tokens=n)
        assert chat.hist == there and (chat.idle_prefill or mine() in (before, []))   # []: no room, nor in host memory

    @rule(i=which, text=say)
    def classify(self, i, text):
        warm, cold = self.chat(i), Chat(engine=self.cold, think=self.chat(i).think)
        a, b = (c.classify(text, ['good', 'bad'], probs=True) for c in (warm, cold))
        assert abs(a['good'] - b['good']) < .05
        cold.close()

    @rule(i=which, rows=st.lists(say, min_size=1, max_size=4), n=length)
    def map(self, i, rows, n):
        chat = self.chat(i)
        try: out = chat.map(rows, messages=(), max_output_tokens=n, progress=False)
        except ContextWindowExceededError: return
        side = chat._aside((), sp=chat.sp)
        for row, answer in zip(rows, out, strict=True):
            assert not isinstance(answer, Exception), answer
            prompt = self.tokens(side.render(row))
            self.chosen(prompt, [*prompt, *self.engine.tokenize(said(answer).encode(), False)][:len(prompt) + 1])

    # --- going back -------------------------------------------------------------------------------------------------
    @rule(i=which, n=st.integers(0, 3))
    def rewind(self, i, n): self.chat(i).rewind(min(n, len(turns(self.chat(i).hist))))

    @rule(i=which, at=st.integers(0, 9), text=say)
    def edit(self, i, at, text):
        hist = self.chat(i).hist
        if hist: hist[at % len(hist)] = hist[at % len(hist)] | {'content': text}

    @rule(i=which, sp=st.sampled_from(SYSTEM))
    def reconfigure(self, i, sp): self.chat(i).reconfigure(sp=sp)

    # --- the cache --------------------------------------------------------------------------------------------------
    @rule(all=st.booleans())
    def lose(self, all):
        if all: self.engine.forget()
        else: self.engine.owner.call(lambda: self.engine._make_room(None))

    @rule(i=which, back=st.booleans())
    def keep(self, i, back):
        chat = self.chat(i)
        if back and self.saved is not None:
            chat.load_cache(self.file)
            assert chat.hist == self.saved
        else:
            chat.save_cache(self.file)
            self.saved = list(chat.hist)

    # --- what holds always ------------------------------------------------------------------------------------------
    @invariant()
    def histories_are_conversations(self):
        for c in self.chats: assert checked(c.hist) == c.hist

    @invariant()
    def slots_are_what_the_memory_holds(self):
        held, slots, parked, owners = self.look()
        assert sorted(slots) == sorted((s, n) for s, n in enumerate(held) if n or s in dict(slots))
        assert parked <= HOST and len(owners) == len(set(owners)) and set(owners) <= {c._key for c in self.chats}

    def teardown(self):
        for c in self.chats: c.close()
        self.chats.clear()
        gc.collect()
        held, slots, parked, _ = self.look()
        assert not any(held) and not slots and not parked and not self.engine.keys and not self.engine.closed

    # --- help -------------------------------------------------------------------------------------------------------
    def chat(self, i): return self.chats[i % len(self.chats)]
    def tokens(self, text): return self.engine.tokenize(text.encode(), first=True)

    def look(self):
        "Cells of each sequence in the native memory; (sequence, cells) of the slots; bytes in host memory; owners."
        from rishi.llama.native import L
        def job():
            memory, slots = self.engine._native.memory, self.engine.slots
            parked = [s for s in slots if s.seq is None] + [*{e for s in slots for e in s.edges.values()}]
            return ([L.llama_memory_seq_pos_max(memory, s) + 1 for s in range(self.engine.n_seq)],
                    [(s.seq, len(s.cells)) for s in slots if s.seq is not None],
                    sum(len(o.state) for o in parked), [s.owner for s in slots if s.owner is not None])
        return self.engine.owner.call(job)

    def refused(self, chat, msg, n):
        "Whether the window was too small, which is the only way for a turn to fail."
        before = list(chat.hist)
        try: chat(msg, max_output_tokens=n)
        except ContextWindowExceededError:
            assert chat.hist == before
            return True
        return False

    def right(self, chat):
        "What was generated last is what a cold engine chooses, and so are the logits behind it."
        report = chat.cache_report().steps
        if not report: return
        ids, n = list(chat._known.ids), report[-1].prompt_tokens
        self.chosen(ids[:n], ids)
        warm, cold = self.engine.logits(ids), self.cold.logits(ids)
        assert np.abs(warm - cold).max() <= self.noise * np.abs(cold).max()

    def chosen(self, prompt, ids):
        "Each of `ids` behind the prompt has the best logits, but for ties."
        self.cold.forget()
        for k in range(len(prompt), len(ids)):
            logits = self.cold.logits(ids[:k])
            assert logits[ids[k]] >= logits.max() - self.noise * np.abs(logits).max()


def said(answer): return (f'<think>\n{answer["thinking"]}' if answer.get('thinking') else '') + resp_text(answer)


@pytest.mark.needs('llama')
@pytest.mark.parametrize('model, sequences, runs, noise', RUNS)
def test_nothing_that_users_do_spoils_the_cache(model, sequences, runs, noise, tiny_chat, tmp_path):
    path = tiny_chat if model == 'tiny-chat' else write(tmp_path/f'{model}.gguf', MODELS[model]())
    more = dict(n_seq_max=sequences, flash_attn_type=0, swa_full=False, n_batch=64)
    load = lambda: finish(load_engine(path, n_threads=1, n_ctx=512, eng_kw=more))
    engine, cold = load(), load()
    engine.host_bytes = HOST
    steps = settings(max_examples=runs, stateful_step_count=25, derandomize=True, deadline=None, print_blob=True,
                     suppress_health_check=list(HealthCheck))
    try: run_state_machine_as_test(lambda: CacheMachine(engine, cold, tmp_path, noise), settings=steps)
    finally:
        engine.close()
        cold.close()
