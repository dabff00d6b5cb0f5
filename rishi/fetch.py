"""Files of a hub repo into the hub cache: list, check the disk, fetch (resumable, stoppable), and say what went wrong.

The layout of the cache, its locks and its links are the hub library's; only the transfer of the bytes is done here,
because the library throws a partial file away whenever a download ends early.
"""
from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BadRequest, BadWeights, EngineError, ModelNotFound, RishiError

__all__ = ['Tick', 'Unreachable', 'download', 'stoppable', 'some']

Tick = Callable[[int, int], object]
_RETRIES, _PAUSE = 5, 1.0       # attempts in a row that bring no byte; seconds between them


class Unreachable(ModelNotFound): "The hub gave no answer; what the cache has may serve instead."


def some(files, n=4) -> str:
    "A few of `files` for a message, weights first."
    files = sorted(files, key=lambda f: not f.lower().endswith(('.gguf', '.safetensors')))
    return ', '.join(files[:n]) + (f' and {len(files) - n} more' if len(files) > n else '') if files else 'no files'


def _gb(n): return f'{n / 1e9:.1f} GB' if n >= 1e9 else f'{n / 1e6:.1f} MB'


def _timeout(): return float(os.environ.get('HF_HUB_DOWNLOAD_TIMEOUT') or 10)


def _endpoint():
    from huggingface_hub import constants
    return (os.environ.get('HF_ENDPOINT') or constants.ENDPOINT).rstrip('/')


def download(repo, choose, folder, want, progress, quit) -> tuple[Path, ...]:
    """The files that `choose` picks from the listing of `repo`, fetched into its cache `folder`.
    `progress(done, total)` gets bytes; None shows a bar. Raises ModelNotFound (Unreachable where the hub did not
    answer), BadWeights, and EngineError once `quit` is set."""
    with _explained(repo, folder, ValueError, TypeError, KeyError): sizes, commit = _list(repo, folder)
    names = choose(list(sizes))
    if not names: raise ModelNotFound(f'{repo} holds no {want} file; it has {some(list(sizes))}. Name another.')
    if gone := [n for n in names if n not in sizes]:
        raise ModelNotFound(f'{repo} lacks {some(gone)}: the model is not complete there. Name another file or repo.')
    with _explained(repo, folder): return _fetch(repo, commit, folder, {n: sizes[n] for n in names}, progress, quit)


# --- progress and stop ----------------------------------------------------------------------------------------------
class _Meter:
    "Counts bytes into a bar or into `progress`, and ends the work once `quit` is set."

    def __init__(self, repo, names, total, progress, quit):
        self.repo, self.total, self.progress, self.quit = repo, total, progress, quit
        self.done, self.told = 0, -1
        self.bar = None if progress else self._bar(names)

    def _bar(self, names):
        from huggingface_hub.utils import tqdm
        desc = names[0].rpartition('/')[2] if len(names) == 1 else f'{self.repo} ({len(names)} files)'
        return tqdm(total=self.total, desc=desc, unit='B', unit_scale=True, disable=None,
                    name='huggingface_hub.http_get')

    def check(self):
        if self.quit.is_set(): raise _stopped(self.repo)

    def add(self, n):
        self.check()
        self.done += n
        if self.bar is not None: return self.bar.update(n)
        # told at most 1000 times, and never backwards when a hub makes a file start anew
        step = 0 if self.told < 0 or self.done >= self.total else self.total / 1000
        if self.done > self.told and self.done - self.told >= step:
            self.told = self.done
            self.progress(min(self.done, self.total), self.total)

    def close(self):
        if self.bar is not None: self.bar.close()


def _stopped(repo): return EngineError(f'The download of {repo} was stopped; the next call goes on where it ended.')


class _Quit(threading.Event):
    "Set by itself (the waiting thread has left) or by `stop`."

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def is_set(self): return super().is_set() or self.stop.is_set()


def stoppable(work, repo, stop):
    "`work(quit)` in a helper thread when there is a `stop`, so that it ends the wait even while the hub is silent."
    if stop is None: return work(threading.Event())
    quit, out = _Quit(stop), {}

    def run():
        try: out['value'] = work(quit)
        except BaseException as e: out['error'] = e
    thread = threading.Thread(target=run, name='rishi-download', daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            if stop.is_set(): raise _stopped(repo)
            thread.join(0.02)
    finally: quit.set()
    if 'error' in out: raise out['error']
    return out['value']


# --- the transfer ---------------------------------------------------------------------------------------------------
def _list(repo, folder):
    "Sizes of the files of `repo` by name, and the commit that they belong to."
    from huggingface_hub import HfApi
    info = HfApi(endpoint=_endpoint(), library_name='rishi').model_info(repo, files_metadata=True, timeout=_timeout())
    sizes = {o.rfilename: o.size for o in info.siblings or ()}
    _remember(folder/'trees'/f'{info.sha}.json', {o.rfilename: dict(size=o.size, blob_id=o.blob_id or '')
                                                 for o in info.siblings or ()})
    return sizes, info.sha


def _remember(file, files):
    "Keep a listing where the hub library keeps its own, so that the next choice needs no network."
    if file.exists(): return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f'.{os.getpid()}')
    part.write_text(json.dumps(dict(format_version=1, files=files)), 'utf-8')
    part.replace(file)


