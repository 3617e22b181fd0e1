"""Long sequences of which only outputs are asked for: no matrix of scores is held for them."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from serving import ROOT, empty_repository

from models.types import ALL_TENSOR_NAMES, SequenceInput
from service.backends import BACKENDS
from service.backends.base import Batch
from service.backends.onnx import TILE_FROM, WIDE_HEAD
from service.backends.tiles import CAUSAL_ROWS
from tests.contract import layers
from tests.contract.layers import DEVICE, assert_close, attend, backend, draw_sequence, layer_runner, make_layer, served

ONE_HEAD = (
    make_layer("one-head", embed_dim=8, head_dim=WIDE_HEAD, value_dim=5, with_biases=True),
    make_layer("one-head-rotary", embed_dim=8, head_dim=WIDE_HEAD, position={"scheme": "rope"}),
    make_layer("one-head-normalised", embed_dim=8, head_dim=WIDE_HEAD, query_key_norm={}),
)
LAYERS = layers.LAYERS | {entry.spec.name: entry for entry in ONE_HEAD}
PLAIN = ("heads", "grouped", "projecting", "rotary", "interleaved", "dynamic", *(e.spec.name for e in ONE_HEAD))
SCORING = ("alibi", "relative", "capped")
"""Layers whose scores are more than a product and what the caller adds."""

LENGTHS = (TILE_FROM - 1, TILE_FROM, TILE_FROM + CAUSAL_ROWS + 1)
"""The last does not come out even."""


def long_sequence(layer: str, n: int, seed: int, *, masked: bool, biased: bool) -> SequenceInput:
    drawn = draw_sequence(LAYERS[layer], n, seed, masked=masked)
    if not biased:
        return drawn
    bias = np.random.default_rng(seed).standard_normal((LAYERS[layer].spec.num_heads, n, n), np.float32)
    return replace(drawn, attn_bias=bias)


@pytest.mark.parametrize("layer", [*PLAIN, *SCORING])
@pytest.mark.parametrize("n", LENGTHS)
def test_outputs_alone_are_the_outputs_beside_weights(layer: str, n: int, artifacts: Path):
    """Whichever way they are computed: plain, causal, masked, biased, on either backend, in company or not."""
    spec = LAYERS[layer].spec
    wanted = ("outputs", "projected") if layer == "projecting" else ("outputs",)
    cases = [(False, False, False), (True, False, False), (False, True, False), (True, True, True)]
    for name in ("onnx", "eager"):
        runner = served(name, LAYERS[layer], artifacts)  # a new one: its memory goes with it
        for is_causal, masked, biased in cases:
            sequences = [long_sequence(layer, n, seed, masked=masked, biased=biased) for seed in (1, 2)]
            options = {"scale": spec.effective_scale, "window": spec.window, "is_causal": is_causal}
            explicit = attend(runner, sequences, wanted=(*wanted, "weights"), **options)

            found = attend(runner, sequences, wanted=wanted, **options)
            alone = attend(runner, sequences[:1], wanted=wanted, **options)

            label = f"{name}, causal={is_causal}, masked={masked}, biased={biased}"
            for tensor in wanted:
                for a, b in zip(found, explicit, strict=True):
                    assert a.dead == b.dead, label
                    assert_close(a[tensor], b[tensor], 1e-5, label)
                if runner.exact:
                    np.testing.assert_array_equal(alone[0][tensor], found[0][tensor], err_msg=label)


def backwards(parts):
    """Each part by a thread of its own, the last one first."""
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(part) for part in reversed(parts)]:
            done.result()


@pytest.mark.parametrize(
    "wanted", [("outputs",), ("weights",), ("scores", "projected"), ALL_TENSOR_NAMES], ids=",".join
)
@pytest.mark.parametrize("layer", ["projecting", "one-head", "one-head-rotary"])
@pytest.mark.parametrize("name", BACKENDS)
def test_bits_do_not_depend_on_who_computes_the_parts(name: str, layer: str, wanted, artifacts: Path):
    """One thread or several, in whichever order: how busy the service is must not show in an answer."""
    entry = LAYERS[layer]
    if entry.weights.output is None:
        wanted = tuple(tensor for tensor in wanted if tensor != "projected")
    runner = served(name, entry, artifacts)
    n = LENGTHS[-1]
    inputs = (draw_sequence(entry, n, 0).inputs,)
    random = np.random.default_rng(0)
    heads = entry.spec.num_heads
    masks, biases = (random.random((n, n)) < 0.7,), (random.standard_normal((heads, n, n), np.float32),)
    masks[0][5] = False
    plain = Batch(inputs, None, None, False, 0.3, wanted)
    for batch in (plain, replace(plain, is_causal=True), replace(plain, masks=masks, biases=biases)):
        (alone,) = runner.run(batch)
        (shared,) = runner.run(replace(batch, spread=backwards))

        for tensor in wanted:
            np.testing.assert_array_equal(shared[tensor], alone[tensor], err_msg=tensor)


@pytest.mark.parametrize("name", ["onnx", "eager"])
def test_scores_are_held_only_where_they_must_be(name: str, artifacts: Path):
    """What a limit on memory counts."""
    plain, scoring = (layer_runner(name, layer, artifacts) for layer in ("heads", "alibi"))

    if name == "onnx" and DEVICE.kind == "cuda":
        pytest.skip("its graphs have no fused kernel there")
    assert not plain.holds_scores(TILE_FROM, ("outputs",))
    assert not plain.holds_scores(TILE_FROM, ("query", "outputs"))
    assert plain.holds_scores(TILE_FROM, ("outputs", "weights"))
    assert plain.holds_scores(TILE_FROM, ("scores",))
    assert scoring.holds_scores(TILE_FROM, ("outputs",))
    assert layer_runner("reference", "heads", artifacts).holds_scores(1, ("outputs",))
    assert not backend(name, artifacts).projections().holds_scores(2 * TILE_FROM, ("outputs",))


@pytest.mark.parametrize(
    "options", [["--backend", "onnx"], ["--backend", "onnx", "--is-causal"], ["--backend", "eager"]]
)
def test_sixteen_thousand_tokens_take_far_less_than_their_scores(options: list[str], artifacts: Path, tmp_path: Path):
    """A matrix of them is 1 GiB; so much is the whole process allowed."""
    np.save(tmp_path / "long.npy", np.random.default_rng(0).standard_normal((16_384, 64), np.float32))
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], timeout=100)\n"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)"
    )
    command = [sys.executable, "-m", "service", "run", tmp_path / "long.npy", "--return", "outputs", *options]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_MODEL_REPOSITORY": str(empty_repository(artifacts)),
        "ATTENTION_DEVICE": "cpu",
    }

    ended = subprocess.run(
        [sys.executable, "-c", script, *command, "--output", tmp_path / "answer.npz"],
        env=environment, capture_output=True, text=True, timeout=110, check=True,
    )  # fmt: skip

    code, mebibytes = map(int, ended.stdout.split())
    assert code == 0, ended.stderr
    assert mebibytes < 1_024
    assert np.load(tmp_path / "answer.npz")["outputs"].shape == (16_384, 64)
