import asyncio
import contextlib
import json
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeRunner

from models import repository
from models.errors import NumericOverflow, ShapeMismatch
from models.repository import ModelEntry
from models.spec import AttentionSpec
from models.types import TENSOR_NAMES, Projections, SequenceInput
from service.backends.base import BackendInfo
from service.catalog import Catalog, LoadedModel, load_catalog
from service.devices import Device
from service.engine import LocalEngine, compute_slots
from service.errors import DeadlineExceeded, NotFound, QueueFull, TooLarge
from service.messages import AttentionInput, Options, TopK
from service.metrics import Metrics
from service.settings import Settings
from service.sizes import Sizes

pytestmark = pytest.mark.anyio

BACKENDS = ("onnx", "eager", "reference")

SPECS = {
    "heads/2": {"embed_dim": 6, "num_heads": 3, "head_dim": 4, "value_dim": 5, "seed": 2},
    "heads/10": {"embed_dim": 6, "num_heads": 3, "head_dim": 4, "value_dim": 5, "seed": 10},
    "causal/1": {"embed_dim": 6, "head_dim": 4, "is_causal": True, "scale": 0.25, "seed": 1},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def catalog(artifacts, tmp_path_factory):
    """Small layers on every real backend: `lesson`, and those of SPECS."""
    folder = tmp_path_factory.mktemp("repository")
    for place, fields in SPECS.items():
        name, version = place.split("/")
        (folder / place).mkdir(parents=True)
        (folder / place / "spec.json").write_text(json.dumps({"name": name, "version": version, **fields}))
    settings = Settings(artifacts=artifacts, device="cpu", default_model="lesson", model_repository=folder)
    lesson = [entry for entry in repository.builtin() if entry.spec.name == "lesson"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "builtin", lambda: lesson)
        loaded = load_catalog(settings, Metrics())
    assert loaded.failures == []
    assert loaded.broken == []
    return loaded


class FakeBackend:
    info = BackendInfo("onnx", "cpu", "fake", "float32")


def fake_catalog(**specs):
    """Layers of any size that compute nothing worth having."""
    runner = FakeRunner()
    runners = dict.fromkeys(BACKENDS, runner)
    found = Catalog(Device("cpu"), dict.fromkeys(BACKENDS, FakeBackend()), projections=runners)
    for name, fields in specs.items():
        entry = ModelEntry(AttentionSpec(name=name, **fields), None, "made up")
        found.models[name] = {entry.spec.version: LoadedModel(entry, runners, {}, "")}
    return found


class Engine:
    """An engine that serves `catalog`, until the end of the `with` block."""

    def __init__(self, catalog, **fields):
        self.metrics = Metrics()
        self.settings = Settings(device="cpu", **{"default_model": "lesson", "compute_threads": 2, **fields})
        self.engine = LocalEngine(self.settings, catalog, self.metrics, asyncio.get_running_loop())

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.engine.batcher.close()
        for thread in self.engine.batcher._slots._threads:
            await asyncio.to_thread(thread.join, 30)

    def submit(self, request, bytes_in=0, timeout=60.0):
        return self.engine.submit(request, bytes_in, time.monotonic() + timeout)

    async def answer(self, request):
        submission = self.submit(request)
        try:
            return await submission.result()
        finally:
            self.engine.batcher.release(submission.ticket)

    def fits(self, request, bytes_in=0):
        """Whether a request is small enough: it is checked before its deadline is, and that has passed."""
        try:
            self.engine.submit(request, bytes_in, 0.0)
        except TooLarge:
            return False
        except DeadlineExceeded:
            return True
        raise AssertionError("the deadline had passed")

    def sample(self, name):
        return self.metrics.registry.get_sample_value(f"attention_{name}")


def tokens(n, width, seed=0):
    return np.random.default_rng([seed, n, width]).standard_normal((n, width)).astype(np.float32)


def ask(*inputs, form=None, masks=None, biases=None, projections=None, **fields):
    count = len(inputs)
    sequences = map(SequenceInput, inputs, masks or [None] * count, biases or [None] * count)
    form = form or ("one" if count == 1 else "list")
    return AttentionInput(tuple(sequences), form, Options(**fields), projections)


def same(a, b):
    """Bitwise: of what type, of which shape, and every byte."""
    if isinstance(a, TopK):
        return isinstance(b, TopK) and same(a.indices, b.indices) and same(a.values, b.values)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_output(a, b):
    assert [list(answer) for answer in a.answers] == [list(answer) for answer in b.answers]
    pairs = zip(a.answers, b.answers, strict=True)
    return all(same(x[name], y[name]) for x, y in pairs for name in x) and a.fully_masked_rows == b.fully_masked_rows


def reference(x, spec, weights, *, keep=None, bias=0.0, scale=None):
    """Weights and outputs by the formula, (heads, n, n) and (n, heads * value_dim)."""
    x = x.astype(np.float64)
    heads = spec.num_heads

    def split(name):
        flat = x @ getattr(weights, name).astype(np.float64)
        return flat.reshape(len(x), heads, -1).swapaxes(0, 1)

    q, k, v = split("query"), split("key"), split("value")
    scores = q @ k.swapaxes(1, 2) * (spec.effective_scale if scale is None else scale) + bias
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found = exp / exp.sum(axis=-1, keepdims=True)
    return found, (found @ v).swapaxes(0, 1).reshape(len(x), -1)


# ---- slots


@pytest.mark.parametrize(
    ("kind", "threads", "expected"), [("cpu", 3, 3), ("cuda", 3, 3), ("cuda", 0, 1), ("cpu", 0, 5)]
)
def test_there_are_as_many_slots_as_set_else_one_per_core_or_one_on_a_gpu(kind, threads, expected, monkeypatch):
    """Cores of this process, not of the machine: containers have fewer."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)))

    assert compute_slots(Settings(compute_threads=threads), Device(kind)) == expected


@pytest.mark.parametrize(("cores", "expected"), [(7, 7), (None, 1)])
def test_slots_are_counted_where_there_is_no_affinity(cores, expected, monkeypatch):
    """macOS has none."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert compute_slots(Settings(), Device("cpu")) == expected


# ---- which model


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ("lesson", "1")),
        ("lesson", ("lesson", "1")),
        ("heads", ("heads", "10")),
        ("heads@10", ("heads", "10")),
        ("heads@2", ("heads", "2")),
    ],
)
async def test_a_model_is_found_by_name_and_version(asked, expected, catalog):
    """Without a version it is the newest, and 10 is newer than 2."""
    async with Engine(catalog) as engine:
        width = 5 if expected[0] == "lesson" else 6
        output = await engine.answer(ask(tokens(3, width), model=asked))

    assert output.model == expected


