"""The root of every error this project raises on purpose, and those of the mathematics.

```
AttentionError
├── InvalidInput            the request means something that cannot be computed
│   ├── ShapeMismatch       a tensor has the wrong shape, or rows of different lengths
│   ├── NonFinite           NaN, infinity, or a number too large for the model's dtype
│   └── NumericOverflow     finite inputs whose scores or outputs overflow the model's dtype, or the answer's
├── InvalidModel            a spec or weights file that cannot be served
│   └── DownloadFailed      a checkpoint that could not be had
└── ArtifactError           an exported graph that cannot be made or trusted
```

None of them knows HTTP; `service.problems` maps them to statuses.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One place that is at fault.

    Attributes:
        pointer: JSON pointer (RFC 6901) into the request, such as `/inputs/3/17`.
        detail: what was wrong there and what would be right.
    """

    pointer: str
    detail: str


class AttentionError(Exception):
    """Something went wrong that has a name."""

    code = "attention-error"

    def __init__(self, detail: str, *fields: FieldError) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields

    @classmethod
    def at(cls, pointer: str, detail: str) -> "AttentionError":
        """The error for one place; its detail is also the error's own."""
        where = f"{pointer}: " if pointer else ""
        return cls(f"{where}{detail}", FieldError(pointer, detail))


class InvalidInput(AttentionError):
    """The request was understood but asks for something that cannot be computed."""

    code = "invalid-input"


class ShapeMismatch(InvalidInput):
    """A tensor has the wrong shape, or rows of different lengths."""

    code = "shape-mismatch"


class NonFinite(InvalidInput):
    """A number is NaN, infinite, or too large for the model's dtype."""

    code = "non-finite"


class NumericOverflow(InvalidInput):
    """The inputs are finite, but their scores or outputs overflow the model's dtype, or the answer's."""

    code = "numeric-overflow"


class InvalidModel(AttentionError):
    """A model's spec or weights cannot be served."""

    code = "invalid-model"


class DownloadFailed(InvalidModel):
    """A checkpoint could not be had, or is not the one that was meant."""

    code = "download-failed"


class ArtifactError(AttentionError):
    """An exported graph could not be made, or is not what it claims to be."""

    code = "artifact-error"
