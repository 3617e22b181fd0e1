import asyncio
import gc
import math
import re
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
from fakes import BrokenRunner, FakeRunner, GatedRunner, Panic, unit
from serving import start_server
from wire import JSON, attend, call

from models.errors import InvalidInput
from models.repository import ModelEntry
from models.spec import AttentionSpec
from models.types import Projections
from service.catalog import Catalog, LoadedModel
from service.devices import Device
from service.metrics import SHADOW_OUTCOMES, Metrics
from service.packing import Unit
from service.runtime import Runtime
from service.settings import Settings
from service.shadow import Sample, Shadow
from service.slots import compute

pytestmark = pytest.mark.anyio

MODEL = ("m", "1")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class TensorRunner(FakeRunner):
    """Makes the tensors it was given, whatever is wanted."""

    def __init__(self, **tensors):
        super().__init__()
        self.tensors = {name.replace("__", "."): np.array(t, np.float32) for name, t in tensors.items()}

    def one(self, x, batch):
        return {name: tensor.copy() for name, tensor in self.tensors.items()}


class Drifted(FakeRunner):
    """Outputs are off by a part of their size."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)

    def one(self, x, batch):
        tensors = super().one(x, batch)
        tensors["outputs"][0] *= 1 + self.parts.pop(0)
        return tensors


class Bench:
    """A shadow of a catalog with one layer, `m@1`, which `onnx` serves unless said otherwise."""

    def __init__(self, share=1.0, most_bytes=1_000, draw=None, projections=None, **runners):
        self.metrics = Metrics()
        self.catalog = Catalog(Device("cpu"), {}, projections=projections or {})
        self.runners = {"onnx": FakeRunner(), "eager": FakeRunner(), "reference": FakeRunner(), **runners}
        self.serve(self.runners)
        loop = asyncio.get_running_loop()
        self.shadow = Shadow(self.catalog, self.metrics, loop, share, most_bytes, draw)

    def serve(self, runners):
        entry = ModelEntry(AttentionSpec(name="m", embed_dim=2, head_dim=2), None, "made up")
        self.catalog.models = {"m": {"1": LoadedModel(entry, runners, {}, "")}}

    def unit(self, number=1.0, length=2, *, backend="onnx", **fields):
        return unit(number, self.runners[backend], length, backend=backend, **fields)

    def answer(self, *units, model=MODEL, size=0, error=None):
        """Let requests be answered as the slots would, and the callbacks of their futures run."""
        future = asyncio.get_running_loop().create_future()
        self.shadow.watch(future, model, units, [size] * len(units))
        if error is None:
            verdicts = []
            for one in units:
                verdicts += compute([one])[0]
            future.set_result(verdicts)
        else:
            future.set_exception(error)
        return future

    async def outcome(self, *units, **fields):
        """What became of each outcome once all of these were answered and computed again, one after the other."""
        for one in units:
            await self.settled(1, one, **fields)
        return self.outcomes()

    async def settled(self, count, *units, **fields):
        before = sum(self.outcomes().values())
        self.answer(*units, **fields)
        await until(lambda: sum(self.outcomes().values()) >= before + count)

    def outcomes(self):
        found = {name: self.sample("sequences_total", outcome=name) for name in SHADOW_OUTCOMES}
        return {name: count for name, count in found.items() if count}

    def difference(self, pair="eager-onnx", model="m", version="1"):
        """The largest so far; None if there is no such series."""
        return self.sample("difference", model=model, version=version, pair=pair)

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"attention_shadow_{name}", labels)


@pytest.fixture
async def bench():
    """Makes benches, and sees their threads end."""
    made = []

    def make(**fields):
        made.append(Bench(**fields))
        return made[-1]

    yield make
    for one in made:
        for runner in one.runners.values():
            if isinstance(runner, GatedRunner):
                runner.gate.release(100)
        await asyncio.wait_for(one.shadow.drain(), 30)


async def until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


# ---- what is compared


async def test_backends_that_agree_differ_by_nothing(bench):
    one = bench()

    assert await one.outcome(one.unit(3.0)) == {"compared": 1}

    assert one.difference() == 0
    assert one.runners["eager"].computed == [3.0]


async def test_a_drift_is_reported_with_its_size_and_the_largest_stays(bench):
    """A gauge that forgets shows nothing to a scrape that comes a little later."""
    one = bench(eager=Drifted(0.25, 0.5, 0.125))

    for largest in (0.25, 0.5, 0.5):
        await one.outcome(one.unit(-4.0))
        assert one.difference() == pytest.approx(largest)
    assert one.outcomes() == {"compared": 3}


async def test_what_is_answered_in_float16_is_compared_in_float32(bench):
    """The caller's rounding is no drift: one step of float16 would be ten times this one."""
    one = bench(eager=Drifted(1e-4))

    await one.outcome(one.unit(-4.0, dtype="float16"))

    assert one.difference() == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize(
    ("backend", "other", "pair"),
    [("onnx", "eager", "eager-onnx"), ("eager", "onnx", "eager-onnx"), ("reference", "onnx", "onnx-reference")],
)
async def test_onnx_is_computed_again_by_eager_and_all_others_by_onnx(bench, backend, other, pair):
    one = bench(**{other: Drifted(0.5)})

    await one.outcome(one.unit(2.0, backend=backend))

    assert one.difference(pair) == pytest.approx(0.5)
    assert {name: r.computed for name, r in one.runners.items() if r.computed} == {backend: [2.0], other: [2.0]}


