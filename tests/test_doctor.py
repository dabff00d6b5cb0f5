"""The doctor: what it reports, what it advises first, and its exit status."""
import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from rishi import doctor, hub, machine
from rishi.errors import BackendMissing, EngineDied, ModelNotFound
from rishi.llama import probe


def raiser(error):
    def f(*a, **kw): raise error
    return f


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    "A machine on which all is well, whatever this one is."
    (tmp_path/'m.gguf').write_bytes(b'x'*2_000_000)
    monkeypatch.setattr(probe, 'library', lambda: tmp_path)
    monkeypatch.setattr(probe, 'check', lambda: probe.Verdict(True, True, 'decodes'))
    monkeypatch.setattr(probe, 'facts', lambda lib: dict(system='CPU : AVX2 = 1 | ', gpu=False))
    monkeypatch.setattr(hub, 'embedded', lambda: tmp_path/'m.gguf')
    monkeypatch.setattr(hub, 'downloaded', lambda: [hub.Cached('org/m', ('a.gguf',), 3_500_000_000)])
    return monkeypatch


def rows(): return {name.strip(): (value, advice) for name, value, advice in doctor.report()}


def test_all_is_well(healthy, capsys):
    found = rows()
    assert 'self-check: decodes' in found['llama.cpp'][0] and found['its build'][0] == 'CPU : AVX2 = 1'
    assert found['default model'][0] == 'm.gguf, 2 MB' and found['downloaded models'][0] == 'org/m (3.5 GB)'
    assert not any(advice for name, (_, advice) in found.items() if name != 'rishi')
    assert doctor.main() == 0 and capsys.readouterr().out.endswith('A model can be run.\n')


def test_one_model_and_one_backend_are_enough(healthy):
    healthy.setattr(hub, 'embedded', raiser(ModelNotFound('no wheel')))
    assert rows()['default model'] == ('not installed', '') and doctor.main() == 0


def test_no_model(healthy, capsys):
    healthy.setattr(hub, 'embedded', raiser(ModelNotFound('no wheel')))
    healthy.setattr(hub, 'downloaded', lambda: [])
    assert doctor.main() == 1 and capsys.readouterr().out.endswith('No model can be run yet. no wheel\n')


def no_mlx(monkeypatch):
    found = doctor.find_spec
    monkeypatch.setattr(doctor, 'find_spec', lambda name: None if name == 'mlx_lm' else found(name))


def test_no_backend(healthy, capsys):
    no_mlx(healthy)
    healthy.setattr(probe, 'library', raiser(BackendMissing('Install it: pip')))
    assert doctor.main() == 1 and 'its build' not in rows()
    assert capsys.readouterr().out.endswith('No model can be run yet. Install it: pip\n')


def test_a_library_that_dies(healthy, capsys):
    no_mlx(healthy)
    healthy.setattr(probe, 'check', raiser(EngineDied(f'it dies. Rebuild it: {probe.REBUILD}')))
    healthy.setattr(probe, 'facts', lambda lib: {})
    assert doctor.main() == 1
    assert capsys.readouterr().out.rstrip().endswith(probe.REBUILD)


def test_buffers_switched_off_are_told(healthy):
    healthy.setattr(probe, 'check', lambda: probe.Verdict(True, False, 'it dies with SIGILL in its extra buffers'))
    assert 'SIGILL' in rows()['llama.cpp'][0]


def dists(monkeypatch, **known):
    monkeypatch.setattr(doctor, '_dist', lambda name: known.get(name.replace('-', '_')))


def test_the_other_rishi(healthy, tmp_path):
    ours = SimpleNamespace(version='0.1.0', locate_file=lambda p: tmp_path/p)
    dists(healthy, rishi_jupyter=ours)
    assert doctor._rishi()[2] == ''
    (tmp_path/'rishi').mkdir()
    assert str(tmp_path) in doctor._rishi()[2], 'another copy is installed than the one imported'
    dists(healthy, rishi_jupyter=ours, rishi=SimpleNamespace(version='7.7'))
    assert '7.7' in doctor._rishi()[2] and 'pip uninstall -y rishi' in doctor._rishi()[2]
    dists(healthy)
    assert doctor._rishi()[1].startswith('not installed') and doctor._rishi()[2] == ''


def test_a_distribution_that_is_not_there(monkeypatch):
    monkeypatch.setattr(metadata, 'distribution', raiser(metadata.PackageNotFoundError('x')))
    assert doctor._dist('x') is None and doctor._version('x') == ''


def test_this_machine():
    total, free = machine.memory()
    assert total is None or total > 2**28 and (free is None or 0 < free <= total)
    assert 1 <= machine.physical_cores() <= os.cpu_count() and machine.cpu_name()


def test_hardware_threads_count_once(monkeypatch):
    text = '\n\n'.join(f'processor : {i}\nphysical id\t: 0\ncore id\t\t: {i//2}' for i in range(8)) + '\n\n'
    monkeypatch.setattr(machine, '_text', lambda path, n=-1: text if path == '/proc/cpuinfo' else '')
    monkeypatch.setattr(machine.sys, 'platform', 'linux')
    assert machine._cores() == 4
    monkeypatch.setattr(machine, '_text', lambda path, n=-1: '150000 100000\n' if path.endswith('cpu.max') else '')
    assert machine._quota() == 2 and machine._cores() == 0


def test_a_containers_limit_is_the_total(monkeypatch):
    texts = {'/proc/meminfo': 'MemTotal:  8000000 kB\nMemAvailable:  7000000 kB\n',
             '/sys/fs/cgroup/memory.max': '1000000000\n', '/sys/fs/cgroup/memory.current': '400000000\n'}
    monkeypatch.setattr(machine, '_text', lambda path, n=-1: texts.get(path, ''))
    monkeypatch.setattr(machine.sys, 'platform', 'linux')
    assert machine.memory() == (1_000_000_000, 600_000_000)
    texts['/sys/fs/cgroup/memory.max'] = 'max\n'
    assert machine.memory() == (8_192_000_000, 7_168_000_000)


@pytest.mark.parametrize('platform, env, want', [
    ('linux', {}, '.cache/rishi'), ('darwin', {}, 'Library/Caches/rishi'),
    ('win32', {'LOCALAPPDATA': '/local'}, '/local/rishi'), ('win32', {}, 'AppData/Local/rishi'),
    ('darwin', {'XDG_CACHE_HOME': '/x'}, '/x/rishi'), ('linux', {'XDG_CACHE_HOME': ''}, '.cache/rishi')])
def test_the_cache_folder(monkeypatch, platform, env, want):
    for name in ('XDG_CACHE_HOME', 'LOCALAPPDATA'): monkeypatch.delenv(name, raising=False)
    for name, value in env.items(): monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine.sys, 'platform', platform)
    assert machine.cache_dir().as_posix().endswith(want)


@pytest.mark.needs('llama')
def test_the_command(smol):
    p = subprocess.run([sys.executable, '-m', 'rishi.doctor'], capture_output=True, text=True)
    assert p.returncode == 0 and p.stderr == '', p.stderr
    assert smol.name in p.stdout and 'self-check: decodes' in p.stdout and 'AVX2' in p.stdout or 'NEON' in p.stdout
