"""`needs` and RISHI_REQUIRE: what is missing skips, unless it was asked for; then any other skip fails too."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = '''
import pytest
@pytest.mark.needs('mlx')
def test_needs(): pass
def test_skips(): pytest.skip('not today')
@pytest.mark.xfail(strict=True)
def test_fault(): assert False
def test_runs(): pass
'''
GONE = '''
import conftest
conftest.MISSING.update(mlx=lambda: 'mlx is away', browser=lambda: '')
'''


def outcome(tmp_path, require, suite=SUITE):
    "The last line of a run of `suite` in which mlx is missing and a browser is there."
    (tmp_path/'test_suite.py').write_text(suite)
    (tmp_path/'gone.py').write_text(GONE)
    (tmp_path/'lab.py').write_text('')  # no browser fixtures here: they take a second to import
    (tmp_path/'pytest.ini').write_text('[pytest]\nmarkers = needs(*names): what it needs\n')
    env = os.environ | {'RISHI_REQUIRE': require, 'PYTHONPATH': os.pathsep.join([str(tmp_path), str(HERE)]),
                        'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'}
    p = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'conftest', '-p', 'gone', '-p', 'no:cacheprovider'],
                       cwd=tmp_path, env=env, capture_output=True, text=True)
    return p.stdout + p.stderr


@pytest.mark.parametrize('require, want', [
    ('', '1 passed, 2 skipped, 1 xfailed'), ('mlx', '1 failed, 1 passed, 1 xfailed, 1 error'),
    ('browser', '1 failed, 1 passed, 1 skipped, 1 xfailed')])
def test_what_is_required_may_not_be_skipped(tmp_path, require, want): assert want in outcome(tmp_path, require)


def test_a_whole_file_may_not_be_skipped(tmp_path):
    suite = 'import pytest; pytest.importorskip("surely_not_there")\ndef test_a(): pass\n'
    assert '1 skipped' in outcome(tmp_path, '', suite) and '1 error' in outcome(tmp_path, 'browser', suite)


def test_names_are_checked(tmp_path):
    assert 'RISHI_REQUIRE knows llama, browser, mlx' in outcome(tmp_path, 'lama')
    assert 'known are' in outcome(tmp_path, '', 'import pytest\n@pytest.mark.needs("lama")\ndef test_a(): pass\n')
