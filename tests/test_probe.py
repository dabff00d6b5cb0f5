"""The self-check: what it concludes from the deaths of its trials, and what it remembers."""
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rishi.errors import BackendMissing, EngineDied
from rishi.llama import probe

ROOT = Path(__file__).parents[1]
DIE = 'import os, signal; os.kill(os.getpid(), signal.{})'


class Trials:
    "Each call runs the next of `codes` (Python source) in a real child; remembers what was asked."

    def __init__(self, *codes): self.codes, self.asked = list(codes), []

    def __call__(self, extra_bufts):
        self.asked.append(extra_bufts)
        p = subprocess.run([sys.executable, '-c', self.codes.pop(0)], capture_output=True, text=True)
        return p.returncode, (p.stderr.strip().splitlines() or [''])[-1]


@pytest.fixture
def lib(tmp_path, monkeypatch):
    "A stand-in for the installed package: only its folder is looked at."
    lib = tmp_path/'site'/'llama_cpp'
    (lib/'lib').mkdir(parents=True)
    (lib/'__init__.py').write_text('__version__ = "9.9.9"\n')
    (lib/'lib'/'libllama.so').write_bytes(b'one')
    monkeypatch.setattr(probe, 'library', lambda: lib)
    monkeypatch.delenv('LLAMA_CPP_LIB_PATH', raising=False)
    return lib


def saved(folder): return sorted(folder.glob('*')) if folder.exists() else []


def test_a_library_that_works_is_asked_once(lib, tmp_path):
    run = Trials('pass')
    v = probe.check(run, tmp_path/'c')
    assert v == probe.check(run, tmp_path/'c') == probe.Verdict(True, True, 'decodes')
    assert run.asked == [True] and len(saved(tmp_path/'c')) == 1


def test_death_by_signal_turns_extra_buffers_off(lib, tmp_path):
    run = Trials(DIE.format('SIGILL'), 'pass')
    v = probe.check(run, tmp_path/'c')
    assert v.ok and not v.extra_bufts and 'SIGILL' in v.detail and 'without' in v.detail
    assert probe.check(run, tmp_path/'c') == v and run.asked == [True, False]


def test_nothing_helps(lib, tmp_path):
    run = Trials(DIE.format('SIGILL'), DIE.format('SIGSEGV'))
    for _ in range(2):
        with pytest.raises(EngineDied) as e: probe.check(run, tmp_path/'c')
        said = str(e.value)
        assert 'SIGILL' in said and 'SIGSEGV' in said and said.endswith(probe.REBUILD) and '\n' not in said
    assert run.asked == [True, False], 'the bad verdict is remembered too'


def test_rebuild_line():
    assert probe.REBUILD == ('CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-cache-dir '
                             '--no-binary llama-cpp-python llama-cpp-python')


def test_a_killed_trial_says_nothing_about_the_library(lib, tmp_path):
    with pytest.raises(EngineDied, match='killed'): probe.check(Trials(DIE.format('SIGKILL')), tmp_path/'c')
    assert not saved(tmp_path/'c')
    assert probe.check(Trials('pass'), tmp_path/'c').ok


def test_an_exception_of_the_trial_is_told(lib, tmp_path):
    with pytest.raises(EngineDied, match='OSError: libgomp is missing'):
        probe.check(Trials('raise OSError("libgomp is missing")'), tmp_path/'c')
    assert not saved(tmp_path/'c')


def test_windows_fault_codes(lib, tmp_path):
    codes = {True: 0xC000001D, False: 0}
    v = probe.check(lambda extra: (codes[extra], ''), tmp_path/'c')
    assert v.ok and not v.extra_bufts and '0xc000001d' in v.detail


@pytest.mark.parametrize('change', ['version', 'bytes', 'mtime', 'machine', 'flags'])
def test_another_build_or_machine_is_asked_again(lib, tmp_path, monkeypatch, change):
    so = lib/'lib'/'libllama.so'
    probe.check(Trials('pass'), tmp_path/'c')
    if change == 'version': (lib/'__init__.py').write_text('__version__ = "10.0"\n')
    if change == 'bytes': so.write_bytes(b'other')
    if change == 'mtime': os.utime(so, (1, 1))
    if change == 'machine': monkeypatch.setattr(probe, 'cpu_name', lambda: 'another')
    if change == 'flags': monkeypatch.setattr(probe, 'cpu_flags', lambda: frozenset({'amx_tile'}))
    run = Trials('pass')
    probe.check(run, tmp_path/'c')
    assert run.asked == [True]


@pytest.mark.parametrize('text', ['', '{', '[]', '{"ok": true}', 'null', '\xff\x00',
                                  '{"ok": 1, "extra_bufts": true, "detail": ""}',
                                  '{"ok": true, "extra_bufts": true, "detail": "", "more": 1}'])
def test_a_corrupt_verdict_is_made_anew(lib, tmp_path, text):
    probe.check(Trials('pass'), tmp_path/'c')
    [path] = saved(tmp_path/'c')
    path.write_text(text, 'latin-1')
    run = Trials('pass')
    assert probe.check(run, tmp_path/'c').ok and run.asked == [True]
    assert json.loads(path.read_text())['ok'] is True


def test_a_cache_folder_that_cannot_be_made(lib, tmp_path):
    (tmp_path/'file').write_text('')
    run = Trials('pass', 'pass')
    assert probe.check(run, tmp_path/'file'/'c').ok and probe.check(run, tmp_path/'file'/'c').ok
    assert run.asked == [True, True]


def test_no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(probe.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(BackendMissing, match='pip install'): probe.check(folder=tmp_path)


def test_a_trial_that_hangs_is_given_up(lib, monkeypatch, tmp_path):
    def run(*a, **kw): raise subprocess.TimeoutExpired(a, kw['timeout'])
    monkeypatch.setattr(probe.subprocess, 'run', run)
    with pytest.raises(EngineDied, match='did not end'): probe.check(folder=tmp_path/'c')
    assert not saved(tmp_path/'c')


def test_the_model_is_remade_byte_for_byte():
    made = runpy.run_path(str(ROOT/'tests/models/scripts/make_probe.py'))['model_bytes']()
    assert made == (ROOT/'rishi/llama/probe.gguf').read_bytes() and len(made) < 400_000


def test_the_parent_stays_free_of_the_library(tmp_path):
    code = 'import sys, rishi.llama.probe; sys.exit("llama_cpp" in sys.modules or "numpy" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


@pytest.mark.needs('llama')
@pytest.mark.parametrize('extra', [True, False])
def test_the_real_trial(extra):
    assert probe._trial(probe.library(), extra)[0] == 0


@pytest.mark.needs('llama')
def test_the_real_trial_tells_a_bad_model(monkeypatch, tmp_path):
    (tmp_path/'probe.gguf').write_bytes(b'no model')
    (tmp_path/'trial.py').write_bytes((probe.HERE/'trial.py').read_bytes())
    monkeypatch.setattr(probe, 'HERE', tmp_path)
    code, said = probe._trial(probe.library(), True)
    assert code == 1 and 'did not load' in said


@pytest.mark.needs('llama')
def test_the_real_check_is_remembered(tmp_path):
    v = probe.check(folder=tmp_path)
    assert v.ok and len(saved(tmp_path)) == 1

    def run(extra): raise AssertionError('asked again')
    assert probe.check(run, tmp_path) == v
