"""From a decoded request to its answer: model and limits checked, work queued, verdicts put together."""

import asyncio
import os
from dataclasses import dataclass

from models.errors import ShapeMismatch
from models.types import TensorName
from service.backends.base import BackendInfo
from service.batcher import Batcher, Limits, LoopClock, ThreadSlots, Ticket
from service.catalog import Catalog, LoadedModel
from service.devices import Device
from service.errors import TooLarge
from service.messages import AttentionInput, AttentionOutput
from service.metrics import Metrics
from service.packing import Job, Unit
from service.settings import MIB, Settings

CALLER = ("projections", "")
"""Name and version that answers give where the caller brought the matrices."""


def compute_slots(settings: Settings, device: Device) -> int:
    """Batches computed at the same time: as set, else one per core this process may use, or one on a GPU."""
    if settings.compute_threads:
        return settings.compute_threads
    return 1 if device.kind == "cuda" else len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What decides how large tensors are: heads, and widths of a query and of a value."""

    heads: int
    head_dim: int
    value_dim: int

    def elements(self, name: TensorName, n: int) -> int:
        """Elements of a tensor for n tokens."""
        if name in ("weights", "scores"):
            return self.heads * n * n
        return self.heads * n * (self.head_dim if name in ("query", "key") else self.value_dim)


class LocalEngine:
    """Computes in this process."""

    def __init__(self, settings: Settings, catalog: Catalog, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the layers of `catalog` from `loop`, whose thread alone may call this object."""
        self.settings, self.catalog = settings, catalog
        self.limits = Limits(
            requests=settings.max_inflight_requests,
            sequences=settings.max_inflight_sequences,
            tokens=settings.max_inflight_tokens,
            bytes=settings.max_inflight_mib * MIB,
            batch_sequences=settings.max_batch_sequences,
        )
        slots = ThreadSlots(compute_slots(settings, catalog.device), loop)
        self.batcher = Batcher(slots, self.limits, LoopClock(loop), metrics)

    def submit(self, request: AttentionInput, bytes_in: int, deadline: float) -> "Submission":
        """Queue a request.

        Args:
            request: as decoded.
            bytes_in: size of its tensors as received.
            deadline: by `time.monotonic`.

        Raises:
            NotFound: if there is no such model.
            InvalidInput: if the tensors do not fit the model.
            TooLarge: if the request, or its answer, is larger than a limit.
            Unavailable: if it cannot be taken now.
            DeadlineExceeded: if its deadline has passed.
        """
        options = request.options
        backend = options.backend or self.settings.backend
        if request.projections is not None:
            model, name = None, CALLER
            query, value = request.projections.query, request.projections.value
            sizes = Sizes(1, query.shape[1], value.shape[1])
            embed_dim, is_causal, scale = len(query), False, query.shape[1] ** -0.5
        else:
            model = self.catalog.find(options.model or self.settings.default_model)
            spec = model.entry.spec
            name = (spec.name, spec.version)
            sizes = Sizes(spec.num_heads, spec.head_dim, spec.v_dim)
            embed_dim, is_causal, scale = spec.embed_dim, spec.is_causal, spec.effective_scale
        self._check_fit(request, model, embed_dim)
        size = bytes_in + self._check_size(request, sizes)
        job = Job(
            runner=(model.runners if model else self.catalog.projections)[backend],
            backend=backend,
            options=options,
            is_causal=options.is_causal or is_causal,
            scale=scale if options.scale is None else options.scale,
            projections=request.projections,
        )
        units = [Unit(job, sequence, request.pointer(i)) for i, sequence in enumerate(request.sequences)]
        ticket = self.batcher.submit(units, size, deadline)
        return Submission(ticket, request, name, self.catalog.backends[backend].info)

    def _check_fit(self, request: AttentionInput, model: LoadedModel | None, embed_dim: int) -> None:
        """Raise `InvalidInput` where a tensor does not fit the model or the caller's projections."""
        owner = model.entry.spec.id if model else "projections"
        heads = model.entry.spec.num_heads if model else 1
        for i, sequence in enumerate(request.sequences):
            if (width := sequence.inputs.shape[1]) != embed_dim:
                raise ShapeMismatch.at(
                    f"{request.pointer(i)}/0", f"the embedding has {width} numbers, but {owner} takes {embed_dim}"
                )
            bias = sequence.attn_bias
            if bias is not None and bias.ndim == 3 and len(bias) not in (1, heads):
                where = request.pointer(i).replace("inputs", "attn_bias")
                raise ShapeMismatch.at(where, f"the bias is for {len(bias)} heads, but {owner} has {heads}")

    def _check_size(self, request: AttentionInput, sizes: Sizes) -> int:
        """Bytes that computing the request will take as float32 tensors.

        Raises:
            TooLarge: saying what would fit.
        """
        settings, options = self.settings, request.options
        if (count := len(request.sequences)) > settings.max_sequences:
            raise TooLarge.at("/inputs", f"{count} sequences; at most {settings.max_sequences} fit in one request")
        computed = answered = tokens = 0
        for i, sequence in enumerate(request.sequences):
            n = len(sequence.inputs)
            tokens += n
            if n > settings.max_tokens:
                raise TooLarge.at(request.pointer(i), f"{n} tokens; a sequence may have {settings.max_tokens}")
            for name in options.wanted:
                elements = sizes.elements(name, n)
                computed += 4 * elements
                if name in ("weights", "scores") and options.average_heads:
                    elements //= sizes.heads
                if name == "weights" and options.top_k:
                    elements = min(elements, 2 * elements // n * options.top_k)
                answered += 4 * elements
        if tokens > self.limits.tokens:
            raise TooLarge.at("/inputs", f"{tokens} tokens in all; at most {self.limits.tokens} fit in one request")
        self._check_bytes("the answer", answered, settings.max_answer_mib * MIB, request, sizes)
        self._check_bytes("the computation", computed, self.limits.bytes, request, sizes)
        return computed

    def _check_bytes(self, what: str, size: int, most: int, request: AttentionInput, sizes: Sizes) -> None:
        if size <= most:
            return
        longest = max(len(sequence.inputs) for sequence in request.sequences)
        square = [name for name in request.options.wanted if name in ("weights", "scores")]
        advice = [f"send fewer than {len(request.sequences)} sequences"] if len(request.sequences) > 1 else []
        if square:
            advice.append(f"leave {' and '.join(square)} out of `return`")
            if what == "the answer" and "weights" in square and not request.options.top_k:
                advice.append("ask for `top_k`")
            if what == "the answer" and sizes.heads > 1 and not request.options.average_heads:
                advice.append("ask for `average_heads`")
        raise TooLarge(
            f"{what} would take {size / MIB:.0f} MiB as float32 for {longest} tokens; {most // MIB} MiB are allowed. "
            f"To fit, {', or '.join(advice) or 'send fewer tokens'}."
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """A queued request and what its answer will say of itself."""

    ticket: Ticket
    request: AttentionInput
    model: tuple[str, str]
    backend: BackendInfo

    async def result(self) -> AttentionOutput:
        """Wait for every sequence.

        Raises:
            AttentionError: the first that ended the request.
        """
        verdicts = await self.ticket.future
        options = self.request.options
        return AttentionOutput(
            answers=[answer for answer, _ in verdicts],
            fully_masked_rows=[rows for _, rows in verdicts],
            form=self.request.form,
            encoding=options.encoding,
            model=self.model,
            backend=self.backend,
        )