def _fetch(repo, commit, folder, sizes, progress, quit) -> tuple[Path, ...]:
    "Bring the files named in `sizes` (bytes) into the cache."
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    heads = {n: get_hf_file_metadata(hf_hub_url(repo, n, revision=commit, endpoint=_endpoint()), timeout=_timeout(),
                                     endpoint=_endpoint(), library_name='rishi') for n in sizes}
    sizes = {n: heads[n].size if size is None else size for n, size in sizes.items()}
    blobs = {n: folder/'blobs'/heads[n].etag for n in sizes}
    todo = [n for n in sizes if not (blobs[n].is_file() and blobs[n].stat().st_size == sizes[n])]
    _room({_part(blobs[n]): sizes[n] for n in todo}, folder.parent)
    meter = _Meter(repo, todo or list(sizes), sum(sizes.values()), progress, quit)
    try:
        meter.add(sum(sizes[n] for n in sizes if n not in todo))
        for n in todo: _blob(repo, n, commit, blobs[n], sizes[n], meter)
    finally: meter.close()
    return tuple(_link(repo, n, folder.parent) for n in sizes)


def _part(blob): return blob.with_name(blob.name + '.incomplete')


def _size(file):
    try: return file.stat().st_size
    except OSError: return 0


def _room(parts, cache):
    "Is there space for what is still to come? `parts` are the partial files with the sizes (bytes) they are to reach."
    need, place = sum(size - min(_size(p), size) for p, size in parts.items()), cache
    while not place.exists(): place = place.parent
    free = shutil.disk_usage(place).free
    if need > free:
        raise ModelNotFound(f'No room for the download: it needs {_gb(need)}, {_gb(free)} are free on the disk of '
                            f'{cache}. Free some space, or point HF_HOME to another disk.')


def _blob(repo, name, commit, blob, size, meter):
    """Fetch one file to `blob`. The library's own download deletes a partial file when it ends early; ours stays as
    `.incomplete` and is continued, in this process or the next."""
    folder = blob.parent.parent
    with _locked(folder.parent/'.locks'/folder.name/f'{blob.name}.lock', meter):
        if _size(blob) == size: return meter.add(size)
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = _part(blob)
        if _size(part) > size: part.unlink()
        meter.add(_size(part))
        _stream(repo, name, commit, part, size, meter)
        if re.fullmatch('[0-9a-f]{64}', blob.name) and _sha256(part, meter) != blob.name:
            part.unlink()
            raise BadWeights(f'{name} of {repo} arrived damaged (wrong checksum) and was thrown away: try again.')
        part.replace(blob)


@contextmanager
def _locked(file, meter) -> Iterator[None]:
    "Hold the lock that the hub library takes for the same blob; waiting for it can be stopped."
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        meter.check()
        lock = WeakFileLock(file, timeout=0.2)
        try: lock.__enter__()
        except Timeout: continue
        break
    try: yield
    finally: lock.__exit__(None, None, None)


def _stream(repo, name, commit, part, size, meter):
    "Append to `part` until it has `size` bytes; a dropped connection is taken up again while bytes keep coming."
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    idle = 0
    while (have := _size(part)) < size:
        try: _append(repo, name, commit, part, have, size, meter)
        except HTTPError as e:
            idle = 0 if _size(part) > have else idle + 1
            if isinstance(e, HfHubHTTPError) or idle >= _RETRIES: raise
            meter.quit.wait(_PAUSE)
            meter.check()
        else:
            if _size(part) <= have: raise ModelNotFound(f'The hub ended {name} of {repo} after {have:,} of {size:,} '
                                                        'bytes: try again, the download goes on from there.')
    if _size(part) > size:
        part.unlink()
        raise BadWeights(f'The hub sent more than the {size:,} bytes of {name} in {repo}; thrown away: try again.')