async def test_versions_of_a_model_are_different_layers(catalog):
    async with Engine(catalog) as engine:
        x = tokens(3, 6)
        old, new, newest = [await engine.answer(ask(x, model=name)) for name in ("heads@2", "heads@10", "heads")]

    assert not same_output(old, new)
    assert same_output(new, newest)


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        ("lessen", "/model: there is no model 'lessen'; did you mean 'lesson'?"),
        ("xyz", "/model: there is no model 'xyz'; there are causal, heads, lesson"),
        ("heads@3", "/model: 'heads' has no version '3'; it has 2, 10"),
        ("lesson@1@2", "/model: 'lesson' has no version '1@2'; it has 1"),
    ],
)
async def test_an_unknown_model_is_refused_with_what_there_is(asked, detail, catalog):
    async with Engine(catalog) as engine:
        with pytest.raises(NotFound) as refused:
            engine.submit(ask(tokens(3, 5), model=asked))

    assert str(refused.value) == detail


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_request_is_computed_where_it_asks(name, catalog):
    """What it was computed with stands in the answer."""
    async with Engine(catalog, backend="reference") as engine:
        asked = await engine.answer(ask(tokens(3, 5), backend=name))
        default = await engine.answer(ask(tokens(3, 5)))

    assert asked.backend == catalog.backends[name].info
    assert asked.backend.name == name
    assert default.backend.name == "reference"