async def test_each_tensor_is_measured_by_its_own_size(bench):
    """Weights are small beside outputs, and theirs would be lost in those."""
    right = {"outputs": [[1e6, 1e6]], "weights": [[[0.5, 0.25], [0.5, 0.5]]]}
    wrong = {"outputs": [[1e6, 1e6]], "weights": [[[0.5, 0.25], [0.5, 0.375]]]}
    one = bench(onnx=TensorRunner(**right), eager=TensorRunner(**wrong))

    await one.outcome(one.unit())

    assert one.difference() == 0.25


async def test_a_score_that_cancels_is_not_a_difference(bench):
    """Of one token there is one score, which may be as near to 0 as chance will have it."""
    one = bench(onnx=TensorRunner(scores=[[[1e-9]]]), eager=TensorRunner(scores=[[[2e-7]]]))

    await one.outcome(one.unit(length=1, **{"return": ("scores",)}))

    assert one.difference() == pytest.approx(2e-7, rel=0.01)


async def test_tensors_of_any_name_are_compared(bench):
    """Those of an encoder are called after their layers."""
    right, wrong = [[[0.5, 0.5], [1.0, 0.0]]], [[[0.5, 0.5], [1.0, 0.5]]]
    one = bench(onnx=TensorRunner(layers__5__weights=right), eager=TensorRunner(layers__5__weights=wrong))

    await one.outcome(one.unit(top_k=2))

    assert one.difference() == 0.5


async def test_heads_are_averaged_as_in_the_answer(bench):
    """What callers get is compared: two heads that differ the other way round answer the same."""
    one = bench(onnx=TensorRunner(weights=[[[0.0]], [[1.0]]]), eager=TensorRunner(weights=[[[1.0]], [[0.0]]]))

    await one.outcome(one.unit(length=1, average_heads=True))

    assert one.difference() == 0


async def test_of_sparse_weights_the_values_are_compared_and_not_their_columns(bench):
    """A tie that the last bit decides is no drift."""
    near = np.nextafter(np.float32(0.4), np.float32(1))
    right, wrong = [[[0.4, near, 0.2]]], [[[near, 0.4, 0.2]]]
    one = bench(onnx=TensorRunner(weights=right), eager=TensorRunner(weights=wrong))

    await one.outcome(one.unit(length=1, top_k=1), one.unit(length=1))

    assert one.difference() == pytest.approx(float(near - np.float32(0.4)) / 0.4, rel=0.01)


