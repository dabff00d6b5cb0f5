"""The guide in nbs/ runs as `make demo` runs it: offline, with no browser, answered by the default model."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).with_name('demo.py')


@pytest.mark.needs('llama')
def test_the_demo(smol):
    p = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr
    assert 'Paris' in p.stdout and 'Berlin' in p.stdout and str(smol) in p.stdout
    cached, evaluated = map(int, re.search(r'Second turn: (\d+) tokens cached, (\d+) evaluated', p.stdout).groups())
    assert cached > evaluated > 0 and 'extends the conversation' in p.stdout
