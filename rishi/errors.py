"""What can go wrong, told apart by whose fault it is. Every message is one line: what failed, why, the next step.

    RishiError
    ├── BadRequest                        the caller asked for something that cannot be
    ├── ModelNotFound                     no weights under that name here, or they could not be fetched
    │   └── BadWeights                    a file is there, but it is not a whole model
    ├── BackendMissing                    a package is not installed; the message holds the pip line
    ├── MediaError                        an image or a clip that cannot be used
    └── EngineError                       the engine refused or failed
        ├── ContextWindowExceededError    the prompt does not fit into the model's window
        ├── EngineBusy                    another request is running and the caller would not wait
        ├── EngineClosed                  used after `close()`
        └── EngineDied                    the native library cannot run on this machine

Faults of the model (an unknown tool, bad JSON, a tool that raised) are tool results that it reads, not exceptions.
"""

__all__ = ['RishiError', 'BadRequest', 'ModelNotFound', 'BadWeights', 'BackendMissing', 'MediaError', 'EngineError',
           'ContextWindowExceededError', 'EngineBusy', 'EngineClosed', 'EngineDied']


class RishiError(Exception):
    "Base of all errors that rishi raises on purpose."

    def _render_traceback_(self):
        "One line in a notebook: the message says all that its reader needs."
        return [f'{type(self).__name__}: {self}']


class BadRequest(RishiError, ValueError): "The caller's mistake: an unknown option, a name that says nothing."
class ModelNotFound(RishiError): "No weights under that name on this machine, and none could be fetched."
class BadWeights(ModelNotFound): "The file exists but is no whole model: wrong format, or cut short."
class BackendMissing(RishiError): "A backend's package is not installed."
class MediaError(RishiError): "An image or a clip that cannot be used."
class EngineError(RishiError): "The engine refused or failed; the conversation is as it was."


class ContextWindowExceededError(EngineError):
    "The prompt has `used` tokens; the window holds `limit`."

    def __init__(self, used, limit, hint='Load with a larger n_ctx, shorten the message, or start a new chat.'):
        super().__init__(f'The prompt does not fit: it has {used:,} tokens; the window holds {limit:,}. {hint}')
        self.used, self.limit = used, limit


class EngineBusy(EngineError): "Another request is running on this engine and the caller would not wait."
class EngineClosed(EngineError): "The engine was closed; make a new chat."
class EngineDied(EngineError): "The native library cannot run on this machine; the message holds the rebuild line."
