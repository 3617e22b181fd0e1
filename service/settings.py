"""Every `ATTENTION_*` variable, its default and what it means: the one place they are documented."""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

import models
from service.errors import ConfigurationError

PREFIX = "ATTENTION_"
MIB = 1 << 20
LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
ORIGIN = re.compile(
    rf"(?:https://(?:\*\.{LABEL}\.)?{LABEL}(?:\.{LABEL})*|http://(?:localhost|127\.0\.0\.1))(?::\d{{1,5}})?"
)
"""An origin that may stand in a header: no quotes, separators or spaces, and nothing that means everybody."""

DEFAULT_ARTIFACTS = Path(models.__file__).parent / "artifacts"
DEFAULT_REPOSITORY = Path(models.__file__).parent / "installed"


class Settings(BaseSettings):
    """How one process serves. Made once, in the command line, and handed down; the environment is not read again."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    grpc_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the Open Inference Protocol over gRPC; 0 takes a free one. Empty: it is not served.",
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Processes that answer, each with an equal part of the compute threads and of the limits of what is"
        " in flight. 0: one per core, 8 at most; one where there is a GPU, or no Linux.",
    )
    engine: Literal["auto", "worker", "process"] = Field(
        default="auto",
        description="Where requests are computed: `worker`, in each worker; `process`, in one process of its own for"
        " all workers; `auto`: the latter where several workers share a GPU.",
    )
    backend: Literal["onnx", "eager", "reference"] = Field(
        default="onnx", description="Backend of requests that name none."
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto`, `cpu`, `cuda` or `cuda:N`. `cuda` refuses to start where CUDA does not work; `auto` falls "
        "back to the CPU and says so.",
    )
    default_model: str = Field(
        default="single-head-64", description="Model of requests that name none, `name` or `name@version`."
    )
    default_text_model: str = Field(
        default="minilm-l6", description="Encoder of requests with text that name none, `name` or `name@version`."
    )
    model_repository: Path = Field(
        default=DEFAULT_REPOSITORY,
        description="Folder of the models served beside the built-in ones. The default one need not exist.",
    )
    max_model_mib: int = Field(default=4_096, gt=0, description="Largest weights of a model in that folder, MiB.")
    artifacts: Path = Field(
        default=DEFAULT_ARTIFACTS, description="Folder of exported ONNX graphs; may be deleted at any time."
    )
    compute_threads: int = Field(
        default=0,
        ge=0,
        description="Batches computed at the same time by all workers, one core each. 0: one per core; one on a GPU.",
    )
    deterministic: bool = Field(
        default=False,
        description="On a GPU, answer bitwise the same alone and in company, at some cost. On a CPU that always holds.",
    )
    allow_tf32: bool = Field(default=False, description="On a GPU, allow TF32 products: faster, about 1e-3 relative.")
    gpu_mem_limit_mib: int = Field(
        default=0, ge=0, description="Most GPU memory of one ONNX Runtime session, MiB; 0: no limit."
    )
    max_body_mib: int = Field(default=64, gt=0, description="Largest request body after decompression, MiB.")
    max_answer_mib: int = Field(default=512, gt=0, description="Largest answer, as tensors of its dtype, MiB.")
    max_sequences: int = Field(default=256, gt=0, le=16_384, description="Most sequences of one request.")
    max_tokens: int = Field(default=16_384, gt=0, description="Most tokens of one sequence.")
    max_inflight_requests: int = Field(default=1_024, gt=0, description="Accepted, unanswered requests before 503.")
    max_inflight_sequences: int = Field(default=4_096, gt=0, description="Accepted, unanswered sequences before 503.")
    max_inflight_tokens: int = Field(default=1_048_576, gt=0, description="Accepted, unanswered tokens before 503.")
    max_inflight_mib: int = Field(
        default=2_048, gt=0, description="Bytes in and out of accepted, unanswered requests before 503, MiB."
    )
    max_batch_sequences: int = Field(default=64, gt=0, description="Most sequences of one batch.")
    max_batch_tokens: int = Field(
        default=0,
        ge=0,
        description="Most tokens of one batch; 0: what pays on the device, 256 on a CPU, 16384 on a GPU.",
    )
    request_timeout_ms: int = Field(
        default=30_000, gt=0, description="Deadline of requests that name none, and the longest one may ask for, ms."
    )
    body_timeout_s: float = Field(default=30.0, gt=0, description="Longest wait for a request's body, s.")
    shadow_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the answered sequences, 0..1, computed again to compare backends: those of onnx by eager,"
        " others by onnx. While it computes it competes with the requests for a core, or for the GPU. 0: off.",
    )
    drain_grace_s: float = Field(
        default=1.0,
        ge=0,
        description="While stopping, how long to go on listening and to answer new requests with 503, s.",
    )
    shutdown_timeout_s: float = Field(
        default=30.0, gt=0, description="While stopping, longest wait for accepted requests, s."
    )
    api_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Comma-separated API keys; empty: no key is asked for.", repr=False
    )
    admin_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Comma-separated keys of those who may load and unload models; API keys too. Empty: nobody may.",
        repr=False,
    )
    tutor_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Comma-separated keys of those who may see solutions of exercises; API keys too. Empty: nobody"
        " may.",
        repr=False,
    )
    signing_key: str = Field(
        default="",
        max_length=1_000,
        description="What exercises are signed with, the same in every replica. Empty: a published key, with"
        " which anybody can make an exercise of any seed.",
        repr=False,
    )
    rate_limit: str = Field(
        default="", description="Most requests of one caller, such as `100/second`; empty: no limit."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Comma-separated origins whose pages may call, or `*`; empty: none."
    )
    frame_ancestors: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Comma-separated origins whose pages may frame `/widget`, such as `https://lms.example` or"
        " `https://*.example.org`; `http` only for this machine. Empty: none.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="`json`: each log line is one JSON object.")
    access_log: bool = Field(default=False, description="Whether each request writes a log line when it has ended.")
    tracing: bool = Field(
        default=False,
        description="Whether spans of requests are sent, as the `OTEL_*` variables say. Needs the extra `tracing`.",
    )

    @field_validator("api_keys", "admin_keys", "tutor_keys", "cors_origins", "frame_ancestors", mode="before")
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("frame_ancestors")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin such as https://lms.example or https://*.example.org")
        return value

    @field_validator("rate_limit")
    @classmethod
    def _a_rate(cls, value: str) -> str:
        if value:
            from limits import parse_many  # noqa: PLC0415 - needed only where there is a limit

            rates = parse_many(value)
            if len(rates) != 1 or rates[0].amount < 1:
                raise ValueError("expected one rate of at least one request, such as 100/second")
        return value


def load_settings(**overrides: object) -> Settings:
    """The settings of the environment, with `overrides` from the command line on top.

    Raises:
        ConfigurationError: if a variable is unknown (with the nearest known one) or has a value it cannot have.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            raise ConfigurationError(f"unknown setting {name}{hint}")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_fault, error.errors()))) from error


def _fault(error: ErrorDetails) -> str:
    """What is wrong with which setting, and its value, unless that is a secret."""
    name = str(error["loc"][0])
    field = Settings.model_fields.get(name)
    shown = f"={error['input']!r}" if field is None or field.repr else ""
    return f"{PREFIX}{name.upper()}{shown}: {error['msg']}"
