"""Questions beside the conversation: one-shots, values, labels, judgements. None of them changes the history, nor
`use`, `turn_res` and the cache report, which are those of the last turn; `cancel()` ends them too.
"""
from __future__ import annotations

from collections.abc import Iterable

from .context import transcript
from .errors import BadRequest, EngineError
from .types import Resp, resp_text

__all__ = ['OneShotMixin']

JUDGE = 'You judge a conversation. Answer with exactly one of the labels that you are given.'


class OneShotMixin:
    "The part of a Chat that answers without remembering."

    def oneshot(self, msg, *, sp=None, messages=(), max_output_tokens=None, **settings) -> Resp:
        """Answer `msg` without the history, and without leaving a trace in it. `messages` are what it sees before,
        `settings` such as `temp`, `think` and `tools` hold for it alone."""
        side = self._aside(messages, sp=self.sp if sp is None else sp, **settings)
        return side(msg, max_output_tokens=max_output_tokens)

    def structured(self, msg, schema, *, sp=None, messages=(), max_output_tokens=None, **settings):
        """Answer with a value of `schema`: a dataclass, pydantic model, TypedDict, Enum, Literal or other type, or a
        JSON Schema as a dict. The tokens themselves are constrained, so what comes back is valid. Raises BadRequest
        before anything is generated for a schema that cannot be enforced, and EngineError when the answer did not
        end."""
        from .grammar import for_engine
        from .schema import to_schema
        json_schema, parse = to_schema(schema)
        grammars = for_engine(self.engine)
        grammars.json(json_schema)       # what cannot be enforced is told now
        sp = self.sp if sp is None else sp
        return parse(self._only(msg, lambda: grammars.json(json_schema), sp, messages, max_output_tokens, **settings))

    def classify(self, text, labels, *, prompt=None, probs=False, judge=None, messages=(), sp='', **settings):
        """The one of `labels` that fits `text` best, by constrained decoding; with `probs` a dict of the probability of
        each. Labels are texts, or values that read as text. `prompt` asks the question (it stands before the text);
        `judge` is the chat to ask."""
        named = _named(labels)
        ask = f'{prompt or "Classify the text."}\nAnswer with one of: {", ".join(named)}.'
        found = (judge or self)._choose(f'{ask}\n\n{text}'.rstrip(), list(named), probs, messages, sp, **settings)
        return {named[o]: p for o, p in found.items()} if probs else named[found]

    def check(self, question, *, judge=None, messages=None) -> bool:
        "Whether the answer to `question` about the conversation so far, or about `messages`, is yes."
        return self._judged(question, ['yes', 'no'], judge, messages) == 'yes'

    def grades(self, criteria, *, scale=5, judge=None, messages=None) -> dict[str, int]:
        "A grade from 1 to `scale` of the conversation so far, or of `messages`, by each of `criteria`."
        ask = f'Grade the assistant by this criterion: {{}}. 1 is worst, {scale} is best.'
        if isinstance(criteria, str): criteria = [criteria]
        return {c: self._judged(ask.format(c), range(1, scale + 1), judge, messages) for c in criteria}

    def _judged(self, question, labels, judge, messages):
        "The chat itself is asked behind its own conversation, which is in the cache; another reads what was said."
        seen = self.hist if messages is None else messages
        if judge is None:
            return self.classify('', labels, prompt=question, messages=seen, sp=self.sp, tools=self.toolbox)
        return self.classify(transcript(judge, seen), labels, prompt=question, judge=judge, sp=JUDGE)

    def _choose(self, msg, labels, probs, messages, sp, **settings):
        from .grammar import for_engine
        grammars = for_engine(self.engine)
        if probs: return self._weigh(grammars, msg, labels, messages, sp, **settings)
        found = self._only(msg, lambda: grammars.choice(labels), sp, messages, None, **{'temp': 0} | settings)
        if found not in labels: raise EngineError(f'The answer {found!r} is none of {", ".join(labels)}.')
        return found

    def _weigh(self, grammars, msg, labels, messages, sp, **settings):
        "Probabilities of `labels` as the answer to `msg`, from the logits along each label's tokens."
        from .grammar import probabilities
        side = self._side(sp, messages, lambda: grammars.choice(labels), **settings)
        text, _ = side._prompt(side._messages([*side.hist, side._message(msg)]))
        ids = self.engine.tokenize(text.encode(), first=True)
        return probabilities(grammars.paths(labels), lambda path: self.engine.logits([*ids, *path]), grammars.eog())

    def _side(self, sp, messages, constraint, **settings):
        "A chat whose answers `constraint()` holds; it does not think, for there is no place for that."
        side = self._aside(messages, sp=sp, **{'think': False} | settings)
        side._constraint, side.constrained = constraint, True
        return side

    def _only(self, msg, constraint, sp, messages, max_output_tokens, **settings):
        "The text of an answer that `constraint` allows, whole."
        *_, done = self._side(sp, messages, constraint, **settings)(msg, 'events', max_output_tokens)
        if done.finish_reason == 'stop': return resp_text(done.resp)
        raise EngineError(f'The answer was not complete after {done.report.generated} tokens ({done.finish_reason}): '
                          'allow more with max_output_tokens, or ask for less.')


def _named(labels):
    "The labels by their texts."
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise BadRequest(f'{labels!r} cannot be chosen from: give a list of labels.')
    named = {str(o): o for o in labels}
    if len(named) < 2: raise BadRequest('classify needs at least two different labels.')
    return named
