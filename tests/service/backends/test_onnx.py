import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from models.types import TENSOR_NAMES, Projections, SequenceInput
from service.backends import onnx as module
from service.backends.base import Batch
from service.backends.onnx import OnnxBackend
from service.devices import Device
from service.errors import ConfigurationError
from tests.contract.layers import WIDE, attend, draw_sequence

ENTRY = WIDE["wide-heads"]
WANTED = [w for size in (1, 2) for w in itertools.combinations(TENSOR_NAMES, size)]


def batch_of(n: int, count: int, *, seed: int = 0, masked: bool = False, wanted=TENSOR_NAMES) -> Batch:
    sequences = [draw_sequence(ENTRY, n, seed + i, masked=masked) for i in range(count)]
    masks = tuple(s.attn_mask for s in sequences) if masked else None
    return Batch(tuple(s.inputs for s in sequences), masks, None, False, 0.25, wanted)


def same_bits(a, b) -> bool:
    return all(np.array_equal(x[name], y[name], equal_nan=True) for x, y in zip(a, b, strict=True) for name in x)


@pytest.fixture
def backend(settings) -> OnnxBackend:
    """ONNX Runtime on the CPU."""
    return OnnxBackend(Device("cpu"), settings)


@pytest.fixture
def opened(backend, monkeypatch) -> list:
    """Weak references to every session the backend opens."""
    sessions, session = [], backend.session

    def watch(graph):
        new = session(graph)
        sessions.append(weakref.ref(new))
        return new

    monkeypatch.setattr(backend, "session", watch)
    return sessions


def test_a_session_is_opened_once_for_each_set_of_tensors(backend, opened):
    """Opening costs milliseconds, running microseconds."""
    runner = backend.layer(ENTRY)

    for n in (1, 5, 9):
        runner.run(batch_of(n, 2, wanted=("outputs",)))
        runner.run(batch_of(n, 2, wanted=("outputs",), masked=True))

    assert len(opened) == 2


def test_a_causal_batch_shares_the_session_of_masked_ones(backend, opened):
    """Where scores are asked for, which the operator that knows causality does not give, causality is a mask."""
    runner = backend.layer(ENTRY)
    masked = batch_of(5, 2, masked=True)

    runner.run(masked)
    runner.run(replace(masked, masks=None, is_causal=True))

    assert len(opened) == 1


def test_a_graph_that_sees_to_causality_is_given_no_mask(backend, monkeypatch):
    """A matrix that is not made is not copied, compared and masked with either."""
    fed = []
    run = ort.InferenceSession.run

    def watch(session, names, feed):
        fed.append(set(feed))
        return run(session, names, feed)

    monkeypatch.setattr(ort.InferenceSession, "run", watch)
    causal = replace(batch_of(5, 2, wanted=("outputs", "weights")), is_causal=True)

    (found, _) = backend.layer(ENTRY).run(causal)

    assert fed == [{"inputs", "scale"}]
    assert (found["weights"][:, ~np.tri(5, dtype=bool)] == 0).all()


def test_few_sessions_stay_open(backend, opened, monkeypatch):
    """Callers choose the tensors, and must not fill the memory by asking for every set of them."""
    monkeypatch.setattr(module, "SESSIONS", 3)
    runner = backend.layer(ENTRY)
    first = runner.run(batch_of(5, 2, wanted=WANTED[0]))

    for wanted in WANTED:
        runner.run(batch_of(5, 2, wanted=wanted))
    gc.collect()

    assert len(opened) == len(WANTED)
    assert sum(session() is not None for session in opened) == 3
    assert same_bits(runner.run(batch_of(5, 2, wanted=WANTED[0])), first)
    assert len(opened) == len(WANTED) + 1


def test_the_session_used_last_stays_open(backend, opened, monkeypatch):
    """The ordinary request must not pay for the odd ones."""
    monkeypatch.setattr(module, "SESSIONS", 2)
    runner = backend.layer(ENTRY)

    for wanted in WANTED[1:6]:
        runner.run(batch_of(5, 1, wanted=("outputs",)))
        runner.run(batch_of(5, 1, wanted=wanted))

    assert len(opened) == 6


