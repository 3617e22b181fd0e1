import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models.types import TENSOR_NAMES
from service.backends.base import Batch
from service.backends.eager import EagerBackend
from service.devices import Device
from tests.contract.layers import WIDE, draw_sequence

ENTRY = WIDE["wide-heads"]


def batch_of(n: int, count: int, *, seed: int = 0, masked: bool = False, wanted=TENSOR_NAMES) -> Batch:
    sequences = [draw_sequence(ENTRY, n, seed + i, masked=masked) for i in range(count)]
    masks = tuple(s.attn_mask for s in sequences) if masked else None
    return Batch(tuple(s.inputs for s in sequences), masks, None, False, 0.25, wanted)


def same_bits(a, b) -> bool:
    return all(np.array_equal(x[name], y[name], equal_nan=True) for x, y in zip(a, b, strict=True) for name in x)


def test_one_thread_computes_a_batch(settings):
    """Batches run side by side, one core each; torch's own threads would only get in their way."""
    before = torch.get_num_threads()
    seen = []
    try:
        torch.set_num_threads(2)
        EagerBackend(Device("cpu"), settings)
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()

        assert torch.get_num_threads() == 1
        assert seen == [1]
    finally:
        torch.set_num_threads(before)


def test_a_thread_that_met_torch_before_the_backend_was_opened_computes_on_one_too(settings):
    """The event loop's thread: it imports torch, and models are loaded in another."""
    seen = []

    def compute():
        torch.set_num_threads(2)
        torch.get_num_threads()  # now it is this thread's own number
        with ThreadPoolExecutor(1) as pool:
            runner = pool.submit(lambda: EagerBackend(Device("cpu"), settings).layer(ENTRY)).result()
        seen.append(torch.get_num_threads())
        runner.run(batch_of(5, 1))
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)

    assert seen == [2, 1]


@pytest.mark.parametrize("wanted", [("outputs",), TENSOR_NAMES], ids=["fused", "explicit"])
def test_the_first_answer_of_a_thread_has_the_bits_of_all_others(settings, wanted):
    """torch learnt of its one thread after a thread's first product, which ran on two and rounded otherwise."""
    runner = EagerBackend(Device("cpu"), settings).layer(ENTRY)
    for n in (1, 2, 5, 12, 33):
        batch = batch_of(n, 1, wanted=wanted)
        with ThreadPoolExecutor(1) as pool:
            first, second = pool.submit(runner.run, batch).result(), pool.submit(runner.run, batch).result()

        assert same_bits(first, second)
        assert same_bits(first, runner.run(batch))


@pytest.mark.parametrize("wanted", [("outputs",), TENSOR_NAMES], ids=["fused", "explicit"])
def test_eight_threads_get_the_bits_of_one(settings, wanted):
    """`Runner.run` is called from several threads at once."""
    runner = EagerBackend(Device("cpu"), settings).layer(ENTRY)
    batches = [batch_of(5 + 7 * i, 3, seed=i, masked=bool(i % 2), wanted=wanted) for i in range(8)]
    alone = [runner.run(batch) for batch in batches]
    together = threading.Barrier(8)

    def run(batch):
        together.wait(30)
        return [runner.run(batch) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        crowds = list(pool.map(run, batches))

    for want, crowd in zip(alone, crowds, strict=True):
        assert all(same_bits(want, found) for found in crowd)


def test_no_gradient_is_recorded(settings):
    """Inference mode: a graph of gradients would keep every request's tensors alive."""
    runner = EagerBackend(Device("cpu"), settings).layer(ENTRY)
    seen = []
    runner.module.register_forward_hook(lambda *_: None)
    project = runner.module.project
    runner.module.project = lambda inputs: (seen.append(torch.is_inference_mode_enabled()), project(inputs))[1]

    runner.run(batch_of(3, 2))

    assert seen == [True, True]
    assert not runner.module.training


def test_warming_leaves_no_trace(settings):
    """It computes zeros, and changes nothing for the first request."""
    cold = EagerBackend(Device("cpu"), settings).layer(ENTRY)
    warm = EagerBackend(Device("cpu"), settings).layer(ENTRY)
    warm.warm()

    assert same_bits(warm.run(batch_of(9, 2)), cold.run(batch_of(9, 2)))
