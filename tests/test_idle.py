"Idle prefill: what is known of the next prompt is evaluated between turns, and given up for whoever asks."
import gc
import threading

import pytest

from rishi import Chat, resp_text
from rishi.idle import BATCH
from rishi.testing import ScriptedEngine

llama = pytest.mark.needs('llama')
TALK = ['My name is Zora.', 'What is 5 + 7?', 'What is my name?']
PAD = 'word ' * 60


@pytest.fixture
def engine(tiny):
    tiny.forget()
    return tiny


def settle(engine):
    "Wait until nothing is left to do in the background."
    done = threading.Event()
    def look():
        "Each batch is queued behind what waits, so two looks with nothing between them mean that there is none."
        seen.append(sum(len(s.cells) for s in engine.slots))
        if len(seen) > 2 and seen[-1] == seen[-3]: done.set()
        else: engine.owner.later(look)
    seen = []
    engine.owner.later(look)
    assert done.wait(60)


def own(chat, msg):
    "Tokens of the prompt that the next user's message may change."
    a, b = (chat.engine.tokenize(chat.render(m).encode(), True) for m in (msg, 'Zebras'))
    return len(a) - next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)


def talk(chat, messages=TALK):
    "The answers, and `(evaluated, own tokens, why)` of each turn."
    answers, rows = [], []
    for m in messages:
        n = own(chat, m)
        answers.append(chat(m))
        rows.append((chat.cache_report().evaluated, n, chat.cache_report().why))
        settle(chat.engine)
    return answers, rows


@llama
@pytest.mark.parametrize('think', [True, False])
def test_the_next_turn_evaluates_its_own_text_only(engine, think):
    plain, rows = talk(Chat(engine=engine, temp=0, think=think))
    assert all(n > 4 + m for n, m, _ in rows[1:])        # the template drops old thinking, an empty block too
    engine.forget()
    ahead, rows = talk(Chat(engine=engine, temp=0, think=think, idle_prefill=True))
    assert [resp_text(a) for a in ahead] == [resp_text(a) for a in plain] and 'Zora' in resp_text(ahead[-1])
    assert all(n == m and why == 'extends the conversation' for n, m, why in rows[1:])


@llama
def test_it_can_be_switched_at_any_time(engine):
    chat = Chat(engine=engine, temp=0)
    assert chat.idle_prefill is False
    chat(TALK[0])
    assert chat._idle is None
    chat.idle_prefill = True
    chat(TALK[1])
    settle(engine)
    chat.idle_prefill = False
    n = own(chat, TALK[2])
    chat(TALK[2])
    assert chat.cache_report().evaluated == n and chat._idle is None and chat.fork().idle_prefill is False


@llama
def test_logits_behind_it_are_those_of_a_cold_engine(engine):
    import numpy as np
    chat = Chat(engine=engine, temp=0, idle_prefill=True)
    for m in TALK[:2]: chat(m)
    settle(engine)
    ids = engine.tokenize(chat.render(TALK[2]).encode(), True)
    assert engine.hit(ids, chat._key) == len(ids) - own(chat, TALK[2])
    warm = engine.logits(ids)
    engine.forget()
    cold = engine.logits(ids)
    assert np.abs(warm - cold).max() <= .01 * np.abs(cold).max()


@llama
def test_what_changes_meanwhile_is_evaluated_anew(engine):
    chat = Chat(engine=engine, temp=0, idle_prefill=True)
    for m in TALK[:2]: chat(m)
    settle(engine)
    chat.rewind(1)
    assert resp_text(chat('What is 6 + 7?')) == 'The answer is 13.' and chat.cache_report().why == 'went back to turn 2'
    settle(engine)
    chat.reconfigure(sp='Whatever the user says, reply with exactly: pong')
    assert resp_text(chat('Hello')) == 'pong'


