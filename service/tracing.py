"""Spans of requests, by OpenTelemetry: off unless asked for, and then sent by a thread of its own.

A request's span is begun when its headers have been read, so that log lines know its trace. All that is known of it,
and the spans of its stages, whose times have been measured anyhow, are added when it has ended: nothing is done for
spans while a request is answered. See docs/adr/0015-spans-at-the-end.md.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from service.errors import ConfigurationError
from service.metrics import package_version
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

Headers = Mapping[bytes, bytes]
Attributes = Mapping[str, AttributeValue]

SERVICE = "self-attention-service"

EXPORTER = "OTEL_TRACES_EXPORTER"

CLOSE_S = 2.0
"""Longest wait, while stopping, for the last spans to be taken."""


class _Headers(Getter[Headers]):
    """How propagators read our headers."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Headers) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_HEADERS = _Headers()


class Tracing:
    """Makes spans, and has them sent."""

    def __init__(self, provider: "TracerProvider") -> None:
        """Make them by a provider, which is shut down by `close`."""
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE, package_version())

    def begin(self, headers: Headers, attributes: Attributes, began_ns: int) -> Span:
        """Begin the span of a request, below the caller's if its headers name one.

        Args:
            headers: lower-case names to values.
            attributes: what a sampler may want to know.
            began_ns: when, since the epoch, ns.
        """
        parent = propagate.extract(headers, Context(), _HEADERS)
        return self._tracer.start_span("request", parent, SpanKind.SERVER, attributes, start_time=began_ns)

    def end(
        self,
        span: Span,
        name: str,
        attributes: Attributes,
        stages: Sequence[tuple[str, int, int]],
        ended_ns: int,
        *,
        failed: bool,
    ) -> None:
        """End it.

        Args:
            span: as it was begun.
            name: of few values: paths and models would make too many.
            attributes: what is known of the request.
            stages: name, begin and end of each, ns since the epoch.
            ended_ns: when it ended, ns since the epoch.
            failed: whether that was our fault.
        """
        if span.is_recording():
            span.update_name(name)
            span.set_attributes(attributes)
            if failed:
                span.set_status(Status(StatusCode.ERROR))
            within = set_span_in_context(span, Context())
            for stage, begin_ns, end_ns in stages:
                self._tracer.start_span(stage, within, start_time=begin_ns).end(end_ns)
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is left, if somebody takes it soon."""
        last = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        last.start()
        last.join(CLOSE_S)


def check(settings: Settings) -> None:
    """Find out early what would keep spans from being sent.

    Raises:
        ConfigurationError: if OpenTelemetry is not installed, or told to send in a way that is not known here.
    """
    if settings.tracing:
        _exporter()


def opened(settings: Settings) -> Tracing | None:
    """What makes spans, if that was asked for; errors as in `check`."""
    if not settings.tracing:
        return None
    exporter = _exporter()
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - of an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    ours: dict[str, AttributeValue] = {
        "service.name": SERVICE,
        "service.version": package_version(),
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",  # each worker is one
    }
    theirs = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource.create({name: value for name, value in ours.items() if name not in theirs})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    return Tracing(provider)


def _exporter() -> "Callable[[], SpanExporter]":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"ATTENTION_TRACING needs {error.name}, which is not installed: pip install '{SERVICE}[tracing]'"
        ) from error
    exporters: dict[str, Callable[[], SpanExporter]] = {"otlp": OTLPSpanExporter, "console": ConsoleSpanExporter}
    wanted = os.environ.get(EXPORTER) or "otlp"
    if wanted not in exporters:
        raise ConfigurationError(f"{EXPORTER}={wanted!r}: spans are sent by {' or '.join(exporters)}")
    return exporters[wanted]
