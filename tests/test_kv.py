"Plans and reasons: pure lists."
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rishi.kv import common_prefix_len, plan, reason

ids = st.lists(st.integers(0, 3), max_size=40)


@given(ids, ids)
def test_common_prefix_is_the_longest_shared_start(a, b):
    n = common_prefix_len(a, b)
    assert a[:n] == b[:n] and (n in (len(a), len(b)) or a[n] != b[n])


@given(ids, ids, ids)
def test_a_shared_start_is_found_whatever_follows(start, a, b):
    assert common_prefix_len(start + [7] + a, start + [8] + b) == len(start)


@given(ids, ids.filter(bool))
def test_a_plan_leaves_something_to_evaluate_and_keeps_only_what_is_wanted(held, wanted):
    n = plan(held, wanted)
    assert 0 <= n < len(wanted) and held[:n] == wanted[:n]


def test_a_cache_that_cannot_be_trimmed_is_kept_whole_or_not_at_all():
    assert plan([1, 2, 3], [1, 2, 3, 4], can_trim=False) == 3
    assert plan([1, 2, 9], [1, 2, 3, 4], can_trim=False) == 0
    assert plan([1, 2, 3], [1, 2, 3], can_trim=False) == 0       # its last logits are gone


U1, A1, U2, A2, U3 = ({'role': r, 'content': c} for r, c in
                      [('user', 'a'), ('assistant', 'b'), ('user', 'c'), ('assistant', 'd'), ('user', 'e')])


@pytest.mark.parametrize('old,new,kept,had,shared,settings,expect', [
    (None, [U1], 0, 0, 0, False, ('first turn', False)),
    (None, [U1], 9, 0, 0, False, ('first turn', False)),
    ([U1, A1], [U1, A1, U2], 20, 20, 20, False, ('extends the conversation', False)),
    ([U1, A1], [U1, A1, U2], 19, 20, 20, False, ('extends the conversation', False)),
    ([U1, A1], [U1, A1, U2], 0, 20, 20, False, ('evicted', True)),
    ([U1, A1, U2, A2], [U1, A1, U3], 12, 30, 12, False, ('went back to turn 2', False)),
    ([U1, A1, U2, A2], [U3], 3, 30, 3, False, ('went back to turn 1', False)),
    ([U1, A1, U2, A2], [U1, dict(A1, content='B'), U2, A2, U3], 5, 30, 5, False, ('history edited at message 2', True)),
    ([U1, A1], [U1, A1, U2], 5, 20, 5, False, ('template rewrote message 2', True)),
    ([U1, A1], [U1, A1, U2], 5, 20, 5, True, ('settings changed', True)),
])
def test_reasons(old, new, kept, had, shared, settings, expect):
    assert reason(old, new, kept=kept, had=had, shared=shared, settings=settings, changed_at=lambda: 2) == expect