# ---- what fits a model


@pytest.mark.parametrize(
    ("widths", "form", "pointer"),
    [([4], "one", "/inputs/0"), ([4], "list", "/inputs/0/0"), ([5, 6], "list", "/inputs/1/0")],
)
async def test_an_embedding_of_another_width_is_refused_at_its_place(widths, form, pointer, catalog):
    async with Engine(catalog) as engine:
        with pytest.raises(ShapeMismatch) as refused:
            engine.submit(ask(*(tokens(3, width) for width in widths), form=form))

    assert str(refused.value) == f"{pointer}: the embedding has {widths[-1]} numbers, but lesson@1 takes 5"
    assert [field.pointer for field in refused.value.fields] == [pointer]


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (3, 4, 4)])
async def test_a_bias_may_be_for_all_heads_or_for_each(shape, catalog):
    x, bias = tokens(4, 6), np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    entry = catalog.find("heads").entry
    async with Engine(catalog) as engine:
        output = await engine.answer(ask(x, biases=[bias], model="heads"))

    weights, outputs = reference(x, entry.spec, entry.weights, bias=bias)
    np.testing.assert_allclose(output.answers[0]["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(output.answers[0]["outputs"], outputs, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "heads", "form", "detail"),
    [
        ("heads", 2, "one", "/attn_bias: the bias is for 2 heads, but heads@10 has 3"),
        ("heads", 4, "list", "/attn_bias/0: the bias is for 4 heads, but heads@10 has 3"),
        ("causal", 3, "one", "/attn_bias: the bias is for 3 heads, but causal@1 has 1"),
    ],
)
async def test_a_bias_for_another_number_of_heads_is_refused(model, heads, form, detail, catalog):
    async with Engine(catalog) as engine:
        with pytest.raises(ShapeMismatch) as refused:
            engine.submit(ask(tokens(4, 6), biases=[np.zeros((heads, 4, 4), np.float32)], form=form, model=model))

    assert str(refused.value) == detail


# ---- how large a request may be


async def test_too_many_sequences_are_refused_with_how_many_fit():
    async with Engine(fake_catalog(lesson={"embed_dim": 2, "head_dim": 2}), max_sequences=3) as engine:
        with pytest.raises(TooLarge, match=r"^/inputs: 4 sequences; at most 3 fit in one request$"):
            engine.submit(ask(*[tokens(1, 2)] * 4))

        assert engine.fits(ask(*[tokens(1, 2)] * 3))


async def test_a_request_that_can_never_fit_is_too_large_and_not_put_off():
    """503 with Retry-After would make its caller try for ever: the queue is empty."""
    small = {"max_inflight_sequences": 3, "max_inflight_tokens": 9, "max_inflight_mib": 1, "max_answer_mib": 1}
    async with Engine(fake_catalog(lesson={"embed_dim": 2, "head_dim": 2}), **small) as engine:
        too_large = [
            (ask(*[tokens(1, 2)] * 4), 0),
            (ask(tokens(10, 2)), 0),
            (ask(tokens(5, 2), tokens(5, 2)), 0),
            (ask(tokens(1, 2), **{"return": ["weights"]}), (1 << 20) - 3),
        ]
        for request, bytes_in in too_large:
            with pytest.raises(TooLarge):
                engine.submit(request, bytes_in)

        for request, bytes_in in (
            (ask(*[tokens(3, 2)] * 3), 0),
            (ask(tokens(9, 2)), 0),
            (ask(tokens(1, 2), **{"return": ["weights"]}), (1 << 20) - 4),
        ):
            submission = engine.submit(request, bytes_in)
            with pytest.raises(QueueFull):
                engine.submit(ask(*[tokens(3, 2)] * 3), 1 << 19)
            await submission.result()
            engine.engine.batcher.release(submission.ticket)


async def test_too_many_tokens_are_refused_with_how_many_fit():
    catalog = fake_catalog(lesson={"embed_dim": 2, "head_dim": 2})
    async with Engine(catalog, max_tokens=10, max_inflight_tokens=15) as engine:
        with pytest.raises(TooLarge, match=r"^/inputs/1: 11 tokens; a sequence may have 10$"):
            engine.submit(ask(tokens(1, 2), tokens(11, 2)))
        with pytest.raises(TooLarge, match=r"^/inputs: 16 tokens in all; at most 15 fit in one request$"):
            engine.submit(ask(tokens(10, 2), tokens(6, 2)))

        assert engine.fits(ask(tokens(10, 2), tokens(5, 2)))
    async with Engine(catalog, max_tokens=10, max_inflight_tokens=8) as engine:
        with pytest.raises(TooLarge, match=r"^/inputs: 9 tokens; a sequence may have 8$"):
            engine.submit(ask(tokens(9, 2)))


@pytest.mark.parametrize(("limit", "what"), [("answer", "the answer"), ("inflight", "the request and its tensors")])
async def test_the_limit_in_bytes_is_exact(limit, what):
    """512² float32 weights are 1 MiB."""
    catalog = fake_catalog(lesson={"embed_dim": 2, "head_dim": 2})
    async with Engine(catalog, **{f"max_{limit}_mib": 1}) as engine:
        assert engine.fits(ask(tokens(512, 2), **{"return": ["weights"]}))
        with pytest.raises(TooLarge, match=f"^{what} would take 2 MiB as float32 for 513 tokens; 1 MiB are allowed"):
            engine.submit(ask(tokens(513, 2), **{"return": ["weights"]}))


async def test_scores_that_nobody_asked_for_must_fit_too():
    """A runtime that makes them holds them: outputs alone of a long sequence would take all memory there is."""
    catalog = fake_catalog(lesson={"embed_dim": 2, "head_dim": 2})
    async with Engine(catalog, max_inflight_mib=1) as engine:
        assert engine.fits(ask(tokens(512, 2), **{"return": ["outputs"]}))
        with pytest.raises(TooLarge, match=r"the computation would take 2 MiB .* send at most 512 tokens"):
            engine.submit(ask(tokens(513, 2), **{"return": ["outputs"]}))


LIMITS = [{"max_answer_mib": 1}, {"max_inflight_mib": 1}, {"max_answer_mib": 1, "max_inflight_mib": 2}]

ADVICE = {
    r"send the first (\d+) of the \d+ sequences alone": lambda inputs, fields, n: (inputs[:n], fields),
    r"leave ([a-z ]+) out of `return`": lambda inputs, fields, names: (
        inputs,
        {**fields, "return": [name for name in fields["return"] if name not in names.split(" and ")]},
    ),
    r"ask for `top_k` (\d+) or less": lambda inputs, fields, k: (inputs, {**fields, "top_k": k}),
    r"ask for `average_heads`": lambda inputs, fields: (inputs, {**fields, "average_heads": True}),
    r"ask for `dtype` float16": lambda inputs, fields: (inputs, {**fields, "dtype": "float16"}),
    r"send at most (\d+) tokens in a sequence": lambda inputs, fields, n: ([x[:n] for x in inputs], fields),
}
"""What a caller does who takes an advice, by its words."""


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("heads", [1, 2, 12])
@pytest.mark.parametrize("lengths", [(520,), (300, 900), (100, 80, 60) * 20])
@pytest.mark.parametrize(
    "fields",
    [
        {"return": ["outputs", "weights"]},
        {"return": ["weights"]},
        {"return": ["weights"], "top_k": 400},
        {"return": ["outputs", "weights", "scores"]},
        {"return": ["outputs", "scores"], "average_heads": True},
        {"return": list(TENSOR_NAMES), "average_heads": True, "top_k": 3},
        {"return": ["weights"], "dtype": "float16"},
        {"return": ["weights"], "dtype": "float16", "top_k": 200},
    ],
    ids=lambda fields: "-".join(fields["return"]),
)
async def test_whoever_takes_the_advice_of_a_refusal_is_accepted(limits, heads, lengths, fields):
    """Each piece of advice by itself must do, and where it has a number, one more must not."""
    catalog = fake_catalog(lesson={"embed_dim": 2, "num_heads": heads, "head_dim": 8})
    async with Engine(catalog, **limits) as engine:
        inputs = [tokens(n, 2) for n in lengths]
        try:
            engine.engine.submit(ask(*inputs, form="list", **fields), 100, 0.0)
        except DeadlineExceeded:
            return  # it is not too large
        except TooLarge as error:
            refusal = str(error)
        advice = re.fullmatch(r".* are allowed\. To fit, (.*)\.", refusal)[1].split(", or ")

        for piece in advice:
            ((pattern, take),) = [(p, t) for p, t in ADVICE.items() if re.fullmatch(p, piece)]
            values = [int(value) if value.isdigit() else value for value in re.fullmatch(pattern, piece).groups()]
            changed, options = take(inputs, fields, *values)
            assert engine.fits(ask(*changed, form="list", **options), 100), piece
            if values and isinstance(values[0], int):
                changed, options = take(inputs, fields, values[0] + 1)
                if "top_k" not in piece or values[0] < max(lengths):
                    assert not engine.fits(ask(*changed, form="list", **options), 100), piece


async def test_advice_is_given_where_there_is_some():
    catalog = fake_catalog(lesson={"embed_dim": 2, "num_heads": 2, "head_dim": 8})
    async with Engine(catalog, max_answer_mib=1) as engine:
        with pytest.raises(TooLarge) as refused:
            engine.submit(ask(tokens(400, 2), tokens(400, 2)))

    assert str(refused.value) == (
        "the answer would take 3 MiB as float32 for 400 tokens; 1 MiB are allowed. To fit, leave weights out of "
        "`return`, or ask for `top_k` 77 or less, or send at most 252 tokens in a sequence."
    )


async def test_float16_is_advised_where_it_fits_and_may_be_asked_for():
    """Half of what the answer takes, and nothing off what is computed; decimals exclude it."""
    catalog = fake_catalog(lesson={"embed_dim": 2, "num_heads": 2, "head_dim": 8})
    weights = {"return": ["weights"]}
    async with Engine(catalog, max_answer_mib=1) as engine:
        for fields, advised in ((weights, True), (weights | {"decimals": 3}, False)):
            with pytest.raises(TooLarge, match=r"would take 2 MiB as float32 for 400 tokens") as refused:
                engine.submit(ask(tokens(400, 2), **fields))
            assert ("ask for `dtype` float16" in str(refused.value)) is advised
        assert engine.fits(ask(tokens(512, 2), **weights, dtype="float16"))
        with pytest.raises(TooLarge, match=r"the answer would take 2 MiB as float16 for 513 tokens; 1 MiB"):
            engine.submit(ask(tokens(513, 2), **weights, dtype="float16"))
    async with Engine(catalog, max_inflight_mib=1) as engine:
        with pytest.raises(TooLarge, match=r"its tensors would take 2 MiB as float32") as refused:
            engine.submit(ask(tokens(400, 2), **weights))
        assert "float16" not in str(refused.value)


@pytest.mark.parametrize("n", [3, 400])
async def test_an_answer_in_float16_is_the_answer_in_float32_rounded(n, catalog):
    """Small ones and those that are rounded in a thread; the second sequence is as the first."""
    inputs = [tokens(n, 5), tokens(2, 5)]
    async with Engine(catalog) as engine:
        plain = await engine.answer(ask(*inputs, **{"return": TENSOR_NAMES}))
        half = await engine.answer(ask(*inputs, **{"return": TENSOR_NAMES}, dtype="float16"))

    for want, got in zip(plain.answers, half.answers, strict=True):
        assert list(want) == list(got)
        assert all(same(want[name].astype(np.float16), got[name]) for name in want)


@pytest.mark.parametrize("n", [3, 400])
async def test_what_float16_cannot_hold_fails_at_its_sequence(n, catalog):
    """And leaves nothing behind."""
    inputs = [tokens(n, 5), tokens(n, 5) * np.float32(1e6)]
    async with Engine(catalog) as engine:
        with pytest.raises(NumericOverflow) as refused:
            await engine.answer(ask(*inputs, dtype="float16"))

        assert [fault.pointer for fault in refused.value.fields] == ["/inputs/1"]
        assert re.search("outputs would hold .* but float16 ends at 65504; leave `dtype` out", str(refused.value))
        assert engine.sample("inflight_bytes") == 0


async def test_a_request_too_large_by_itself_is_told_to_send_less():
    """Where nothing it could ask for would help."""
    async with Engine(fake_catalog(lesson={"embed_dim": 2, "head_dim": 2}), max_inflight_mib=1) as engine:
        with pytest.raises(TooLarge, match=r"To fit, send less\.$"):
            engine.submit(ask(tokens(1, 2)), 2 << 20)


@pytest.mark.parametrize("model", ["lesson", "heads"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"return": TENSOR_NAMES},
        {"return": TENSOR_NAMES, "average_heads": True},
        {"top_k": 2},
        {"top_k": 6},
        {"top_k": 99, "average_heads": True, "return": ("weights", "scores")},
        {"dtype": "float16", "return": TENSOR_NAMES},
        {"dtype": "float16", "top_k": 2, "average_heads": True},
    ],
    ids=str,
)
async def test_bytes_in_and_out_are_counted_exactly(model, fields, catalog):
    """As they are in memory: admission relies on it."""
    spec = catalog.find(model).entry.spec
    sizes = Sizes(spec.num_heads, spec.head_dim, spec.v_dim, spec.embed_dim)
    inputs = [tokens(n, spec.embed_dim) for n in (7, 4)]
    request = ask(*inputs, model=model, **fields)
    raw = ask(*inputs, model=model, **{"return": fields.get("return", ("outputs", "weights"))})
    async with Engine(catalog) as engine:
        submission = engine.submit(request, 1_000)
        assert engine.sample("inflight_bytes") == 1_000 + memory(await engine.answer(raw))
        assert engine.sample("inflight_tokens") == 11
        answered = memory(await submission.result())

    assert sizes.answered([7, 4], request.options) == answered


