"""Both backends on a GPU: one file of laws for the two."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnxruntime as ort
import pytest
import torch

from models.repository import EncoderEntry
from models.types import Projections
from service import parity
from service.backends import open_backend
from service.backends.base import Batch
from service.backends.buckets import bucket
from service.catalog import open_model
from service.devices import Device
from service.settings import Settings
from tests.contract.layers import LAYERS, WIDE, assert_close
from tests.encoders import draw_weights, make_spec, word_pieces
from tests.service.backends.test_staging import KINDS, assert_same, mixed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in ort.get_available_providers(), reason="this ONNX Runtime has no CUDA provider"
    ),
]

ALL = LAYERS | WIDE
ENTRY = WIDE["wide-heads"]
NAMES = ENTRY.weights.tensor_names


@lru_cache
def opened(name: str, artifacts, **changes):
    settings = Settings(artifacts=artifacts, device="cuda").model_copy(update=changes)
    return open_backend(name, Device("cuda"), settings)


@pytest.fixture(params=["eager", "onnx"])
def name(request) -> str:
    """Each backend that computes on a GPU."""
    return request.param


def same_bits(a, b) -> bool:
    return all(np.array_equal(x[name], y[name], equal_nan=True) for x, y in zip(a, b, strict=True) for name in x)


@pytest.mark.parametrize(("tf32", "dtype"), [(False, "float32"), (True, "tf32")])
def test_it_says_what_it_runs_on(name, artifacts, tf32, dtype):
    """Nothing worse than what was asked for, and TF32 only where that was."""
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        info = open_backend(name, Device("cuda"), Settings(artifacts=artifacts, allow_tf32=tf32)).info

        assert info.device == "cuda:0"
        assert info.provider == {"eager": "torch", "onnx": "CUDAExecutionProvider"}[name]
        assert info.dtype == dtype
        assert name == "onnx" or torch.backends.cuda.matmul.allow_tf32 is tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("layer", [*LAYERS, *WIDE])
def test_backends_agree_with_the_reference(layer, deterministic, artifacts):
    """What keeps a service from being ready; alone against in company too, where that is promised."""
    backends = {
        n: opened(n, artifacts, deterministic=deterministic)
        if n != "reference"
        else open_backend(n, Device("cpu"), Settings())
        for n in ("eager", "onnx", "reference")
    }

    found = open_model(backends, ALL[layer])

    assert max(found.parity.values()) < parity.TO_REFERENCE
    assert all(runner.exact is (deterministic or n == "reference") for n, runner in found.runners.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", [*LAYERS, *WIDE])
def test_products_are_computed_as_a_layer_declares(layer, dtype, artifacts):
    """By eager, which says so; ONNX Runtime computes in float32. Within what such products allow."""
    entry = replace(ALL[layer], spec=ALL[layer].spec.model_copy(update={"compute_dtype": dtype}))
    backends = {n: opened(n, artifacts) for n in ("eager", "onnx")}

    found = open_model(backends | {"reference": open_backend("reference", Device("cpu"), Settings())}, entry)

    assert found.runners["eager"].module.dtype == getattr(torch, dtype)
    assert {n: b.info.of(dtype).dtype for n, b in backends.items()} == {"eager": dtype, "onnx": "float32"}
    assert found.parity["onnx-reference"] < parity.TO_REFERENCE < found.parity["eager-reference"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_are_computed_as_an_encoder_declares(dtype, artifacts):
    spec = make_spec(compute_dtype=dtype)
    backends = {n: opened(n, artifacts) for n in ("eager", "onnx")}
    entry = EncoderEntry(spec, draw_weights(spec), word_pieces(), "")

    found = open_model(backends | {"reference": open_backend("reference", Device("cpu"), Settings())}, entry)

    assert found.runners["eager"].module.layers[0].attention.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [*LAYERS, *WIDE])
def test_padding_changes_nothing_beyond_rounding(name, layer, kind, artifacts):
    """Twice, so that what is recorded answers too."""
    entry = ALL[layer]
    runner, exact = (opened(name, artifacts, deterministic=d).layer(entry) for d in (False, True))
    lengths = (17, 24, 19) if entry.spec.steady else (19, 19, 19)
    assert {runner.bucket(n) for n in lengths} == {24 if entry.spec.steady else 19}
    projected = ("projected",) if entry.weights.output is not None else ()
    for wanted in (("outputs", *projected), entry.weights.tensor_names):
        batch = mixed(entry, lengths, kind, wanted)
        want = exact.run(batch)

        for _ in range(3):
            assert_same(runner.run(batch), want, batch, 1e-5)


@pytest.mark.parametrize("n", [1, 2, 33, 128, 512, 1_500])
@pytest.mark.parametrize("wanted", [("outputs",), NAMES], ids=["outputs", "all"])
def test_a_gpu_equals_a_cpu(name, n, wanted, artifacts):
    """Short and long, padded and not."""
    cpu = open_backend("onnx", Device("cpu"), Settings(artifacts=artifacts)).layer(ENTRY)
    batch = mixed(ENTRY, (n, n), "plain", wanted)

    assert_same(opened(name, artifacts).layer(ENTRY).run(batch), cpu.run(batch), batch, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_answers_have_the_same_bits_alone_and_in_company(name, kind, artifacts):
    """What `ATTENTION_DETERMINISTIC` promises, also the third time, when it is replayed."""
    runner = opened(name, artifacts, deterministic=True).layer(ENTRY)
    for n in (1, 2, 7, 33, 128, 600):
        for wanted in (("outputs",), NAMES):
            batch = mixed(ENTRY, (n,) * 4, kind, wanted)
            first = runner.run(batch)

            assert runner.bucket(n) == n
            assert same_bits([runner.run(batch.alone(i))[0] for i in range(4)], first)
            assert same_bits(runner.run(batch), first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_has_the_bits_of_a_plain_one(kind, artifacts):
    """Also with other inputs than those it was recorded with."""
    backend = opened("eager", artifacts)
    runner = backend.layer(ENTRY)
    batches = [mixed(ENTRY, lengths, kind, NAMES) for lengths in ((17, 20, 24), (24, 18, 17), (23, 23, 23))]
    try:
        backend.lanes.records = False
        plain = [runner.run(batch) for batch in batches]
    finally:
        backend.lanes.records = True
    recorded = [[runner.run(batch) for batch in batches] for _ in range(3)]

    assert all(same_bits(found, want) for turn in recorded for found, want in zip(turn, plain, strict=True))
    lane = backend.lanes._free[-1]
    assert any(lane.recordings[runner].values())


@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
def test_what_a_large_neighbour_held_does_not_leak(name, kind, artifacts):
    """Memory is used again, on both sides; a weight of zero does not hide what is not finite."""
    runner = opened(name, artifacts).layer(ENTRY)
    batch = mixed(ENTRY, (17, 19, 18), kind, NAMES)
    before = [runner.run(batch) for _ in range(3)]
    for size in (1e15, 1e37):
        for _ in range(3):
            runner.run(mixed(ENTRY, (24, 24, 24, 24), kind, NAMES, size=size))

        after = runner.run(batch)

        assert all(np.isfinite(tensors[n]).all() for tensors in after for n in ("query", "outputs"))
        assert all(same_bits(after, found) for found in before)


def test_a_callers_own_projections(name, artifacts):
    """Of several widths, one after the other."""
    random = np.random.default_rng(0)
    runner, exact = (opened(name, artifacts, deterministic=d).projections() for d in (False, True))
    cpu = open_backend(name, Device("cpu"), Settings(artifacts=artifacts)).projections()
    for widths in ((5, 3), (17, 9), (5, 3), (5, 3)):
        own = Projections(*(random.standard_normal((48, w), np.float32) for w in (widths[0], *widths)))
        batch = replace(mixed(ENTRY, (17, 24, 19), "plain", ("outputs", "weights")), projections=own, scale=0.02)
        want = [cpu.run(batch.alone(i))[0] for i in range(3)]

        assert_same(runner.run(batch), want, batch, 1e-4)
        assert_same(exact.run(batch), want, batch, 1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_encoder_equals_the_cpu(name, deterministic, artifacts):
    """Not padded, but stacked and recorded."""
    spec = make_spec()
    entry = EncoderEntry(spec, draw_weights(spec), word_pieces(), "")
    cpu = open_backend("onnx", Device("cpu"), Settings(artifacts=artifacts)).encoder(entry)
    gpu = opened(name, artifacts, deterministic=deterministic).encoder(entry)
    gpu.warm()
    random = np.random.default_rng(0)
    wanted = ("layers.0.weights", f"layers.{spec.num_layers - 1}.outputs")
    for n in (1, 7, spec.max_positions):
        ids = tuple(random.integers(spec.vocab_size, size=n) for _ in range(3))
        batch = Batch(ids, None, None, False, 1.0, wanted)
        want = cpu.run(batch)
        for _ in range(3):
            found = gpu.run(batch)
            for a, b in zip(found, want, strict=True):
                for tensor in wanted:
                    assert_close(a[tensor], b[tensor], 1e-4, tensor)
            if deterministic:
                assert same_bits([gpu.run(batch.alone(i))[0] for i in range(3)], found)


@pytest.mark.parametrize("deterministic", [False, True])
def test_eight_threads_get_the_bits_of_one(name, deterministic, artifacts):
    """Cold: they also race to record, and to open sessions."""
    backend = opened(name, artifacts, deterministic=deterministic)
    quiet, crowded = backend.layer(ENTRY), backend.layer(ENTRY)
    batches = [
        mixed(ENTRY, [9 + 7 * i] * 3, KINDS[i % 3], (("outputs",), ("outputs", "weights"), NAMES)[i % 3])
        for i in range(8)
    ]
    alone = [quiet.run(batch) for batch in batches]
    together = threading.Barrier(8)

    def run(batch):
        together.wait(30)
        return [crowded.run(batch) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        crowds = list(pool.map(run, batches))

    for want, crowd in zip(alone, crowds, strict=True):
        assert all(same_bits(want, found) for found in crowd)


def test_memory_does_not_grow(name, artifacts):
    """A thousand runs of random lengths, counts and kinds hold what the first hundreds did."""
    runner = opened(name, artifacts).layer(ENTRY)
    random = np.random.default_rng(0)
    batches = [
        mixed(ENTRY, random.integers(b // 4 * 3 + 1, b + 1, size=random.integers(1, 9)), kind, wanted)
        for b in (24, 48, 96, 192)
        for kind in KINDS
        for wanted in (("outputs",), ("outputs", "weights"))
    ]

    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def run(times: int) -> int:
        for _ in range(times):
            runner.run(batches[random.integers(len(batches))])
        return used()

    before = run(1_000)

    assert run(1_000) - before <= 64 << 20


def test_recordings_are_few_and_go_with_their_layer(artifacts, monkeypatch):
    """Callers choose the shapes, and must not fill the memory with them; nor may a layer that is unloaded stay."""
    from service.backends import eager_cuda

    monkeypatch.setattr(eager_cuda, "RECORDINGS", 3)
    backend = open_backend("eager", Device("cuda"), Settings(artifacts=artifacts))
    runner = backend.layer(ENTRY)
    for n in range(8, 400, 24):
        for _ in range(3):
            runner.run(mixed(ENTRY, (n,), "plain", NAMES))
    (lane,) = backend.lanes._free
    assert len(lane.recordings[runner]) == 3
    watched = [weakref.ref(recording) for recording in lane.recordings[runner].values()]
    assert all(ref() is not None for ref in watched)

    del runner
    gc.collect()

    assert not lane.recordings
    assert all(ref() is None for ref in watched)


def test_what_cannot_be_recorded_is_launched_all_the_same(artifacts):
    """Nothing is recorded after that; what was before still answers."""
    backend = open_backend("eager", Device("cuda"), Settings(artifacts=artifacts))
    before, odd, after = (backend.layer(ENTRY) for _ in range(3))
    batch = mixed(ENTRY, (24, 24), "plain", ("outputs", "weights"))
    want = [before.run(batch) for _ in range(3)][-1]
    found = odd.found

    def waiting(given, form):
        tensors = found(given, form)
        tensors["weights"].sum().item()  # waits for the device, which a recording cannot
        return tensors

    odd.found = waiting

    for runner in (odd, before, after):
        assert all(same_bits(runner.run(batch), want) for _ in range(4))
    (lane,) = backend.lanes._free
    assert any(lane.recordings[before].values())
    assert not any(lane.recordings.get(after, {}).values())


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_a_scale_beyond_float32_gives_no_warning(name, scale, artifacts):
    """Too large becomes infinite, and the answer is refused for that; too small becomes 0, and weights are equal."""
    batch = replace(mixed(ENTRY, (2,), "plain", ("weights",)), scale=scale)

    (tensors,) = opened(name, artifacts).layer(ENTRY).run(batch)

    assert scale > 1 or (tensors["weights"] == 0.5).all()


def test_an_answer_may_be_changed_by_whoever_gets_it(name, artifacts):
    """The service zeroes rows in place: that must not reach a later answer."""
    runner = opened(name, artifacts).layer(ENTRY)
    batch = mixed(ENTRY, (17, 19), "plain", NAMES)
    want = [{n: t.copy() for n, t in tensors.items()} for tensors in runner.run(batch)]
    for _ in range(4):
        found = runner.run(batch)

        assert same_bits(found, want)
        for tensors in found:
            for tensor in tensors.values():
                tensor[...] = 7


def test_buckets_bound_the_shapes(name, artifacts):
    """A layer is asked for a bucket before it is asked to compute."""
    runner = opened(name, artifacts).layer(ENTRY)

    assert [runner.bucket(n) for n in (1, 17, 33, 1_500)] == [bucket(n) for n in (1, 17, 33, 1_500)]
