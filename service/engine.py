"""From a decoded request to its answer: model and limits checked, work queued, verdicts put together."""

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from models.errors import AttentionError, InvalidInput, ShapeMismatch
from models.tokenizer import Tokens
from models.types import SequenceInput
from service.backends.base import BackendInfo
from service.batcher import Batcher
from service.catalog import Catalog, LoadedEncoder, LoadedModel
from service.clock import LoopClock
from service.cores import Cores
from service.devices import Device, available_cores
from service.errors import InvalidOption, TooLarge
from service.lane import Team
from service.messages import OWN, Answer, AttentionInput, AttentionOutput, Options, TextInput
from service.metrics import Metrics
from service.packing import Job, Unit, as_float16
from service.settings import MIB, Settings
from service.shadow import Shadow
from service.sizes import Sizes, checked_size
from service.slots import ThreadSlots
from service.statistics import Statistics
from service.tickets import Limits, Ticket

ROUND_IN_THREAD_FROM = 1 << 20
"""Bytes of a request and its tensors from which they are rounded to float16 in a thread: NumPy takes 2 ms for these."""

CALLER = (OWN, "")
"""Name and version that answers give where the caller brought the matrices."""

MOST_PLANS = 256
"""Kinds of requests whose checks are remembered for a model."""

STALLED_S = 60.0
"""A batch that runs longer than this says that the device hangs: the service is not ready any more."""


Verdicts = list[tuple[Answer, list[int]]]
"""What became of a request: of each sequence its answer, and the rows that see nothing."""


class Queue(Protocol):
    """What becomes of tickets; see `Batcher`."""

    def cancel(self, ticket: Ticket, error: AttentionError) -> None:
        """See `Batcher.cancel`."""

    def release(self, ticket: Ticket) -> None:
        """See `Batcher.release`."""

    def refuse(self) -> None:
        """See `Batcher.refuse`."""

    async def drain(self) -> None:
        """See `Batcher.drain`."""

    def close(self) -> None:
        """See `Batcher.close`."""


def compute_slots(settings: Settings, device: Device) -> int:
    """Batches computed at the same time: as set, else one per core this process may use, or one on a GPU."""
    if settings.compute_threads:
        return settings.compute_threads
    return 1 if device.kind == "cuda" else available_cores()


