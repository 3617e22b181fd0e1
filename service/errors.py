"""Errors of the service, beside those of the mathematics in `models.errors`. None knows HTTP.

```
AttentionError
├── InvalidInput ... see models.errors
│   ├── WrongType           a string where a number belongs, a float where a boolean does
│   ├── UnknownField        a field or parameter that does not exist
│   ├── InvalidOption       a field or parameter with a value it cannot have
│   └── ConflictingFields   fields that exclude each other, or the same one given twice
├── Unparsable              the body is not what its media type says
├── UnsupportedMediaType    a body, or a content encoding, nobody here reads
├── NotAcceptable           an answer in a media type nobody here writes
├── MethodNotAllowed        the path exists, but not for that method
├── TooLarge                more than a limit allows, in bytes, tokens or sequences
├── NotFound                no such model, version, misconception or page
├── NotOffered              a known way to answer that this service does not have
├── Conflict                what is asked for would break something else
├── UnservableModel         a model that was to be loaded cannot be
├── Unauthorized            a key is needed and none came
├── Forbidden               a key came that is not known, or does not allow this
├── Later                   worth trying again, and when
│   ├── RateLimited         over the caller's own rate
│   └── Unavailable         not now
│       ├── QueueFull       the queue holds as much as it may
│       ├── Draining        the service is shutting down
│       ├── NotReady        models are still loading, or one of them failed its checks
│       ├── WorkerLost      the process that held the request has ended
│       ├── EngineLost      the process that computed the request has ended
│       └── NotInstalled    a model that the service knows of, but whose files are not here
├── DeadlineExceeded        not done in the time the caller gave
├── ClientTimeout           the caller did not send its body in time
├── ClientGone              nobody is there to take the answer
├── BackendFailed           the computation failed: a bug or a broken device
├── InternalError           anything unforeseen
├── ParityError             two backends disagree about a layer; met at load, never by a request
└── ConfigurationError      the service cannot start as it is configured
```
"""

from models.errors import AttentionError, FieldError, InvalidInput


class WrongType(InvalidInput):
    """A value is of the wrong JSON or tensor type."""

    code = "wrong-type"


class UnknownField(InvalidInput):
    """A field or parameter does not exist."""

    code = "unknown-field"


class InvalidOption(InvalidInput):
    """A field or parameter has a value it cannot have."""

    code = "invalid-option"


class ConflictingFields(InvalidInput):
    """Fields exclude each other, or the same one was given twice with different values."""

    code = "conflicting-fields"


class Unparsable(AttentionError):
    """The body is not what its media type says."""

    code = "unparsable"


class UnsupportedMediaType(AttentionError):
    """Nobody here reads a body of that media type or content encoding."""

    code = "unsupported-media-type"


class NotAcceptable(AttentionError):
    """Nobody here writes an answer in any of the accepted media types."""

    code = "not-acceptable"


class MethodNotAllowed(AttentionError):
    """The path exists, but not for that method."""

    code = "method-not-allowed"

    def __init__(self, detail: str, allowed: tuple[str, ...]) -> None:
        super().__init__(detail)
        self.allowed = allowed


class TooLarge(AttentionError):
    """The request, or the answer to it, is larger than a limit of this service."""

    code = "too-large"


class NotFound(AttentionError):
    """There is no such model, version, misconception or page."""

    code = "not-found"


class NotOffered(AttentionError):
    """What is asked for exists elsewhere, but is not offered here."""

    code = "not-offered"


class Conflict(AttentionError):
    """What is asked for would break something else."""

    code = "conflict"


class UnservableModel(AttentionError):
    """The model cannot be served as its folder is now; what was served before still is."""

    code = "unservable-model"


class Unauthorized(AttentionError):
    """An API key is needed."""

    code = "unauthorized"


class Forbidden(AttentionError):
    """The API key is not known, or does not allow this."""

    code = "forbidden"


class Later(AttentionError):
    """Worth trying again.

    Attributes:
        retry_after_s: seconds after which a new try makes sense.
    """

    code = "later"

    def __init__(self, detail: str, *fields: FieldError, retry_after_s: float = 1.0) -> None:
        super().__init__(detail, *fields)
        self.retry_after_s = retry_after_s


class RateLimited(Later):
    """The caller sends more requests than its rate allows."""

    code = "rate-limited"


class Unavailable(Later):
    """The service cannot take the request now."""

    code = "unavailable"


class QueueFull(Unavailable):
    """The queue holds as much work as it may."""

    code = "queue-full"


class Draining(Unavailable):
    """The service is shutting down and takes no new work."""

    code = "draining"


class NotReady(Unavailable):
    """Models are still loading, or one of them failed its checks."""

    code = "not-ready"


class WorkerLost(Unavailable):
    """The process that held the request has ended before it was answered."""

    code = "worker-lost"


class EngineLost(Unavailable):
    """The process that computes has ended before the request was answered."""

    code = "engine-lost"


class NotInstalled(Unavailable):
    """The model is known by name, but its files have not been installed."""

    code = "not-installed"


class DeadlineExceeded(AttentionError):
    """The request was not done in the time it was given."""

    code = "deadline-exceeded"


class ClientTimeout(AttentionError):
    """The body did not arrive in time."""

    code = "client-timeout"


class ClientGone(AttentionError):
    """The client closed the connection before its answer was there."""

    code = "client-gone"


class BackendFailed(AttentionError):
    """The computation failed on our side; the log says why."""

    code = "backend-failed"


class InternalError(AttentionError):
    """Something unforeseen went wrong on our side; it has been logged."""

    code = "internal-error"


class ParityError(AttentionError):
    """Two backends disagree about a layer, or one disagrees with itself."""

    code = "parity"


class ConfigurationError(AttentionError):
    """The service cannot start as it is configured."""

    code = "configuration"
