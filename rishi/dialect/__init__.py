"""How a model family spells chat: messages to text through the model's own template, raw text back to events."""
from .split import Splitter
from .table import Dialect, by_name, detect
from .template import Template

__all__ = ['Dialect', 'Splitter', 'Template', 'by_name', 'detect']
