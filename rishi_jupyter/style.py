"The style sheet of a turn, small enough that every saved output carries its own."
import re
from importlib.resources import files

__all__ = ['SHEET', 'minified']


def minified(css) -> str:
    "`css` without comments and without the space that no rule needs."
    css = re.sub(r'/\*.*?\*/', '', css, flags=re.S)
    css = re.sub(r'\s+', ' ', css)
    return re.sub(r'\s*([{};,])\s*', r'\1', css).replace(';}', '}').replace(': ', ':').strip()


SHEET = minified(files(__package__).joinpath('style.css').read_text(encoding='utf-8'))
