"The owner thread: order, errors, stop, close."
import gc
import threading
import weakref

import pytest

from rishi.errors import EngineBusy, EngineClosed
from rishi.owner import Owner, Stop
from rishi.types import Progress


@pytest.fixture
def owner():
    o = Owner('test')
    yield o
    o.close()


def test_jobs_run_on_one_thread_that_is_not_the_callers(owner):
    names = {owner.call(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {'rishi-test'}


def test_what_a_job_emits_and_returns_reaches_the_caller(owner):
    def job(stop, emit):
        emit(1), emit(2)
        return 'end'
    def read():
        seen.append((yield from owner.stream(job, Stop())))
    seen = []
    assert list(read()) == [1, 2] and seen == ['end']


def test_an_error_is_raised_at_the_caller_and_the_owner_goes_on(owner):
    with pytest.raises(ZeroDivisionError): owner.call(lambda: 1 / 0)
    assert owner.call(lambda: 'alive') == 'alive'


def test_leaving_a_stream_stops_its_job_and_waits_for_it(owner):
    ended = threading.Event()
    def job(stop, emit):
        while not stop.is_set(): emit(0)
        ended.set()
    it = owner.stream(job, Stop())
    next(it)
    it.close()
    assert ended.is_set()


def test_a_second_request_waits_and_says_so_or_is_refused(owner):
    go = Stop()
    first = owner.stream(lambda stop, emit: (emit('on'), go.wait()), Stop())
    assert next(first) == 'on'
    with pytest.raises(EngineBusy, match='another request'): next(owner.stream(lambda s, e: None, Stop(), wait=False))
    second = owner.stream(lambda stop, emit: emit('two'), Stop())
    assert next(second) == Progress('wait', 0, 0)
    go.set()
    assert list(first) == [] and list(second) == ['two']


def test_leaving_while_another_request_runs_does_not_wait_for_it(owner):
    go, ran = Stop(), []
    first = owner.stream(lambda stop, emit: (emit('on'), go.wait()), Stop())
    next(first)
    flag = Stop()
    second = owner.stream(lambda stop, emit: ran.append(stop.is_set()), flag)
    assert next(second) == Progress('wait', 0, 0)
    second.close()
    assert flag.is_set() and not ran
    go.set()
    assert list(first) == [] and owner.call(lambda: 'next') == 'next' and ran == [True]


def test_a_closed_owner_takes_nothing_and_closes_twice(owner):
    done = []
    owner.close(lambda: done.append(threading.current_thread().name))
    owner.close(lambda: done.append('again'))
    assert done == ['rishi-test']
    with pytest.raises(EngineClosed, match='closed'): owner.call(lambda: 1)


def test_closing_stops_what_runs(owner):
    it = owner.stream(lambda stop, emit: (emit('on'), stop.wait()), Stop())
    next(it)
    owner.close()
    assert list(it) == []


def test_the_stop_flag_is_a_c_string():
    s = Stop()
    assert s.flag.value == b'' and not s.is_set()
    s.set()
    assert s.flag.value and s.is_set()


def test_an_owner_holds_no_job_when_it_is_idle(owner):
    class Big: pass
    big = Big()
    ref = weakref.ref(big)
    owner.call(lambda big=big: None)
    del big
    owner.call(lambda: None)
    gc.collect()
    assert ref() is None
