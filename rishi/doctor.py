"""What is needed to run a model, and what of it is here. `python -m rishi.doctor`, or `%rishi doctor` in a notebook.

The exit status is 0 when a model can be run at once; else 1, and the last line is the first thing to do about it.
"""
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .errors import RishiError
from .machine import cache_dir, cpu_flags, cpu_name, memory, physical_cores

__all__ = ['report', 'remedy', 'main']

# Instruction sets that a build of llama.cpp may use, or trip over.
FEATURES = ('avx', 'avx2', 'fma', 'f16c', 'avx_vnni', 'avx512f', 'avx512bw', 'avx512_vnni', 'avx512_bf16', 'amx_tile',
            'amx_int8', 'neon', 'asimd', 'asimddp', 'i8mm', 'sve')
# A model runs when one row of each group is well; then nothing need be done about the others.
NEEDED = (('llama.cpp', 'MLX'), ('default model', 'downloaded models'))


def report() -> list[tuple[str, str, str]]:
    "Rows of (name, what was found, advice or ''). Takes about a second the first time."
    return _settled([
        _rishi(), ('Python', f'{platform.python_version()} at {sys.executable}', ''),
        ('platform', platform.platform(), ''), _cpu(), _memory(), *_llama(), _mlx(), _embedded(), _downloaded(),
        _notebook(), ('cache folder', str(cache_dir()), '')])


def remedy(rows) -> str:
    "The first thing to do before a model can run, or '' when one can."
    for group in NEEDED:
        advice = [a for name, _, a in rows if name in group]
        if all(advice): return next(iter(advice), '')
    return ''


def _settled(rows):
    well = {name for name, _, advice in rows if not advice}
    spare = {name for group in NEEDED if well & set(group) for name in group}
    return [(name, value, '' if name in spare else advice) for name, value, advice in rows]


def main() -> int:
    "Print the report; the exit status says whether a model can be run."
    rows = report()
    width = max(len(name) for name, _, _ in rows)
    for name, value, advice in rows:
        print(f'{name:{width}}  {value}')
        if advice: print(f'{"":{width}}  -> {advice}')
    todo = remedy(rows)
    print(f'\nNo model can be run yet. {todo}' if todo else '\nA model can be run.')
    return 1 if todo else 0


def _dist(name):
    try: return metadata.distribution(name)
    except metadata.PackageNotFoundError: return None


def _version(name):
    d = _dist(name)
    return d.version if d else ''


def _size(n): return f'{n/1e9:.1f} GB' if n >= 1e9 else f'{n/1e6:.0f} MB'


def _rishi():
    "The index has another distribution that installs a package called `rishi`: are these files ours?"
    here, ours, other = Path(__file__).parent, _dist('rishi-jupyter'), _dist('rishi')
    value = f'{ours.version if ours else "not installed, run"} from {here}'
    if other: return 'rishi', value, (f'another distribution, rishi {other.version}, writes into the same folder: pip '
                                      'uninstall -y rishi, then pip install --force-reinstall --no-deps rishi-jupyter')
    installed = Path(ours.locate_file('rishi')) if ours else here
    if installed.is_dir() and not installed.samefile(here):
        return 'rishi', value, f'this is not the installed one, which is in {installed}: look at sys.path'
    return 'rishi', value, ''


def _cpu():
    have = ' '.join(f for f in FEATURES if f in cpu_flags())
    return 'processor', f'{cpu_name()}, {physical_cores()} threads by default' + (f', {have}' if have else ''), ''


def _memory():
    total, free = memory()
    parts = [f'{_size(n)} {what}' for n, what in ((total, 'in all'), (free, 'available')) if n is not None]
    return 'memory', ', '.join(parts) or 'not known', ''


def _llama():
    "The library, what it says of itself, and the self-check. `probe` does not import it."
    from .llama import probe
    try: lib = probe.library()
    except RishiError as e: return [('llama.cpp', 'llama-cpp-python is not installed', str(e))]
    rows = [_self_check(probe)]
    if facts := probe.facts(lib):
        rows += [('  its build', facts['system'].strip(' |\n'), ''),
                 ('  GPU offload', 'yes: n_gpu_layers=-1 uses it' if facts['gpu'] else 'not in this build', '')]
    what, value, advice = rows[0]
    return [(what, f'llama-cpp-python {probe.version(lib)}, {value}', advice), *rows[1:]]


def _self_check(probe):
    try: v = probe.check()
    except RishiError as e: return 'llama.cpp', 'does not run here', str(e)
    return 'llama.cpp', f'self-check: {v.detail}', ''


def _mlx():
    found = ' · '.join(f'{n} {v}' for n in ('mlx', 'mlx-lm', 'mlx-vlm') if (v := _version(n)))
    return 'MLX', found or 'not installed', '' if find_spec('mlx_lm') else 'pip install "rishi-jupyter[mlx]"'


def _embedded():
    from .hub import embedded
    try: path = embedded()
    except RishiError as e: return 'default model', 'not installed', str(e)
    return 'default model', f'{path.name}, {_size(path.stat().st_size)}', ''


def _downloaded():
    from .hub import downloaded
    found = [f'{c.repo} ({_size(c.size)})' for c in downloaded()]
    return 'downloaded models', ', '.join(found) or 'none', '' if found else (
        "name one and it is fetched: Chat('Qwen/Qwen3-0.6B-GGUF')")


def _notebook():
    names = ('ipykernel', 'ipywidgets', 'anywidget', 'jupyterlab')
    found = ' · '.join(f'{n} {v}' for n in names if (v := _version(n)))
    return 'notebook', found or 'not installed', '' if _version('ipykernel') else 'pip install ipykernel'


if __name__ == '__main__': sys.exit(main())
