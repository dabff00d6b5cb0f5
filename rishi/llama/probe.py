"""The self-check: does the installed llama.cpp decode on this machine, and with which buffers?

A library built for another processor dies by signal at its first decode, after a good load, and would take the
kernel with it. So a small quantised model is decoded in a process of its own (`trial`), once per machine and build of
the library; the verdict is remembered in the user's cache folder. Where the library dies in its extra weight buffers
(AMX on machines that list it and do not allow it) it is tried without them. Nothing here imports `llama_cpp`.
"""
import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import BackendMissing, EngineDied
from ..machine import cache_dir, cpu_flags, cpu_name

__all__ = ['Verdict', 'check', 'facts', 'library', 'version', 'REBUILD', 'INSTALL']

INSTALL = 'pip install "rishi-jupyter[llama]"'
REBUILD = ('CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-cache-dir '
           '--no-binary llama-cpp-python llama-cpp-python')
HERE = Path(__file__).parent
FAULTS = {getattr(signal, n, None) for n in ('SIGILL', 'SIGSEGV', 'SIGABRT', 'SIGBUS', 'SIGFPE', 'SIGTRAP')} - {None}
WINDOWS_FAULT = 0xC0000000
TIMEOUT = 120


@dataclass(frozen=True)
class Verdict:
    "`ok`: the library decodes here, with `extra_bufts` (a model parameter) as given. `detail` tells what was seen."
    ok: bool
    extra_bufts: bool
    detail: str


def check(run=None, folder: Path | None = None) -> Verdict:
    """The verdict on the installed library, remembered in `folder`; a first time takes about half a second.
    `run(extra_bufts) -> (exit status, last words)` makes one trial. Raises `BackendMissing` or `EngineDied`."""
    lib = library()
    path = (folder or cache_dir())/f'probe-{_key(lib)}.json'
    v = _recall(path)
    if v is None:
        v, lasting = _judge(run or (lambda extra: _trial(lib, extra)))
        if lasting: _remember(path, v)
    if not v.ok: raise EngineDied(f'llama-cpp-python cannot run on this machine: {v.detail}. Rebuild it: {REBUILD}')
    return v


def facts(lib: Path) -> dict:
    "What the library says of its build: `system` (its own line of features), `gpu` (can it offload?). {} if it dies."
    code = ('import sys, json; sys.path.append(sys.argv[1]); from llama_cpp import llama_cpp as L; '
            'print(json.dumps(dict(system=L.llama_print_system_info().decode(), gpu=L.llama_supports_gpu_offload())))')
    code, out, _ = _child('-c', code, str(lib.parent))
    try: return {} if code else json.loads(out.splitlines()[-1])
    except (ValueError, IndexError): return {}


def library() -> Path:
    "The folder of the installed `llama_cpp`, not imported. Raises `BackendMissing`."
    spec = importlib.util.find_spec('llama_cpp')
    if spec and spec.submodule_search_locations: return Path(spec.submodule_search_locations[0])
    raise BackendMissing(f'llama-cpp-python is not installed, so no GGUF model can run. Install it: {INSTALL}')


def version(lib: Path) -> str:
    "The version written in the package `lib`."
    try: m = re.search(r'^__version__\s*=\s*[\'"](.+?)[\'"]', (lib/'__init__.py').read_text('utf-8'), re.M)
    except OSError: m = None
    return m[1] if m else 'unknown'


def _key(lib):
    "Names this machine and this build of the library."
    libs = Path(os.environ.get('LLAMA_CPP_LIB_PATH') or lib/'lib')
    files = sorted(libs.glob('*')) if libs.is_dir() else []
    build = [(f.name, s.st_size, s.st_mtime_ns) for f in files if (s := f.stat())]
    return hashlib.sha256(repr((cpu_name(), sorted(cpu_flags()), version(lib), build)).encode()).hexdigest()[:16]


def _judge(run):
    "Try with extra buffers, then without. Returns the verdict and whether it will be the same tomorrow."
    code, said = run(True)
    if not code: return Verdict(True, True, 'decodes'), True
    first = _death(code, said)
    if not _is_fault(code): return Verdict(False, True, first), False
    code, said = run(False)
    if not code: return Verdict(True, False, f'{first} in its extra buffers, decodes without them'), True
    return Verdict(False, False, f'{first}, and without extra buffers {_death(code, said)}'), _is_fault(code)


def _is_fault(code): return -code in FAULTS or code >= WINDOWS_FAULT


def _death(code, said):
    if -code in FAULTS: return f'it dies with {signal.Signals(-code).name}'
    if code >= WINDOWS_FAULT: return f'it dies with {code:#x}'
    return f'the trial was killed (signal {-code})' if code < 0 else said or f'the trial ended with {code}'


def _trial(lib, extra_bufts):
    "Exit status and last words of one trial."
    code, _, err = _child(str(HERE/'trial.py'), str(lib.parent), str(HERE/'probe.gguf'), str(int(extra_bufts)))
    return code, (err.strip().splitlines() or [''])[-1].strip().rstrip('.')


def _child(*args):
    "Run Python: status, output, errors. In a session of its own, for an interrupt of the kernel is not its affair."
    try:
        p = subprocess.run([sys.executable, '-P', *args], stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=TIMEOUT, start_new_session=True)
    except subprocess.TimeoutExpired: return 1, '', f'the trial did not end within {TIMEOUT} seconds'
    return p.returncode, p.stdout.decode('utf-8', 'replace'), p.stderr.decode('utf-8', 'replace')


def _recall(path):
    "The verdict kept in `path`; None when there is none or it makes no sense."
    try: v = Verdict(**json.loads(path.read_text('utf-8')))
    except (OSError, ValueError, TypeError): return None
    return v if type(v.ok) is type(v.extra_bufts) is bool and isinstance(v.detail, str) else None


def _remember(path, v):
    "Written aside, then moved: nobody reads half of it. Where nothing can be written, each time is the first."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile('w', dir=path.parent, delete=False, encoding='utf-8') as f:
            json.dump(asdict(v), f)
        os.replace(f.name, path)
    except OSError: pass