@llama
def test_nobody_is_evicted_for_it(tiny_chat):
    with Chat(tiny_chat, n_ctx=256, n_threads=1, temp=0, think=False, idle_prefill=True) as chat:
        other = Chat(engine=chat.engine, temp=0, think=False)
        other('word ' * 90, max_output_tokens=4)
        chat('word ' * 60, max_output_tokens=40)
        settle(chat.engine)
        other('Reply with exactly: pong')
        assert other.cache_report().why != 'evicted'


# --- requests come first; the order of events is what counts ----------------------------------------------------------
class Gated(ScriptedEngine):
    "Notes what is evaluated; once `gate` is set, a batch waits until it may go on or is broken off."

    def __init__(self, replies, **kw):
        super().__init__(replies, **kw)
        self.events, self.inside, self.go, self.gate = [], threading.Event(), threading.Event(), False

    def _eval(self, tokens, seq, at, stop):
        self.events.append(len(tokens))
        if self.gate:
            self.inside.set()
            while not (self.go.is_set() or stop.wait(.01)): pass
        return not stop.is_set()


REWRITES = ("{% for m in messages %}<|im_start|>{{ m.role }}{{ ' (old)' if not loop.last }}\n{{ m.content }}<|im_end|>"
            "{% endfor %}<|im_start|>assistant\n")


def gated(n=3, **kw):
    engine = Gated(['one', 'two', 'three'][:n], template=REWRITES)
    return engine, Chat(engine=engine, idle_prefill=True, **kw)


def ask_and_hang(engine, chat):
    "A turn, and then the idle work hangs in its first batch; returns how many batches there were."
    real, engine._decode = engine._decode, lambda *a: (real(*a), setattr(engine, 'gate', True))[0]
    chat(PAD)
    assert engine.inside.wait(60) and engine.events[-1] == BATCH
    engine._decode, engine.gate = real, False
    return len(engine.events)


def test_a_request_breaks_the_running_batch_off_and_comes_next():
    engine, chat = gated()
    chat('short')
    settle(engine)
    before = ask_and_hang(engine, chat)
    chat('again')
    assert engine.events[before] > BATCH and '(old)' in engine.prompts[-1]


def test_another_chats_request_comes_first_and_then_it_goes_on():
    engine, chat = gated()
    other = Chat(engine=engine)
    before = ask_and_hang(engine, chat)
    other('x' * 100)
    assert engine.events[before] > 100
    settle(engine)
    n = own(chat, 'again')
    chat('again')
    assert chat.cache_report().evaluated == n


@pytest.mark.parametrize('how', ['chat', 'engine', 'drop'])
def test_when_the_chat_or_the_engine_is_gone_nothing_happens(how):
    engine, chat = gated()
    other = Chat(engine=engine)
    before = ask_and_hang(engine, chat)
    if how == 'chat': chat.close()
    if how == 'engine': engine.close()
    if how == 'drop':
        del chat
        gc.collect()
    engine.go.set()
    if how == 'engine': assert engine.closed
    else:
        settle(engine)
        assert [s.owner for s in engine.slots] == [] and other('hi') and engine.events[before] > 4
    assert BATCH not in engine.events[before:]


def test_a_template_that_refuses_is_no_harm():
    engine = ScriptedEngine(['one', 'two'])
    chat, real = Chat(engine=engine, idle_prefill=True), engine.template.render
    def refuse(messages, **kw):
        from rishi.errors import BadRequest
        if len(messages) == 3 and messages[-1]['content'] != 'b': raise BadRequest('no')
        return real(messages, **kw)
    engine.template.render = refuse
    chat('a')
    settle(engine)
    assert resp_text(chat('b')) == 'two'


def test_one_shots_have_no_next_turn():
    engine = ScriptedEngine(['one'])
    chat = Chat(engine=engine, idle_prefill=True)
    chat.oneshot('a')
    before = engine.n_tokens
    settle(engine)
    assert engine.n_tokens == before
