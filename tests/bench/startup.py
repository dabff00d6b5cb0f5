"""What `import rishi` and `%load_ext rishi` cost beyond bare Python and bare IPython, next to `import llama_cpp`.

Whole fresh processes, one of each kind a round, so that a busy moment hits all alike; medians of the rounds.
"""
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = 'from IPython.core.interactiveshell import InteractiveShell as S; s = S.instance()'
# name -> (code, what it is measured against, goal in ms)
KINDS = {
    'python': ('pass', None, None),
    'import rishi': ('import rishi', 'python', 60),
    'import llama_cpp': ('import llama_cpp', 'python', None),
    'IPython': (SHELL, None, None),
    '%load_ext rishi': (f"{SHELL}; s.run_line_magic('load_ext', 'rishi'); "
                        "assert 'rishi' in s.magics_manager.magics['cell'], 'no %%rishi'", 'IPython', 150),
}


def once(code) -> float:
    "Milliseconds of one process; nan when it fails."
    env = os.environ | {'PYTHONPATH': str(ROOT)}
    t = time.perf_counter()
    p = subprocess.run([sys.executable, '-c', code], cwd=ROOT, env=env, capture_output=True, text=True)
    if p.returncode: print((p.stderr.strip().splitlines() or ['failed'])[-1], file=sys.stderr)
    return (time.perf_counter() - t)*1000 if not p.returncode else float('nan')


def measure(rounds=15) -> dict[str, float]:
    "Median milliseconds of each kind, a round to warm the caches left out."
    times = [{name: once(code) for name, (code, *_) in KINDS.items()} for _ in range(rounds + 1)][1:]
    return {name: statistics.median(t[name] for t in times) for name in KINDS}


def main(rounds=15) -> int:
    ms, good = measure(rounds), True
    print(f'{"":18}{"whole":>9}{"beyond":>9}{"goal":>7}   ms, medians of {rounds}')
    for name, (_, base, goal) in KINDS.items():
        extra = ms[name] - ms[base] if base else 0
        print(f'{name:18}{ms[name]:9.1f}{f"{extra:9.1f}" if base else "":>9}{goal or "":>7}')
        if goal: good = good and extra < goal
    known = {name: base for name, (_, base, _) in KINDS.items() if base and ms[name] == ms[name]}
    beyond = {name: round(ms[name] - ms[base], 1) for name, base in known.items()}
    print(json.dumps(dict(name='startup', value=beyond.get('%load_ext rishi'), goal=150, unit='ms', ok=good,
                          beyond=beyond, goals={name: goal for name, (*_, goal) in KINDS.items() if goal})))
    return 0 if good else 1


if __name__ == '__main__': sys.exit(main(*map(int, sys.argv[1:])))
