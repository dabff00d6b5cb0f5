"""The families: one small entry each. An entry says how raw text is told apart, nothing else."""
from __future__ import annotations

from dataclasses import dataclass

__all__ = ['Dialect', 'detect']


@dataclass(frozen=True)
class Dialect:
    "`think` is the pair of marks around the model's thinking."
    name: str
    think: tuple[str, str] = ('<think>', '</think>')

    def thinking(self, prompt: str) -> str:
        """Where the model starts, given the prompt's last characters: 'open' (the template wrote the opening mark),
        'closed' (it wrote both: thinking is off) or 'unset' (the model decides)."""
        tail = prompt.rstrip()
        if tail.endswith(self.think[0]): return 'open'
        return 'closed' if tail.endswith(self.think[1]) else 'unset'


PLAIN = Dialect('plain')


def detect(template: str) -> Dialect:
    "The dialect of the model whose chat template is `template`."
    return PLAIN
