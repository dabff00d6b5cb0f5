"""Which file is the model, and whether it is one: names, quantisations, split files, headers, damage."""
import shutil
from itertools import permutations
from pathlib import Path

import pytest
from gguf_maker import fails, make, split, write
from hub_standin import MODELS, standin

from rishi import hub
from rishi.errors import BadRequest, BadWeights, EngineError, ModelNotFound
from rishi.llama import gguf, weights
from rishi.llama.gguf import Damaged, parts
from rishi.llama.weights import _gguf, _mmproj, get_mmproj, get_model, quant_of, resolve

REPO = 'Qwen/Qwen3-0.6B-GGUF'
TINY, PROJECTOR = MODELS/'tiny-chat-q8_0.gguf', MODELS/'tiny-omni-mmproj-f16.gguf'
SPLIT = [f'Q4/m-0000{i}-of-00003.gguf' for i in (1, 2, 3)]
CASE23 = [*SPLIT, 'Q8/m.gguf', 'mmproj-F16.gguf']


# --- choosing -------------------------------------------------------------------------------------------------------
def test_the_checks_of_the_seed():
    fs = ['README.md', 'model-Q8_0.gguf', 'model-Q4_K_M.gguf', 'mmproj-model.gguf']
    assert _gguf(fs) == 'model-Q4_K_M.gguf'
    assert _gguf(fs, 'Q8_0') == 'model-Q8_0.gguf'
    assert _gguf(fs, 'IQ2_XS') == 'model-Q8_0.gguf'
    assert _gguf(['README.md']) is None
    assert _mmproj(fs) == 'mmproj-model.gguf'
    assert _mmproj(['model-Q4_K_M.gguf']) is None
    assert _mmproj(['mmproj-dir/model.gguf']) is None
    assert _gguf(['mmproj-dir/model.gguf']) == 'mmproj-dir/model.gguf'


def test_quantisations_are_whole_tokens_in_any_order():
    quants = ('BF16', 'F16', 'Q4_K', 'Q4_K_M', 'IQ4_K_M')
    for order in permutations(quants):
        files = [f'm-{q}.gguf' for q in order]
        for q in quants: assert _gguf(files, q) == _gguf(files, q.lower()) == f'm-{q}.gguf'


@pytest.mark.parametrize('file, quant', [
    ('m.Q4_K_M.gguf', 'Q4_K_M'), ('SmolLM2-135M-Instruct.Q4_1.gguf', 'Q4_1'), ('tiny-chat-q8_0.gguf', 'Q8_0'),
    ('m-UD-Q4_K_XL.gguf', 'UD-Q4_K_XL'), ('m-IQ2_XXS.gguf', 'IQ2_XXS'), ('m-fp16.gguf', 'F16'), ('BF16/m.gguf', 'BF16'),
    ('Q4/m-Q8_0-00001-of-00002.gguf', 'Q8_0'), ('m_q5_k_s.gguf', 'Q5_K_S'), ('gpt-oss-20b-mxfp4.gguf', 'MXFP4'),
    ('Qwen2.5-VL-7B.gguf', ''), ('model.gguf', ''), ('m-TQ1_0.gguf', 'TQ1_0'), ('m-Q4_0_4_4.gguf', 'Q4_0_4_4')])
def test_quantisation_of_a_name(file, quant): assert quant_of(file) == quant


def test_an_exact_quantisation_goes_before_its_variants():
    files = ['m-UD-Q4_K_M.gguf', 'm-Q4_K_M.gguf']
    assert _gguf(files) == 'm-Q4_K_M.gguf' and _gguf(files, 'UD-Q4_K_M') == 'm-UD-Q4_K_M.gguf'
    assert _gguf(['m-UD-Q4_K_M.gguf', 'm-Q8_0.gguf']) == 'm-UD-Q4_K_M.gguf'


def test_case_23_split_files_subfolders_and_patterns():
    assert _gguf(CASE23, 'Q4') == SPLIT[0] and parts(SPLIT[0]) == SPLIT
    for part in SPLIT: assert _gguf(CASE23, part) == SPLIT[0]
    assert _gguf(CASE23, 'm-00001-of-00003.gguf') == SPLIT[0]           # the name without its folder
    assert _gguf(CASE23, 'Q4/*') == SPLIT[0] and _gguf(CASE23, '*00001*') == SPLIT[0]
    assert _gguf(CASE23, 'Q8') == _gguf(CASE23, 'Q8/m.gguf') == 'Q8/m.gguf'
    fails(BadRequest, lambda: _gguf(CASE23, 'Q*'), SPLIT[0], 'Q8/m.gguf')
    fails(BadRequest, lambda: _gguf(CASE23, '*.gguf'), SPLIT[0], 'Q8/m.gguf')
    assert 'mmproj' not in fails(BadRequest, lambda: _gguf(CASE23, '*'))
    assert _gguf(CASE23, 'F16') == SPLIT[0]                             # the projector is no model, whatever is asked
    assert _gguf(['mmproj-F16.gguf'], 'F16') is None and _gguf(['m.mmproj-Q8_0.gguf', 'imatrix.gguf'], 'Q8_0') is None
    assert _gguf(CASE23[::-1], 'Q4') == SPLIT[0]


