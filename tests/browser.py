"""Where Chromium is. As a script: install it from the distribution when there is none and that is possible."""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ['chromium', 'missing']

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', 'chrome', 'msedge')
APPS = ('/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
        '/Applications/Chromium.app/Contents/MacOS/Chromium')
TRIED = Path(sys.prefix)/'.chromium-tried'
INSTALL = (['apt-get', 'update', '-qq'], ['apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'chromium'])


def chromium() -> str | None:
    "The browser's path: `$CHROMIUM`, or the first known name on the path."
    given = os.environ.get('CHROMIUM')
    found = (given, *map(shutil.which, NAMES), *APPS)
    return next((p for p in found if p and os.access(p, os.X_OK) and os.path.isfile(p)), None)


def missing() -> str:
    "Why no browser test can run here, or ''."
    for module in ('playwright', 'jupyterlab'):
        if importlib.util.find_spec(module) is None: return f'{module} is not installed: make setup'
    return '' if chromium() else 'no Chromium was found: install it, or set CHROMIUM to its path'


def install() -> bool:
    "Try it once in this environment; another try would fail the same way and take as long."
    if TRIED.exists() or sys.platform != 'linux' or os.geteuid() != 0 or not shutil.which('apt-get'): return False
    TRIED.touch()
    print('installing Chromium for the browser tests', flush=True)
    env = os.environ | {'DEBIAN_FRONTEND': 'noninteractive'}
    ok = [subprocess.run(cmd, env=env, stdout=subprocess.DEVNULL).returncode == 0 for cmd in INSTALL][-1]
    if ok: TRIED.unlink()
    return ok


if __name__ == '__main__':
    if not chromium(): install()
    why = missing()
    print(f'browser tests: {"skipped, " + why if why else chromium()}')