def test_warming_opens_what_ordinary_requests_need(backend, opened):
    """Outputs and weights, of all columns, of earlier ones and by a mask; the first request opens nothing."""
    runner = backend.layer(ENTRY)
    runner.warm()
    before = len(opened)

    runner.run(batch_of(5, 2, wanted=("outputs", "weights")))
    runner.run(batch_of(5, 2, wanted=("outputs", "weights"), masked=True))
    runner.run(replace(batch_of(5, 2, wanted=("outputs", "weights")), is_causal=True))

    assert len(opened) == before == 3


def test_another_provider_than_asked_for_is_refused(backend, monkeypatch):
    """ONNX Runtime falls back without an error; a service that says GPU must be on one."""
    runner = backend.layer(ENTRY)
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider"])

    with pytest.raises(ConfigurationError, match="asked ONNX Runtime for CPUExecutionProvider, got Azure"):
        runner.run(batch_of(5, 1))


def test_a_session_runs_on_the_calling_thread(backend, monkeypatch):
    """Parallelism comes from batches side by side; and threads of its own would split a row's sum."""
    asked = []
    session = ort.InferenceSession

    def watch(model, options, providers):
        asked.append((options.intra_op_num_threads, options.inter_op_num_threads))
        return session(model, options, providers=providers)

    monkeypatch.setattr(ort, "InferenceSession", watch)

    backend.layer(ENTRY).run(batch_of(5, 1))

    assert asked == [(1, 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_sequences_of_a_layer_share_a_run_those_of_projections_do_not(backend, monkeypatch, count):
    """Matrices that are inputs are not packed, and their products would depend on the number of rows."""
    runs = []
    run = ort.InferenceSession.run

    def watch(session, names, feed):
        runs.append(len(feed["inputs"]))
        return run(session, names, feed)

    monkeypatch.setattr(ort.InferenceSession, "run", watch)
    weights = ENTRY.weights
    own = Projections(weights.query, weights.query, weights.query)

    backend.layer(ENTRY).run(batch_of(5, count))
    backend.projections().run(replace(batch_of(5, count), projections=own))

    assert runs == [count] + [1] * count


def test_eight_threads_get_the_bits_of_one(backend):
    """Cold: all of them also race to open the sessions."""
    batches = [batch_of(5 + 7 * i, 3, seed=i, masked=bool(i % 2), wanted=WANTED[i % 3]) for i in range(8)]
    quiet, crowded = backend.layer(ENTRY), backend.layer(ENTRY)
    alone = [quiet.run(batch) for batch in batches]
    together = threading.Barrier(8)

    def run(batch):
        together.wait(30)
        return [crowded.run(batch) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        crowds = list(pool.map(run, batches))

    for want, crowd in zip(alone, crowds, strict=True):
        assert all(same_bits(want, found) for found in crowd)


def test_sessions_closed_while_in_use_finish_their_work(backend, monkeypatch):
    """A bound of one, and eight threads that push each other's sessions out."""
    monkeypatch.setattr(module, "SESSIONS", 1)
    runner = backend.layer(ENTRY)
    batches = [batch_of(9, 2, wanted=wanted) for wanted in WANTED[:8]]
    alone = [runner.run(batch) for batch in batches]

    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(runner.run, batches * 3))

    for i, found in enumerate(crowd):
        assert same_bits(alone[i % 8], found)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_a_scale_beyond_float32_gives_no_warning(backend, scale):
    """Too large becomes infinite, and the answer is refused for that; too small becomes 0, and weights are equal."""
    x = np.zeros((2, ENTRY.spec.embed_dim), np.float32)

    (tensors,) = backend.layer(ENTRY).run(Batch((x,), None, None, False, scale, ("weights",)))

    if scale < 1:
        assert (tensors["weights"] == 0.5).all()


def test_inputs_may_lie_anywhere_in_memory(backend):
    """A codec hands over views into a body: unaligned, read-only."""
    sequence = draw_sequence(ENTRY, 7, 0)
    body = b"\0" + sequence.inputs.tobytes()
    view = np.frombuffer(body, np.float32, offset=1, count=sequence.inputs.size).reshape(sequence.inputs.shape)
    runner = backend.layer(ENTRY)

    (plain,) = attend(runner, [sequence], scale=0.25)
    (odd,) = attend(runner, [SequenceInput(view)], scale=0.25)

    for name in TENSOR_NAMES:
        np.testing.assert_array_equal(odd[name], plain[name])