def test_two_models_of_one_quantisation_are_not_guessed_between():
    fails(BadRequest, lambda: _gguf(['a-Q4_K_M.gguf', 'b-Q4_K_M.gguf']), 'a-Q4_K_M.gguf', 'b-Q4_K_M.gguf')
    assert _gguf(['x/m.gguf', 'y/m.gguf'], 'y/m.gguf') == 'y/m.gguf'
    fails(BadRequest, lambda: _gguf(['x/m.gguf', 'y/m.gguf'], 'm.gguf'), 'x/m.gguf', 'y/m.gguf')


def test_projector_choice():
    files = ['m-Q4_K_M.gguf', 'mmproj-BF16.gguf', 'mmproj-F16.gguf', 'mmproj-Q8_0.gguf', 'MMPROJ.txt']
    assert _mmproj(files) == 'mmproj-F16.gguf' and _mmproj(files, 'q8_0') == 'mmproj-Q8_0.gguf'
    assert _mmproj(files, 'bf16') == 'mmproj-BF16.gguf' and _mmproj(files, 'Q2_K') == 'mmproj-F16.gguf'
    assert _mmproj(['sub/M-MMProj.gguf']) == 'sub/M-MMProj.gguf'


def test_parts():
    assert parts('a/b.gguf') == ['a/b.gguf']
    assert parts('x-00002-of-00002.GGUF') == ['x-00001-of-00002.GGUF', 'x-00002-of-00002.GGUF']
    assert parts('m-1-of-3.gguf') == ['m-1-of-3.gguf']


@pytest.mark.parametrize('name, repo, want', [
    (REPO, REPO, None), (f'{REPO}:Q8_0', REPO, 'Q8_0'), (f'{REPO}/Q4/m.gguf', REPO, 'Q4/m.gguf'),
    (f'{REPO}/m.gguf', REPO, 'm.gguf'), (f' {REPO}:Q4/m.gguf ', REPO, 'Q4/m.gguf')])
def test_names(name, repo, want):
    assert weights.Name.of(name) == weights.Name(repo, want)


@pytest.mark.parametrize('name', ['', ' ', 'gpt', 'proto://host/org/repo', 'a b/c', 'org/'])
def test_names_that_say_nothing(name): fails(BadRequest, lambda: resolve(name), 'org/repo')


# --- resolve: paths -------------------------------------------------------------------------------------------------
def test_default_model(smol):
    m = resolve()
    assert (m.path, m.name, m.quant, m.source) == (smol, 'SmolLM2 135M Instruct · Q4_1', 'Q4_1', 'wheel')
    assert m.header.context_length == 8192 and get_model() == str(smol)


def test_paths(tmp_path, monkeypatch):
    m = resolve(model_path=TINY)
    assert (m.path, m.name, m.quant, m.source) == (TINY, 'Tiny Chat · Q8_0', 'Q8_0', 'path')
    assert resolve(str(TINY)) == m == resolve(TINY) and get_model('org/ignored', model_path=TINY) == str(TINY)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(TINY, tmp_path/'model.gguf')
    for name in ('~/model.gguf', 'model.gguf', './model.gguf', '~', '.'):
        assert resolve(name).name == 'Tiny Chat · Q8_0'
    fails(ModelNotFound, lambda: resolve('~/none.gguf'), str(tmp_path/'none.gguf'))
    fails(ModelNotFound, lambda: resolve(model_path='none.gguf'), 'none.gguf')
    fails(ModelNotFound, lambda: resolve('models/none.gguf'), 'models/none.gguf')
    fails(Damaged, lambda: resolve(write(tmp_path/'page.gguf', b'<html>')), 'web page')
    assert (tmp_path/'page.gguf').exists()                              # the user's own files are left alone