async def test_rows_that_see_nothing_are_equal_whatever_a_runtime_made_of_them(bench):
    mask = np.array([[False, False], [True, True]])
    one = bench(
        onnx=TensorRunner(outputs=[[np.nan, 1], [1, 1]], scores=[[[7, 7], [1, 2]]]),
        eager=TensorRunner(outputs=[[5, 5], [1, 1]], scores=[[[-np.inf, -np.inf], [1, 2]]]),
    )

    assert await one.outcome(one.unit(mask=mask)) == {"compared": 1}

    assert one.difference() == 0


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
async def test_an_infinity_that_the_caller_did_not_get_is_an_infinite_difference(bench, score):
    """Where one answers with numbers and the other cannot, no number is large enough."""
    one = bench(onnx=TensorRunner(scores=[[[1.0]]]), eager=TensorRunner(scores=[[[score]]]))

    assert await one.outcome(one.unit(length=1)) == {"compared": 1}

    assert one.difference() == math.inf


async def test_masked_scores_must_be_infinite_for_both(bench):
    mask = np.array([[True, False]] * 2)
    hidden, seen = [[[1.0, -np.inf]] * 2], [[[1.0, -1e9]] * 2]
    one = bench(onnx=TensorRunner(scores=hidden), eager=TensorRunner(scores=hidden))

    await one.outcome(one.unit(mask=mask))
    assert one.difference() == 0
    one.runners["eager"].tensors["scores"] = np.array(seen, np.float32)
    await one.outcome(one.unit(mask=mask))

    assert one.difference() == math.inf


async def test_matrices_of_the_caller_are_a_model_too(bench):
    runners = {"onnx": FakeRunner(), "eager": Drifted(0.5)}
    one = bench(projections=runners)
    matrices = Projections(*(np.ones((2, 1), np.float32),) * 3)
    asked = unit(2.0, runners["onnx"], backend="onnx")
    asked = Unit(replace(asked.job, projections=matrices), asked.sequence, asked.pointer)

    assert await one.outcome(asked, model=("projections", "")) == {"compared": 1}

    assert one.difference(model="projections", version="") == pytest.approx(0.5)


# ---- what is sampled


async def test_a_sequence_is_taken_where_the_draw_is_below_the_share(bench):
    draws = [0.4, 0.5, 0.9, 0.1]
    one = bench(share=0.5, draw=lambda: draws.pop(0))

    one.answer(one.unit(0.0))
    await until(one.outcomes)
    for number in (1.0, 2.0):
        one.answer(one.unit(number))
    await until(lambda: len(draws) == 1)
    one.answer(one.unit(3.0))
    await until(lambda: one.outcomes() == {"compared": 2})

    assert one.runners["eager"].computed == [0.0, 3.0]


async def test_draws_are_the_same_at_every_start_and_of_the_share_that_was_asked_for(bench):
    """What was computed again can be told from the traffic."""
    numbers = [[one._draw() for _ in range(4_000)] for one in (bench().shadow, bench().shadow)]

    assert numbers[0] == numbers[1]
    assert sum(n < 0.25 for n in numbers[0]) == pytest.approx(1_000, rel=0.1)


async def test_what_comes_while_one_is_at_work_is_skipped(bench):
    """One sequence at a time is all the memory and all the time it takes."""
    gated = GatedRunner()
    one = bench(eager=gated)

    one.answer(*map(one.unit, (1.0, 2.0, 3.0)))
    await until(lambda: one.outcomes() == {"skipped": 2})
    await asyncio.to_thread(gated.entered.acquire)
    one.answer(one.unit(4.0))
    await until(lambda: one.outcomes() == {"skipped": 3})
    gated.gate.release(2)
    await until(lambda: one.outcomes() == {"skipped": 3, "compared": 1})
    await one.outcome(one.unit(5.0))

    assert gated.computed == [1.0, 5.0]