def memory(output):
    arrays = []
    for answer in output.answers:
        for value in answer.values():
            arrays += [value.indices, value.values] if isinstance(value, TopK) else [value]
    return sum(array.nbytes for array in arrays)


async def test_what_was_found_of_a_request_is_not_taken_for_what_is_larger_by_its_padding(catalog):
    """The same options and the same shape of embeddings, one after the other."""
    plain = ask(tokens(2, 6), form="list", model="heads")
    padded = replace(plain, padded_to=5)
    async with Engine(catalog) as engine:
        sizes = [engine.engine.prepare(request, 100).size for request in (plain, padded, plain, padded)]

    assert sizes == [100 + 4 * 3 * (n * n + n * 5) for n in (2, 5, 2, 5)]


async def test_bytes_of_callers_matrices_are_counted_by_their_own_widths(catalog):
    own = Projections(tokens(6, 4), tokens(6, 4, 1), tokens(6, 5, 2))
    request = ask(tokens(7, 6), projections=own, **{"return": TENSOR_NAMES})
    async with Engine(catalog) as engine:
        submission = engine.submit(request, 10)

        assert engine.sample("inflight_bytes") == 10 + 4 * (7 * 5 + 7 * 7 * 2 + 7 * 4 * 2 + 7 * 5)
        await submission.result()