def test_folders(tmp_path):
    fails(ModelNotFound, lambda: resolve(model_path=tmp_path), str(tmp_path), 'no GGUF')
    shutil.copy(PROJECTOR, tmp_path/'mmproj-f16.gguf')
    fails(ModelNotFound, lambda: resolve(model_path=tmp_path), 'mmproj-f16.gguf')
    shutil.copy(TINY, tmp_path/'a-Q8_0.gguf')
    assert resolve(model_path=tmp_path).path == resolve(str(tmp_path)).path == tmp_path/'a-Q8_0.gguf'
    shutil.copy(TINY, tmp_path/'b-Q5_0.gguf')
    fails(BadRequest, lambda: resolve(model_path=tmp_path), 'a-Q8_0.gguf', 'b-Q5_0.gguf')
    assert resolve(model_path=tmp_path, quant='Q5_0').path.name == 'b-Q5_0.gguf'


def test_a_projector_is_no_model_and_a_model_no_projector(tmp_path):
    fails(BadRequest, lambda: resolve(PROJECTOR), 'projector', 'mmproj')
    fails(BadRequest, lambda: resolve(f'{REPO}/mmproj-F16.gguf'), 'projector')
    fails(BadWeights, lambda: get_mmproj(REPO, TINY), str(TINY), 'no projector')
    assert get_mmproj(REPO, PROJECTOR) == str(PROJECTOR)
    model = Path(shutil.copy(MODELS/'tiny-omni-q8_0.gguf', tmp_path))
    fails(ModelNotFound, lambda: get_mmproj(model), 'mmproj')
    shutil.copy(PROJECTOR, tmp_path)
    assert get_mmproj(model) == get_mmproj(tmp_path) == str(tmp_path/PROJECTOR.name)


def test_any_part_of_a_split_file_opens_the_first(tmp_path):
    files = split(tmp_path)
    for f in files: assert resolve(f).path == files[0]
    assert resolve(model_path=tmp_path).path == files[0]
    files[1].unlink()
    fails(BadWeights, lambda: resolve(files[2]), files[1].name)


@pytest.mark.parametrize('file, meta, name', [
    ('Qwen3-0.6B-Q8_0.gguf', 'Tiny Chat', 'Qwen3 0.6B · Q8_0'),
    ('SmolLM2-135M-Instruct.Q4_1.gguf', 'x', 'SmolLM2 135M Instruct · Q4_1'),
    ('ggml-model-q8_0.gguf', 'Tiny Chat', 'Tiny Chat · Q8_0'), ('q8_0.gguf', 'Tiny Chat', 'Tiny Chat · Q8_0'),
    ('big-UD-Q2_K_XL-00001-of-00002.gguf', '', 'big · UD-Q2_K_XL'), ('model.gguf', '', 'model')])
def test_names_for_people(file, meta, name):
    header = gguf.Header(3, 1, 1, {'general.name': meta})
    assert weights._title(file, header, quant_of(file)) == name


# --- resolve: the hub -----------------------------------------------------------------------------------------------
@pytest.fixture
def server(monkeypatch, tmp_path):
    tiny, omni = TINY.read_bytes(), MODELS/'tiny-omni-q8_0.gguf'
    part = {f'm-{i:05}-of-00003.gguf': make(split__count=3, split__no=i - 1, general__file_type=2) for i in (1, 2, 3)}
    with standin(org__omni={'omni-Q8_0.gguf': omni, 'mmproj-omni-F16.gguf': PROJECTOR},
                 org__split={'README.md': b'x', 'mmproj-F16.gguf': PROJECTOR, 'Q8/m.gguf': tiny,
                             **{f'Q4/{n}': b for n, b in part.items()}},
                 org__page={'m-Q4_K_M.gguf': b'<!DOCTYPE html>\n'}, org__half={'m-Q4_K_M.gguf': tiny[:2_000_000]},
                 org__empty={'m-Q4_K_M.gguf': b''}, org__new={'m-Q4_K_M.gguf': make(9)},
                 org__short=dict(list(part.items())[:2])) as s:
        yield s.env(monkeypatch, tmp_path/'hf')


def fetch(name, **kw): return resolve(name, progress=lambda done, total: None, **kw)


def test_the_readmes_model(server):
    m = fetch(REPO)
    assert (m.name, m.quant, m.source) == ('Qwen3 0.6B · Q8_0', 'Q8_0', 'download')
    assert m.path.read_bytes() == TINY.read_bytes()
    server.down()
    again = fetch(REPO)
    assert (again.path, again.source) == (m.path, 'cache') and get_model(REPO) == str(m.path)
    for name in (f'{REPO}:q8_0', f'{REPO}/Qwen3-0.6B-Q8_0.gguf', f'{REPO}:*q8*'): assert fetch(name).path == m.path


def test_a_quantisation_after_the_colon_is_no_mere_preference(server):
    assert fetch(REPO, quant='Q2_K').quant == 'Q8_0'
    fails(ModelNotFound, lambda: fetch(f'{REPO}:Q2_K'), 'no Q2_K GGUF', 'Qwen3-0.6B-Q8_0.gguf')
    fails(ModelNotFound, lambda: fetch(f'{REPO}/other.gguf'), 'no other.gguf file')


