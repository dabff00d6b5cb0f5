"Text to ids: what was generated stays as it was generated."
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rishi.encode import Encoded, encode, extend
from rishi.testing import ScriptedEngine

CHAT = '<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n'
words = st.sampled_from(['a', 'é', '\n', '<|im_start|>', '<|im_end|>', '<', '|', '😀'])
parts = st.lists(words, max_size=12).map(''.join)


@pytest.fixture(scope='module')
def vocab():
    v = ScriptedEngine()
    yield v
    v.close()


def joined(e, vocab): return b''.join(map(vocab.piece, e.ids))


def test_generated_ids_are_kept_and_only_the_rest_is_tokenised(vocab):
    known = encode(CHAT.format('hi'), Encoded(), vocab)
    known = extend(known, b'four', [vocab._next('four')], vocab)      # one token, where the tokenizer gives four
    new = encode(CHAT.format('hi') + 'four<|im_end|>\n' + CHAT.format('more'), known, vocab)
    assert new.ids[:len(known.ids)] == known.ids
    assert joined(new, vocab) == new.data


def test_a_change_cuts_at_the_last_control_token_before_it(vocab):
    known = encode(CHAT.format('hello there'), Encoded(), vocab)
    new = encode(CHAT.format('hello world'), known, vocab)
    assert new.ids[0] == known.ids[0] and joined(new, vocab) == CHAT.format('hello world').encode()


def test_plain_text_behind_what_is_known_is_tokenised_with_it(vocab):
    "A token could reach across such a border."
    calls = []
    real = vocab.tokenize
    vocab.tokenize = lambda data, first: calls.append(data) or real(data, first)
    try: encode('ab', extend(Encoded(), b'a', [97], vocab), vocab)
    finally: del vocab.tokenize
    assert calls[-1] == b'ab'


@given(parts, parts, parts)
def test_whatever_is_known_the_ids_stand_for_the_text(first, second, third):
    vocab = ScriptedEngine()
    try:
        known = Encoded()
        for text in (first, second, first + third):
            known = encode(text, known, vocab)
            assert known.data == text.encode() == joined(known, vocab)
            assert list(known.ids) == vocab.tokenize(text.encode(), True)
    finally: vocab.close()


@pytest.mark.needs('llama')
@pytest.mark.parametrize('text', ['Hello wörld', 'naïve 😀 ١٢٣', 'tabs\tand\r\nlines\n\n\n', '<|im_start|>',
                                  'a<|im_end|>b', ''])
def test_a_real_tokenizer_gives_the_same_ids_with_and_without_memory(text, tiny):
    base = encode(CHAT.format('one'), Encoded(), tiny)
    longer = CHAT.format('one') + 'yes<|im_end|>\n' + CHAT.format(text)
    assert encode(longer, base, tiny).ids == encode(longer, Encoded(), tiny).ids
    assert joined(encode(longer, base, tiny), tiny) == longer.encode()
