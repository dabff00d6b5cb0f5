"""What this computer is: processor, cores, memory, and the folder where rishi remembers things about it.

Standard library only; a fact that the system does not give is `''`, `None` or an empty set, never an exception.
"""
import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

__all__ = ['cache_dir', 'cpu_name', 'cpu_flags', 'physical_cores', 'memory']


def cache_dir() -> Path:
    "The user's cache folder for rishi; it need not exist yet."
    if x := os.environ.get('XDG_CACHE_HOME'): base = Path(x)
    elif sys.platform == 'darwin': base = Path.home()/'Library'/'Caches'
    elif sys.platform == 'win32': base = Path(os.environ.get('LOCALAPPDATA') or Path.home()/'AppData'/'Local')
    else: base = Path.home()/'.cache'
    return base/'rishi'


@cache
def cpu_name() -> str:
    "The processor as its maker calls it."
    if sys.platform == 'darwin': return _sysctl('machdep.cpu.brand_string')
    m = re.search(r'^(?:model name|Model|Hardware)\s*:\s*(.+)$', _first_cpu(), re.M)
    return m[1].strip() if m else platform.processor() or platform.machine()


@cache
def cpu_flags() -> frozenset[str]:
    "Instruction sets that Linux or macOS lists, in its own spelling: `avx2`, `amx_tile`, `asimd`..."
    if sys.platform == 'darwin': return frozenset((_sysctl('machdep.cpu.features') + ' neon').lower().split())
    m = re.search(r'^(?:flags|Features)\s*:\s*(.+)$', _first_cpu(), re.M)
    return frozenset(m[1].split() if m else ())


@cache
def physical_cores() -> int:
    "Cores that this process may use, hardware threads of one core counted once and a container's share respected."
    usable = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    return max(1, min(n for n in (usable, _cores(), _quota()) if n))


def memory() -> tuple[int | None, int | None]:
    "(total, available) bytes; a container's limit counts as the total."
    if sys.platform == 'win32': return _windows_memory()
    info = dict(re.findall(r'^(\w+):\s+(\d+) kB', _text('/proc/meminfo'), re.M))
    total = int(info['MemTotal'])*1024 if 'MemTotal' in info else _sysconf_memory()
    free = int(info['MemAvailable'])*1024 if 'MemAvailable' in info else None
    limit = _text('/sys/fs/cgroup/memory.max').strip()
    if not limit.isdigit() or not total or int(limit) >= total: return total, free
    left = int(limit) - int(_text('/sys/fs/cgroup/memory.current').strip() or 0)
    return int(limit), left if free is None else min(free, left)


def _text(path, n=-1):
    try:
        with open(path, encoding='utf-8', errors='replace') as f: return f.read(n)
    except OSError: return ''


def _first_cpu(): return _text('/proc/cpuinfo', 8192)  # one processor's block is enough, and quick on a big machine


def _sysctl(name):
    try: return subprocess.run(['sysctl', '-n', name], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError): return ''


def _cores():
    if sys.platform == 'darwin': return int(_sysctl('hw.perflevel0.physicalcpu') or _sysctl('hw.physicalcpu') or 0)
    blocks = _text('/proc/cpuinfo').split('\n\n')
    ids = (re.findall(r'^(?:physical id|core id)\s*:\s*(\d+)$', b, re.M) for b in blocks)
    return len({tuple(i) for i in ids if len(i) == 2})


def _quota():
    quota, _, period = _text('/sys/fs/cgroup/cpu.max').partition(' ')
    return -(-int(quota)//int(period)) if quota.isdigit() else 0


def _sysconf_memory():
    try: return os.sysconf('SC_PHYS_PAGES')*os.sysconf('SC_PAGE_SIZE')
    except (AttributeError, ValueError, OSError): return None


def _windows_memory():
    import ctypes
    names = ('total', 'free', 'page_total', 'page_free', 'virtual', 'virtual_free', 'extended')
    fields = [('size', ctypes.c_ulong), ('load', ctypes.c_ulong)] + [(n, ctypes.c_ulonglong) for n in names]
    status = type('Status', (ctypes.Structure,), {'_fields_': fields})()
    status.size = ctypes.sizeof(status)
    known = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return (status.total, status.free) if known else (None, None)