class LocalEngine:
    """Computes in this process.

    Attributes:
        batcher: what tickets are cancelled by and released to.
        own: statistics of requests that bring their own matrices.
    """

    batcher: Queue
    own: Statistics

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        shadow: Shadow | None = None,
        cores: Cores | None = None,
    ) -> None:
        """Serve the layers of `catalog` from `loop`, whose thread alone may call this object.

        Args:
            settings: limits and slots.
            catalog: what is served.
            metrics: where work is counted.
            loop: the event loop.
            shadow: what looks on, if anything does.
            cores: see `ThreadSlots`.
        """
        self.settings, self.catalog, self.shadow, self.own = settings, catalog, shadow, Statistics()
        self.limits = Limits(
            requests=settings.max_inflight_requests,
            sequences=settings.max_inflight_sequences,
            tokens=settings.max_inflight_tokens,
            bytes=settings.max_inflight_mib * MIB,
            batch_sequences=settings.max_batch_sequences,
        )
        on_cpu = catalog.device.kind == "cpu"
        count = compute_slots(settings, catalog.device)
        self._slots = ThreadSlots(count, loop, measures=on_cpu, cores=cores if on_cpu else None)
        self.batcher = self._batcher = Batcher(self._slots, self.limits, LoopClock(loop), metrics)

    @property
    def usable(self) -> bool:
        """Whether requests are taken at all."""
        return not self.catalog.failures

    def team(self) -> AbstractContextManager[Team]:
        """Who reads and writes long bodies: the thread that asks, and whoever computes nothing meanwhile."""
        return self._slots.team()

    def obstacle(self) -> str:
        """Why this engine is not ready; empty if it is."""
        if failures := self.catalog.failures:
            return f"backends disagree: {'; '.join(failures)}"
        if not self._batcher.alive:
            return "a compute slot has died"
        if (busy := self._batcher.oldest_run_s()) > STALLED_S:
            return f"a batch has been computing for {busy:.0f} s"
        return ""

    def statistics(self, name: str) -> Statistics:
        """What became of a model's requests, `name` or `name@version`, or of those with their own matrices, `OWN`.

        Raises:
            NotFound: if there is no such model.
        """
        return self.own if name == OWN else self.catalog.find(name).statistics

    def submit(self, request: AttentionInput, bytes_in: int, deadline: float) -> "Submission":
        """Queue a request: `queue` what `prepare` makes of it."""
        return self.queue(self.prepare(request, bytes_in), deadline)

    def prepare(self, request: AttentionInput, bytes_in: int) -> "Prepared":
        """Check a request against its model and the limits of one request; nothing is queued yet.

        Args:
            request: as decoded.
            bytes_in: size of its tensors as received.

        Raises:
            NotFound: if there is no such model.
            InvalidInput: if the tensors do not fit the model.
            TooLarge: if the request, or its answer, is larger than a limit.
        """
        options, sequences = request.options, request.sequences
        model: LoadedModel | None = None
        plain: tuple[int, tuple[int, ...]] | None = None
        if request.projections is None:
            model = self.catalog.layer(options.model or self.settings.default_model)
            if len(sequences) == 1 and sequences[0].attn_bias is None and not request.padded_to:
                plain = (id(options), sequences[0].inputs.shape)
                known: _Plan | None = model.remembered.get(plain)
                if known is not None and known.limits is self.limits and bytes_in + known.computed <= self.limits.bytes:
                    units = [Unit(known.job, sequences[0], request.pointer(0))]
                    return Prepared(request, units, known.name, known.info, known.sizes, bytes_in + known.computed)
        prepared = self._prepared(request, model, bytes_in)
        if model is not None and plain is not None:
            if len(model.remembered) >= MOST_PLANS:
                model.remembered.clear()
            computed = prepared.size - bytes_in
            model.remembered[plain] = _Plan(
                options, self.limits, prepared.units[0].job, prepared.name, prepared.info, prepared.sizes, computed
            )
        return prepared

    def _prepared(self, request: AttentionInput, model: LoadedModel | None, bytes_in: int) -> "Prepared":
        options = request.options
        backend = options.backend or self.settings.backend
        if request.projections is not None:
            name = CALLER
            query, value = request.projections.query, request.projections.value
            sizes = Sizes(1, query.shape[1], value.shape[1], len(query))
            embed_dim, is_causal, window, scale = len(query), False, None, query.shape[1] ** -0.5
        else:
            assert model is not None, "without projections there is a model"
            spec = model.entry.spec
            name = (spec.name, spec.version)
            sizes = Sizes(spec.num_heads, spec.head_dim, spec.v_dim, spec.embed_dim)
            embed_dim, is_causal = spec.embed_dim, spec.is_causal
            window, scale = spec.window, spec.effective_scale
        self._check_fit(request, model, embed_dim)
        runner = (model.runners if model else self.catalog.projections)[backend]
        # A padded answer takes as much as if every sequence were as long.
        lengths = [request.padded_to or len(sequence.inputs) for sequence in request.sequences]
        size = checked_size(request, lengths, sizes, bytes_in, self.settings, self.limits, runner.holds_scores)
        job = Job(
            runner=runner,
            backend=backend,
            options=options,
            wanted=options.wanted,
            is_causal=options.is_causal or is_causal,
            scale=scale if options.scale is None else options.scale,
            window=window,
            projections=request.projections,
            statistics=model.statistics if model else self.own,
        )
        units = [Unit(job, sequence, request.pointer(i)) for i, sequence in enumerate(request.sequences)]
        return Prepared(request, units, name, self.catalog.info(backend, *name), sizes, size)

    def tokenised(self, request: TextInput) -> "Tokenised":
        """The tokens of a request that brings text. May be called from any thread.

        Raises:
            NotFound, NotInstalled: if there is no such encoder.
            InvalidInput: if a text cannot be tokenised, or the encoder has no layer of a number that is asked for.
            TooLarge: if a text has more tokens than the encoder takes.
        """
        encoder = self.catalog.encoder(request.options.model or self.settings.default_text_model)
        spec = encoder.entry.spec
        if request.options.layers != "all":
            for i, layer in enumerate(request.options.layers):
                if layer >= spec.num_layers:
                    raise InvalidOption.at(
                        f"/layers/{i}", f"{spec.id} has no layer {layer}; its layers are 0 to {spec.num_layers - 1}"
                    )
        found = []
        for i, text in enumerate(request.texts):
            try:
                tokens = encoder.tokenizer.encode(text)
            except InvalidInput as error:
                raise InvalidInput.at(request.pointer(i), str(error)) from error
            if (n := len(tokens.ids)) > spec.max_positions:
                raise TooLarge.at(request.pointer(i), f"{n} tokens; {spec.id} takes {spec.max_positions}")
            found.append(tokens)
        return Tokenised(request, encoder, found)

    def prepare_text(self, tokenised: "Tokenised", bytes_in: int) -> "Prepared":
        """Check a request that brings text; arguments and errors as in `prepare`."""
        request, encoder = tokenised.request, tokenised.encoder
        spec, options = encoder.entry.spec, request.options
        backend = options.backend or self.settings.backend
        layers = range(spec.num_layers) if options.layers == "all" else sorted(set(options.layers))
        sizes = Sizes(spec.num_heads, spec.head_dim, spec.head_dim, spec.embed_dim, len(layers))
        lengths = [len(tokens.ids) for tokens in tokenised.tokens]
        if request.padded:
            lengths = [max(lengths)] * len(lengths)
        runner = encoder.runners[backend]
        size = checked_size(request, lengths, sizes, bytes_in, self.settings, self.limits, runner.holds_scores)
        job = Job(
            runner=runner,
            backend=backend,
            options=options,
            wanted=tuple(f"layers.{layer}.{name}" for layer in layers for name in options.wanted),
            is_causal=False,
            scale=1.0,
            statistics=encoder.statistics,
        )
        units = [Unit(job, SequenceInput(t.ids), request.pointer(i)) for i, t in enumerate(tokenised.tokens)]
        name = (spec.name, spec.version)
        return Prepared(request, units, name, self.catalog.info(backend, *name), sizes, size, tokenised.tokens)

    def queue(self, prepared: "Prepared", deadline: float) -> "Submission":
        """Hand checked work to the queue, and let the shadow see it.

        Args:
            prepared: what is to be computed.
            deadline: when its answer is no longer wanted, by `time.monotonic`.

        Raises:
            Unavailable: if it cannot be taken now.
            DeadlineExceeded: if its deadline has passed.
        """
        units, request = prepared.units, prepared.request
        ticket = self._batcher.submit(units, prepared.size, deadline)
        if self.shadow is not None:
            alone = [prepared.sizes.alone(unit.length, request.options) for unit in units]
            self.shadow.watch(ticket.future, prepared.name, units, alone)
        return Submission(ticket, prepared)

    def _check_fit(self, request: AttentionInput, model: LoadedModel | None, embed_dim: int) -> None:
        """Raise `InvalidInput` where a tensor does not fit the model or the caller's projections."""
        owner = model.entry.spec.id if model else "projections"
        heads = model.entry.spec.num_heads if model else 1
        if "projected" in request.options.returns and (model is None or model.entry.weights.output is None):
            raise InvalidOption.at("/return", f"{owner} has no output projection, so there is no `projected`")
        for i, sequence in enumerate(request.sequences):
            if (width := sequence.inputs.shape[1]) != embed_dim:
                raise ShapeMismatch.at(
                    f"{request.pointer(i)}/0", f"the embedding has {width} numbers, but {owner} takes {embed_dim}"
                )
            bias = sequence.attn_bias
            if bias is not None and bias.ndim == 3 and len(bias) not in (1, heads):
                where = request.pointer(i).replace("inputs", "attn_bias")
                raise ShapeMismatch.at(where, f"the bias is for {len(bias)} heads, but {owner} has {heads}")


