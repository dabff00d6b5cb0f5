"""Questions beside the conversation: one-shots, values, labels, judgements. None of them changes the history."""
from __future__ import annotations

from .errors import BadRequest, EngineError
from .history import said
from .types import Done, resp_text

__all__ = ['OneShotMixin']

JUDGE = 'You judge a conversation. Answer with exactly one of the labels that you are given.'


class OneShotMixin:
    "The part of a Chat that answers without remembering."

    def oneshot(self, msg, *, sp=None, messages=(), max_output_tokens=None, **settings):
        """Answer `msg` without the history, and without leaving a trace in it; returns a Resp. `messages` are what it
        sees before, `settings` such as `temp` and `think` hold for it alone."""
        side = self._aside(messages, sp=self.sp if sp is None else sp, **settings)
        return side(msg, max_output_tokens=max_output_tokens)

    def structured(self, msg, schema, *, sp=None, messages=(), max_output_tokens=None, **settings):
        """Answer with a value of `schema`: a dataclass, pydantic model, TypedDict, Enum, Literal or other type, or a JSON
        Schema as a dict. The tokens themselves are constrained, so what comes back is valid. Raises BadRequest before
        anything is generated for a schema that cannot be enforced, and EngineError when the answer did not end."""
        from .grammar import for_engine
        from .schema import to_schema
        json_schema, parse = to_schema(schema)
        grammars = for_engine(self.engine)
        grammars.json(json_schema)       # what cannot be enforced is told now
        return parse(self._constrained(msg, lambda: grammars.json(json_schema), sp, messages, max_output_tokens,
                                       **settings))

    def classify(self, text, labels, *, prompt=None, probs=False, judge=None, messages=(), sp=None):
        """The one of `labels` that fits `text` best, chosen by constrained decoding; with `probs` a dict of their
        probabilities. `prompt` asks the question (it stands before the text); `judge` is the chat to ask."""
        labels = [str(o) for o in labels]
        if len(set(labels)) < 2: raise BadRequest('classify needs at least two different labels.')
        ask = prompt or 'Classify the text.'
        msg = f'{ask}\nAnswer with one of: {", ".join(labels)}.' + (f'\n\n{text}' if text else '')
        return (judge or self)._choose(msg, labels, probs, messages, sp)

    def check(self, question, *, judge=None, messages=None) -> bool:
        "Whether the answer to `question` about the conversation so far is yes."
        seen = self.hist if messages is None else messages
        return self.classify(_transcript(seen), ['yes', 'no'], prompt=question, judge=judge, sp=JUDGE) == 'yes'

    def grades(self, criteria, *, scale=5, judge=None, messages=None) -> dict[str, int]:
        "A grade from 1 to `scale` of the conversation so far by each of `criteria`."
        text, marks = _transcript(self.hist if messages is None else messages), [str(i) for i in range(1, scale + 1)]
        ask = 'Grade the assistant by this criterion: {}. 1 is worst, {} is best.'
        return {c: int(self.classify(text, marks, prompt=ask.format(c, scale), judge=judge, sp=JUDGE)) for c in criteria}

    def _choose(self, msg, labels, probs, messages, sp):
        from .grammar import for_engine
        grammars = for_engine(self.engine)
        if probs: return self._weigh(grammars, msg, labels, messages, sp)
        return self._constrained(msg, lambda: grammars.choice(labels), '' if sp is None else sp, messages, None, temp=0)

    def _weigh(self, grammars, msg, labels, messages, sp):
        "Probabilities of `labels` as the answer to `msg`, from the logits along each label's tokens."
        from .grammar import probabilities
        side = self._side(sp or '', messages, lambda: grammars.choice(labels))
        m = side._message(msg)
        text, _ = side._prompt(side._messages([*side.hist, m]))
        ids = self.engine.tokenize(text.encode(), first=True)
        return probabilities(grammars.paths(labels), lambda path: self.engine.logits([*ids, *path]), grammars.eog())

    def _side(self, sp, messages, constraint, **settings):
        side = self._aside(messages, sp=sp, think=False if self.think is None else self.think, **settings)
        side._constraint = constraint
        return side

    def _constrained(self, msg, constraint, sp, messages, max_output_tokens, **settings):
        "The text of an answer that `constraint` allows, whole."
        side = self._side(self.sp if sp is None else sp, messages, constraint, **settings)
        *_, done = side(msg, stream='events', max_output_tokens=max_output_tokens)
        if not isinstance(done, Done) or done.finish_reason != 'stop':
            n = done.report.generated
            raise EngineError(f'The answer was not complete after {n} tokens ({done.finish_reason}): allow more with '
                              'max_output_tokens, or ask for less.')
        return resp_text(done.resp)


def _transcript(messages): return '\n'.join(f'{m["role"]}: {said(m)}' for m in messages if said(m))