async def test_a_sequence_that_takes_too_much_memory_is_skipped(bench):
    one = bench(most_bytes=100)

    assert await one.outcome(one.unit(), size=101) == {"skipped": 1}
    assert await one.outcome(one.unit(), size=100) == {"skipped": 1, "compared": 1}


async def test_a_layer_without_the_other_backend_is_skipped(bench):
    one = bench()
    one.serve({"onnx": one.runners["onnx"]})

    assert await one.outcome(one.unit()) == {"skipped": 1}


async def test_requests_that_have_no_answer_are_not_computed_again(bench):
    one = bench()

    one.answer(one.unit(), error=InvalidInput("wrong")).exception()
    cancelled = asyncio.get_running_loop().create_future()
    one.shadow.watch(cancelled, MODEL, [one.unit()], [0])
    cancelled.cancel()
    await one.outcome(one.unit(2.0))

    assert one.outcomes() == {"compared": 1}


# ---- what must not happen


async def test_a_backend_that_fails_is_counted_and_logged_once_for_each_kind(bench, caplog):
    """It may fail at every request, and the log is for everybody."""
    one = bench(eager=BrokenRunner(1.0))

    assert await one.outcome(*[one.unit(1.0)] * 3) == {"failed": 3}
    one.runners["eager"].error = Panic
    assert await one.outcome(*[one.unit(1.0)] * 2) == {"failed": 5}

    logged = [record for record in caplog.records if record.name == "service.shadow"]
    assert [record.exc_info[0] for record in logged] == [RuntimeError, Panic]
    assert await one.outcome(one.unit(2.0)) == {"failed": 5, "compared": 1}
    assert one.difference() == 0