@dataclass(frozen=True, slots=True)
class Tokenised:
    """A request that brings text, the encoder it asks for, and the tokens of each text."""

    request: TextInput
    encoder: LoadedEncoder
    tokens: list[Tokens]


@dataclass(slots=True)
class Prepared:
    """A request that has been checked: what can be queued.

    Attributes:
        request: as decoded.
        units: its sequences.
        name: name and version of what computes it.
        info: with what.
        sizes: of what computes it.
        size: bytes that it and its tensors take.
        tokens: of each text; None where the caller brought embeddings.
    """

    request: AttentionInput | TextInput
    units: list[Unit]
    name: tuple[str, str]
    info: BackendInfo
    sizes: Sizes
    size: int
    tokens: list[Tokens] | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was found of a request for one sequence: it holds for all that have the same options and shape.

    Attributes:
        options: of that request; while they are held here, no others have their identity.
        limits: by which it was checked.
        computed: bytes of the tensors asked for.
    """

    options: Options
    limits: Limits
    job: Job
    name: tuple[str, str]
    info: BackendInfo
    sizes: Sizes
    computed: int


@dataclass(slots=True)
class Submission:
    """A queued request."""

    ticket: Ticket
    prepared: Prepared

    async def result(self) -> AttentionOutput:
        """Wait for every sequence; errors as in `verdicts` and in `output`."""
        return await self.output(await self.verdicts())

    async def verdicts(self) -> Verdicts:
        """Wait for every sequence.

        Raises:
            AttentionError: the first that ended the request.
        """
        return await self.ticket.future

    async def output(self, verdicts: Verdicts) -> AttentionOutput:
        """What `output_now` gives, while the event loop goes on if that takes long."""
        if self.prepared.request.options.dtype == "float16" and self.ticket.bytes >= ROUND_IN_THREAD_FROM:
            return await asyncio.to_thread(self.output_now, verdicts)
        return self.output_now(verdicts)

    def output_now(self, verdicts: Verdicts) -> AttentionOutput:
        """The verdicts as an answer, in the dtype asked for.

        Raises:
            NumericOverflow: if that is float16 and the answer does not fit.
        """
        prepared, answers, rows = self.prepared, [], []
        for answer, dead in verdicts:
            answers.append(answer)
            rows.append(dead)
        request, options = prepared.request, prepared.request.options
        if options.dtype == "float16":  # only now: the shadow compares what was computed
            answers = [as_float16(answer, request.pointer(i)) for i, answer in enumerate(answers)]
        return AttentionOutput(
            answers,
            rows,
            request.form,
            options.encoding,
            prepared.name,
            prepared.info,
            options.format,
            options.decimals,
            prepared.tokens,
        )