# ---- what is computed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("scale", "factor"), [(None, 0.5), (2.0, 2.0)])
async def test_callers_may_bring_their_own_matrices(backend, scale, factor, catalog):
    """Scaled by their own d_k; no model has a say, nor its causality."""
    x, own = tokens(5, 6), Projections(tokens(6, 4), tokens(6, 4, 1), tokens(6, 3, 2))
    async with Engine(catalog, default_model="causal") as engine:
        output = await engine.answer(ask(x, projections=own, backend=backend, scale=scale))

    spec = AttentionSpec(name="own", embed_dim=6, head_dim=4, value_dim=3)
    weights, outputs = reference(x, spec, own, scale=factor)
    np.testing.assert_allclose(output.answers[0]["weights"], weights[0], atol=1e-6)
    np.testing.assert_allclose(output.answers[0]["outputs"], outputs, atol=1e-5)
    assert output.model == ("projections", "")


async def test_callers_matrices_take_their_own_width(catalog):
    own = Projections(tokens(6, 4), tokens(6, 4), tokens(6, 3))
    async with Engine(catalog) as engine:
        with pytest.raises(ShapeMismatch, match="/inputs/0: the embedding has 5 numbers, but projections takes 6"):
            engine.submit(ask(tokens(3, 5), projections=own))
        with pytest.raises(ShapeMismatch, match="/attn_bias: the bias is for 3 heads, but projections has 1"):
            engine.submit(ask(tokens(4, 6), projections=own, biases=[np.zeros((3, 4, 4), np.float32)]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
async def test_a_model_that_is_causal_is_so_whatever_the_request_says(backend, masked, catalog):
    """A later token must never leak into an earlier row."""
    x, keep = tokens(6, 6), np.tri(6, dtype=bool)
    mask = None
    if masked:
        mask = np.ones((6, 6), bool)
        mask[3, 1] = False
        keep = keep & mask
    entry = catalog.find("causal").entry
    async with Engine(catalog) as engine:
        output = await engine.answer(ask(x, masks=[mask], model="causal", backend=backend, is_causal=False))

    found = output.answers[0]
    weights, outputs = reference(x, entry.spec, entry.weights, keep=keep, scale=0.25)
    assert not found["weights"][~keep].any()
    np.testing.assert_allclose(found["weights"], weights[0], atol=1e-6)
    np.testing.assert_allclose(found["outputs"], outputs, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_scale_replaces_the_models_own(backend, catalog):
    x, entry = tokens(6, 6), catalog.find("causal").entry
    async with Engine(catalog) as engine:
        default, given, equal = [
            await engine.answer(ask(x, model="causal", backend=backend, scale=scale)) for scale in (None, 3.0, 0.25)
        ]

    keep = np.tri(6, dtype=bool)
    for output, scale in ((default, 0.25), (given, 3.0)):
        weights, _ = reference(x, entry.spec, entry.weights, keep=keep, scale=scale)
        np.testing.assert_allclose(output.answers[0]["weights"], weights[0], atol=1e-6)
    assert same_output(default, equal)


async def test_an_answer_is_nested_and_encoded_as_the_request_wants(catalog):
    mask = np.zeros((2, 2), bool)
    async with Engine(catalog) as engine:
        one = await engine.answer(ask(tokens(2, 5)))
        several = await engine.answer(ask(tokens(2, 5), tokens(3, 5), masks=[mask, None], encoding="base64"))

    assert (one.form, one.encoding, one.fully_masked_rows) == ("one", "json", [[]])
    assert (several.form, several.encoding, several.fully_masked_rows) == ("list", "base64", [[0, 1], []])
    assert [answer["outputs"].shape for answer in several.answers] == [(2, 3), (3, 3)]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_sequence_that_overflows_fails_its_request_at_its_place(backend, catalog):
    good, bad = tokens(3, 6), np.full((3, 6), 3e38, np.float32)
    async with Engine(catalog) as engine:
        neighbour = engine.submit(ask(good, model="heads", backend=backend))
        with pytest.raises(NumericOverflow) as refused:
            await engine.answer(ask(good, bad, model="heads", backend=backend))
        output = await neighbour.result()

    assert refused.value.fields[0].pointer == "/inputs/1"
    assert np.isfinite(output.answers[0]["outputs"]).all()


async def test_a_deadline_that_has_passed_is_refused(catalog):
    async with Engine(catalog) as engine:
        with pytest.raises(DeadlineExceeded):
            engine.submit(ask(tokens(2, 5)), timeout=0)


# ---- the promise


def some_request(random):
    """Any mix of model, backend, length, mask, bias and options."""
    model, width, heads = [("lesson", 5, 1), ("heads@2", 6, 3), ("heads", 6, 3), ("causal", 6, 1)][random.integers(4)]
    own = random.random() < 0.15
    count = int(random.choice([1, 1, 2, 4]))
    lengths = random.choice([1, 2, 3, 5, 8, 13, 17], count)
    inputs = [random.standard_normal((n, width)).astype(np.float32) for n in lengths]
    masks = [random.random((n, n)) < 0.7 if random.random() < 0.3 else None for n in lengths]
    shapes = [[None], [None], [None], [()], [(1,)], [(heads,)]][random.integers(6)] * count
    if own:
        shapes = [None] * count
    biases = [
        None if shape is None else random.standard_normal((*shape, n, n)).astype(np.float32)
        for shape, n in zip(shapes, lengths, strict=True)
    ]
    fields = {
        "backend": str(random.choice(["onnx", "onnx", "eager", "reference"])),
        "return": [["outputs", "weights"], ["outputs"], ["weights", "scores"], list(TENSOR_NAMES)][random.integers(4)],
        "is_causal": bool(random.random() < 0.3),
        "scale": [None, None, None, 0.7][random.integers(4)],
        "top_k": [None, None, 2][random.integers(3)],
        "average_heads": bool(random.random() < 0.3),
    }
    projections = None
    if own:
        projections = Projections(*(random.standard_normal((width, c)).astype(np.float32) for c in (4, 4, 3)))
    else:
        fields["model"] = model
    return ask(*inputs, masks=masks, biases=biases, projections=projections, **fields)


async def test_an_answer_is_bitwise_the_same_alone_and_in_any_company(catalog):
    """The contract's promise, on a CPU, for 200 requests that arrive at once."""
    random = np.random.default_rng(7)
    requests = [some_request(random) for _ in range(200)]
    async with Engine(catalog) as engine:
        alone = [await engine.answer(request) for request in requests]
    async with Engine(catalog) as engine:
        together = await asyncio.gather(*(engine.answer(request) for request in requests))
        batches = {
            sample.labels["backend"]: sample.value
            for sample in engine.metrics.batch_sequences.collect()[0].samples
            if sample.name.endswith("_count")
        }
        failures = engine.metrics.batch_failures.collect()[0].samples

    different = [i for i, (a, b) in enumerate(zip(alone, together, strict=True)) if not same_output(a, b)]
    assert different == []
    assert failures == []
    for name in ("onnx", "eager"):
        sequences = sum(len(r.sequences) for r in requests if r.options.backend == name)
        assert batches[name] < sequences, "batches must have formed, or this test shows nothing"


async def test_abandoned_requests_leave_the_engine_empty(catalog):
    """A storm of callers that leave must not leak a byte of what is counted."""
    random = np.random.default_rng(3)
    async with Engine(catalog) as engine:
        tasks = [asyncio.create_task(engine.answer(some_request(random))) for _ in range(60)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await engine.engine.batcher.drain()

        for name in ("inflight_bytes", "inflight_tokens", "queue_sequences", "queue_requests", "busy_slots"):
            assert engine.sample(name) == 0
        assert engine.sample("cancelled_total") > 0