async def test_a_stopped_shadow_begins_nothing_and_is_waited_for(bench):
    """While the service drains, every core is for those who wait."""
    gated = GatedRunner()
    one = bench(eager=gated)
    one.answer(one.unit(1.0))
    await asyncio.to_thread(gated.entered.acquire)

    one.shadow.stop()
    one.answer(one.unit(2.0))
    draining = asyncio.ensure_future(one.shadow.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    gated.gate.release()
    await asyncio.wait_for(draining, 30)

    assert one.outcomes() == {"compared": 1}
    assert gated.computed == [1.0]


async def test_what_was_handed_over_but_not_begun_is_not_computed_after_a_stop(bench):
    one = bench()
    asked = one.unit()
    ((answered, _),) = compute([asked])[0]
    await one.shadow.drain()

    assert one.shadow._compare(Sample(MODEL, asked, asked, answered)) == "skipped"
    assert one.runners["onnx"].computed == [1.0], "once, for the caller"


async def test_a_layer_that_is_unloaded_while_it_is_computed_again_leaves_no_series(bench):
    """The loader has removed it, and models may come and go for ever."""
    gated = GatedRunner()
    one = bench(eager=gated)
    one.answer(one.unit(1.0))
    await asyncio.to_thread(gated.entered.acquire)

    one.catalog.models = {}
    one.metrics.forget_shadow(*MODEL)
    gated.gate.release()
    await until(one.outcomes)
    await one.outcome(one.unit(2.0))

    assert one.outcomes() == {"skipped": 2}
    assert one.difference() is None


async def test_a_layer_that_was_loaded_again_starts_anew(bench):
    one = bench(eager=Drifted(0.5))
    late = one.unit(1.0)
    await one.outcome(one.unit(1.0))

    one.metrics.forget_shadow("m", "2")
    assert one.difference() == pytest.approx(0.5), "it is of another version"
    one.metrics.forget_shadow(*MODEL)
    one.runners = {"onnx": FakeRunner(), "eager": Drifted(0.125)}
    one.serve(one.runners)

    assert await one.outcome(late) == {"compared": 1, "skipped": 1}
    assert one.difference() is None, "a request from before says nothing of the new layer"
    await one.outcome(one.unit(1.0))
    assert one.difference() == pytest.approx(0.125)


async def test_nothing_is_kept_of_a_sequence_that_was_compared(bench):
    one = bench()
    asked = one.unit()
    future = one.answer(asked)
    held = [weakref.ref(asked.sequence.inputs), weakref.ref(future.result()[0][0]["outputs"])]
    await until(one.outcomes)

    del asked, future
    gc.collect()

    await until(lambda: [reference() for reference in held] == [None, None])


# ---- in the service


@pytest.mark.parametrize(("share", "threads"), [(0.0, 0), (0.5, 1)])
async def test_without_a_share_there_is_no_thread(settings, share, threads):
    """What is off costs nothing."""
    runtime = Runtime(settings.model_copy(update={"shadow_share": share, "default_model": "lesson"}))
    before = sum(thread.name == "shadow" for thread in threading.enumerate())

    runtime.start()
    await runtime.loaded()
    now = sum(thread.name == "shadow" for thread in threading.enumerate())
    shadow = runtime.engine.shadow
    await runtime.stop()

    assert now - before == threads
    assert (shadow is not None) == bool(threads)
    await until(lambda: sum(thread.name == "shadow" for thread in threading.enumerate()) == before)


@pytest.mark.parametrize("share", ["-0.1", "1.1", "nan"])
def test_a_share_is_between_none_and_all(share):
    with pytest.raises(ValueError, match="shadow_share"):
        Settings(shadow_share=share)


@pytest.mark.server
def test_a_running_service_tells_how_far_its_backends_are_apart(artifacts):
    """Over HTTP: what callers ask for, by each backend, and the metrics after it."""
    server = start_server(artifacts, ATTENTION_SHADOW_SHARE="1")
    random = np.random.default_rng(0)

    def tokens(n, width):
        return random.standard_normal((n, width)).tolist()

    def metrics():
        text = call(server.url, "GET", "/metrics").body.decode()
        outcomes = dict(re.findall(r'^attention_shadow_sequences_total{outcome="(\w+)"} (\S+)$', text, re.MULTILINE))
        differences = re.findall(
            r'^attention_shadow_difference{model="(.+?)",pair="(.+?)",version="(.*?)"} (\S+)$', text, re.MULTILINE
        )
        return {name: float(n) for name, n in outcomes.items()}, {tuple(d[:3]): float(d[3]) for d in differences}

    everything = ["outputs", "weights", "scores", "query", "key", "value"]
    mask = (random.random((9, 9)) < 0.5).tolist()
    mask[3] = [False] * 9
    matrices = {name: tokens(5, 3) for name in ("query", "key", "value")}
    asked = [
        {"inputs": tokens(7, 64)},
        {"inputs": tokens(9, 64), "attn_mask": mask, "return": everything, "backend": "eager"},
        {"inputs": tokens(9, 384), "model": "multi-head-384x12", "top_k": 3, "average_heads": True, "is_causal": True},
        {"inputs": tokens(1, 384), "model": "multi-head-384x12", "return": everything, "backend": "reference"},
        {"inputs": tokens(6, 5), "projections": matrices},
        {"inputs": tokens(6, 5), "projections": matrices, "backend": "eager", "attn_bias": tokens(6, 6)},
    ]
    try:
        for count, document in enumerate(asked, start=1):
            reply = attend(server.url, document, Accept=JSON)
            assert reply.status == 200, reply.body
            deadline = time.monotonic() + 30
            while sum(metrics()[0].values()) < count:
                assert time.monotonic() < deadline, "the answer was not computed again"
                time.sleep(0.01)
        outcomes, differences = metrics()
    finally:
        code = server.stop()

    assert outcomes == {"compared": len(asked), "skipped": 0, "failed": 0}
    assert differences.keys() == {
        ("single-head-64", "eager-onnx", "1"),
        ("multi-head-384x12", "eager-onnx", "1"),
        ("multi-head-384x12", "onnx-reference", "1"),
        ("projections", "eager-onnx", ""),
    }
    assert all(0 <= difference < 1e-5 for difference in differences.values())
    assert any(difference > 0 for difference in differences.values()), "two runtimes never agree to the last bit"
    assert code == 0