def test_the_cache_is_asked_for_the_quantisation_too(server):
    "Another quantisation in the cache does not stand for the one that the repo has."
    server.repos[REPO]['Qwen3-0.6B-Q5_0.gguf'] = make(general__file_type=8)
    assert fetch(REPO, quant='Q8_0').quant == 'Q8_0'
    assert fetch(REPO, quant='Q5_0').source == 'download'
    server.down()
    assert [fetch(REPO, quant=q).quant for q in ('Q5_0', 'Q8_0')] == ['Q5_0', 'Q8_0']


def test_split_repo_fetches_every_part_into_its_folder(server):
    m = fetch('org/split:Q4')
    assert m.path.name == 'm-00001-of-00003.gguf' and m.path.parent.name == 'Q4' and m.quant == 'Q4_0'
    assert sorted(p.name for p in m.path.parent.iterdir()) == [f'm-{i:05}-of-00003.gguf' for i in (1, 2, 3)]
    assert fetch('org/split/Q4/m-00002-of-00003.gguf').path == m.path
    fails(BadRequest, lambda: fetch('org/split:Q*'), 'Q4/m-00001-of-00003.gguf', 'Q8/m.gguf')
    m.path.with_name('m-00003-of-00003.gguf').resolve().unlink()
    server.down()
    fails(ModelNotFound, lambda: fetch('org/split:Q4'), 'cannot be reached')
    fails(ModelNotFound, lambda: fetch('org/split:Q8'), 'cannot be reached')


def test_a_damaged_part_is_the_one_that_is_fetched_anew(server):
    m = fetch('org/split:Q4')
    third = m.path.with_name('m-00003-of-00003.gguf')
    third.resolve().write_bytes(bytes(third.stat().st_size))
    n = len(server.files_asked())
    assert fetch('org/split:Q4').source == 'download' and len(server.files_asked()) == n + 1


def test_a_repo_without_all_parts(server):
    fails(ModelNotFound, lambda: fetch('org/short'), 'm-00003-of-00003.gguf')
    assert server.files_asked() == []


@pytest.mark.parametrize('repo, words', [('org/page', 'web page'), ('org/half', 'cut short'), ('org/empty', '0 bytes')])
def test_case_25_what_is_no_model_is_never_cached(server, repo, words):
    for _ in range(2): fails(BadWeights, lambda: fetch(repo), words, 'not kept')
    assert hub.downloaded() == []
    server.repos[repo]['m-Q4_K_M.gguf'] = TINY.read_bytes()
    shutil.rmtree(hub._repo_dir(repo)/'trees')
    assert fetch(repo).source == 'download'


@pytest.mark.parametrize('left', [b'', b'<html>16 bytes</>', TINY.read_bytes()[:2_000_000]])
@pytest.mark.parametrize('listed', [True, False])
def test_case_25_what_an_older_tool_left_in_the_cache_heals(server, left, listed):
    m = fetch(REPO)
    m.path.resolve().write_bytes(left)
    if not listed: shutil.rmtree(hub._repo_dir(REPO)/'trees')
    again = fetch(REPO)
    assert again.source == 'download' and again.path.read_bytes() == TINY.read_bytes()


def test_a_file_of_a_newer_format_stays(server):
    fails(BadWeights, lambda: fetch('org/new'), 'version 9')
    assert [c.repo for c in hub.downloaded()] == ['org/new']


def test_gated_and_full_disk(server, monkeypatch):
    server.gated.add(REPO)
    fails(ModelNotFound, lambda: fetch(REPO), f'{server.endpoint}/{REPO}')
    server.gated.clear()
    monkeypatch.setattr(shutil, 'disk_usage', lambda p: (0, 0, 0) and type('U', (), {'free': 5_000})())
    fails(ModelNotFound, lambda: fetch(REPO), '3.2 MB', '0.0 MB')


def test_stop(server):
    import threading
    stop = threading.Event()
    stop.set()
    fails(EngineError, lambda: fetch(REPO, stop=stop), 'stopped')
    assert hub.downloaded() == []


def test_projector_from_the_hub(server):
    assert fetch('org/omni').path.name == 'omni-Q8_0.gguf'
    path = Path(get_mmproj('org/omni'))
    assert path.name == 'mmproj-omni-F16.gguf' and path.read_bytes() == PROJECTOR.read_bytes()
    fails(ModelNotFound, lambda: get_mmproj(REPO), 'mmproj', 'Qwen3-0.6B-Q8_0.gguf')
    server.down()
    assert get_mmproj('org/omni:Q8_0') == str(path)
    assert fetch('org/omni').source == 'cache'