def _append(repo, name, commit, part, have, size, meter):
    "One request for what is missing behind the `have` bytes of `part`."
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status
    headers = build_hf_headers(library_name='rishi') | {'Accept-Encoding': 'identity', 'Range': f'bytes={have}-'}
    url = hf_hub_url(repo, name, revision=commit, endpoint=_endpoint())
    with get_session().stream('GET', url, headers=headers, timeout=_timeout()) as r:
        hf_raise_for_status(r)
        _expect(r, repo, name, size)
        if r.status_code != 206: meter.add(-have)       # this hub does not resume: it sends the whole file
        with part.open('ab' if r.status_code == 206 else 'wb', buffering=0) as f:
            for chunk in r.iter_raw():
                meter.add(len(chunk))
                f.write(chunk)


def _expect(r, repo, name, size):
    "Is this answer the file, and not a login page or an error page that came in its place?"
    length = r.headers.get('Content-Range', '').rpartition('/')[2] or r.headers.get('Content-Length')
    kind = r.headers.get('Content-Type', '')
    if kind.startswith('text/html') or (length or '').isdigit() and int(length) != size:
        raise ModelNotFound(f'The hub sent {kind or "something"} of {length or "unknown"} bytes in place of {name} of '
                            f'{repo}, which has {size:,}: is it a login page of this network? Check it and try again.')


def _sha256(file, meter):
    digest = hashlib.sha256()
    with file.open('rb') as f:
        while chunk := f.read(1 << 20):
            meter.check()
            digest.update(chunk)
    return digest.hexdigest()


def _link(repo, name, cache) -> Path:
    "Let the library give the blob its place in a snapshot and note the commit; nothing is fetched any more."
    from huggingface_hub import hf_hub_download
    return Path(hf_hub_download(repo, name, cache_dir=cache, endpoint=_endpoint(), library_name='rishi'))


# --- what went wrong ------------------------------------------------------------------------------------------------
@contextmanager
def _explained(repo, folder, *more) -> Iterator[None]:
    "Turn whatever the hub library, the network or the disk raises into one typed line."
    from huggingface_hub import errors as hf
    try: yield
    except RishiError: raise
    except (OSError, hf.HTTPError, hf.HFValidationError, *more) as e: raise _why(e, repo, folder.parent) from e


def _why(e, repo, cache) -> RishiError:
    "The typed error that says what happened and what to do next."
    from huggingface_hub import errors as hf
    hub = _endpoint()
    while isinstance(e, hf.LocalEntryNotFoundError) and e.__cause__: e = e.__cause__
    match e:
        case hf.HFValidationError(): return BadRequest(f'{repo!r} is no model name: write org/repo as on the hub.')
        case hf.GatedRepoError():
            return ModelNotFound(f'{repo} is gated: ask for access at {hub}/{repo}, then run `hf auth login`.')
        case hf.RepositoryNotFoundError():
            return ModelNotFound(f'{hub} has no repo {repo}: check the spelling; a private one needs `hf auth login`.')
        case hf.HfHubHTTPError(): return _status(e.response.status_code, repo, hub)
        case hf.OfflineModeIsEnabled():
            return Unreachable(f'{repo} is not on this machine and the hub library is in offline mode: unset '
                                'HF_HUB_OFFLINE and restart the kernel, or name a path.')
        case hf.HTTPError(): return _network(e, repo, hub)
    return _local(e, repo, hub, cache)


def _status(code, repo, hub):
    if code in (401, 403): return ModelNotFound(f'{hub} refused {repo} (status {code}): run `hf auth login` with a '
                                                f'token that may read it, and look at {hub}/{repo}.')
    if code == 429 or code >= 500: return Unreachable(f'{hub} cannot serve {repo} now (status {code}): try again in '
                                                       'a few minutes, or name a model that is on this machine.')
    return ModelNotFound(f'{hub} has not got what was asked of {repo} (status {code}): check the name at {hub}/{repo}.')


def _network(e, repo, hub):
    if 'Timeout' in type(e).__name__: what = f'{hub} did not answer in time'
    elif 'Connect' in type(e).__name__: what = f'{hub} cannot be reached (no network?)'
    else: what = f'the connection to {hub} broke ({str(e) or type(e).__name__})'
    return Unreachable(f'{repo} could not be fetched: {what}. Try again, a download goes on from where it was; '
                        'or name a model that is on this machine.')


def _local(e, repo, hub, cache):
    code = getattr(e, 'errno', None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(cache).free
        return ModelNotFound(f'The disk became full while fetching {repo}: {_gb(free)} are free at {cache}. Free '
                             'some space, or point HF_HOME to another disk; the download then goes on.')
    if code: return ModelNotFound(f'{repo} cannot be stored in {cache} ({e.strerror}): point HF_HOME elsewhere.')
    return Unreachable(f'{hub} sent no proper answer about {repo} ({type(e).__name__}): is it a login page of this '
                        'network, or a wrong HF_ENDPOINT? Check it and try again.')
