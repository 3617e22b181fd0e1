"""The service as its callers see it: a real process, over HTTP."""

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import zstandard
from serving import ROOT, Server, start_server
from wire import (
    JSON,
    NPY,
    NPZ,
    PROBLEM,
    SAFETENSORS,
    Decoded,
    Reply,
    attend,
    bits,
    call,
    connect,
    http_request,
    metrics_of,
    npy,
    raw,
    read_reply,
    safetensors_file,
    send,
    tensor_object,
    total,
    until,
)

from models.reference import attention, self_attention
from models.repository import builtin
from models.types import TENSOR_NAMES

pytestmark = pytest.mark.server

ENTRIES = {entry.spec.name: entry for entry in builtin()}
RANDOM = np.random.default_rng(7)
ANSWERS = (JSON, SAFETENSORS, NPZ)


def draw(model: str, n: int) -> np.ndarray:
    return RANDOM.standard_normal((n, ENTRIES[model].spec.embed_dim)).astype(np.float32)


def expected(model: str, x: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    """Every tensor in float64, without the axis of heads where there is one head."""
    entry = ENTRIES[model]
    trace = self_attention(x, entry.weights, entry.spec, **options)
    found = {}
    for name in TENSOR_NAMES:
        tensor = trace.tensor(name)
        found[name] = tensor[0] if name != "outputs" and len(tensor) == 1 else tensor
    return found


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    """Within 1e-5 of the largest value; masked scores alike."""
    assert got.shape == wanted.shape
    hidden = np.isneginf(wanted)
    assert (np.isneginf(got) == hidden).all()
    finite = np.where(hidden, 0, wanted)
    assert np.abs(np.where(hidden, 0, got) - finite).max() <= tolerance * max(1.0, np.abs(finite).max())


def assert_same(got: Decoded, wanted: Decoded) -> None:
    """Bit by bit."""
    assert got.tensors.keys() == wanted.tensors.keys()
    for name, parts in got.tensors.items():
        for one, other in zip(parts, wanted.tensors[name], strict=True):
            pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
            assert all(a.shape == b.shape and bits(a) == bits(b) for a, b in pairs), name


@contextmanager
def own_server(artifacts: Path, **environment: str) -> Iterator[Server]:
    """A service of the test's own; stopped with 0 unless the test has ended it."""
    running = start_server(artifacts, **environment)
    try:
        yield running
        if running.process.poll() is None:
            assert running.stop() == 0
    finally:
        running.process.kill()
        running.process.wait(30)
        assert running.process.stdout is not None
        running.process.stdout.close()


# ---- the main job


@pytest.mark.parametrize("accept", ANSWERS)
@pytest.mark.parametrize("sent", [JSON, "base64", SAFETENSORS, NPY])
@pytest.mark.parametrize("model", list(ENTRIES))
def test_every_format_in_and_out_gives_the_mathematics(server: Server, model: str, sent: str, accept: str):
    """Against float64, with every tensor asked for: weights sum to 1, all heads are there."""
    x = draw(model, 7)
    options = {"model": model, "is_causal": "true", "return": ",".join(TENSOR_NAMES)}
    if sent in (JSON, "base64"):
        value = x.tolist() if sent == JSON else tensor_object(x)
        body, media_type = json.dumps({"inputs": value}).encode(), JSON
    else:
        body, media_type = (safetensors_file({"inputs": x}), sent) if sent == SAFETENSORS else (npy(x), sent)

    reply = call(
        server.url, "POST", f"/v1/attention?{urlencode(options)}", body, {"Content-Type": media_type, "Accept": accept}
    )

    assert reply.headers["content-type"] == accept
    found = reply.decoded()
    for name, wanted in expected(model, x, is_causal=True).items():
        assert_close(found.tensors[name][0], wanted)
    weights = found.tensors["weights"][0]
    assert np.abs(weights.sum(-1, dtype=np.float64) - 1).max() < 1e-6
    assert not np.triu(weights, 1).any()
    assert found.metadata["model"] == {"name": model, "version": "1"}
    assert found.metadata["backend"]["dtype"] == "float32"


@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
@pytest.mark.parametrize("model", list(ENTRIES))
def test_every_backend_gives_the_mathematics(server: Server, model: str, backend: str):
    """With a mask, a bias and a scale: and the answer says what it was computed with."""
    n = 5
    x, mask = draw(model, n), RANDOM.random((n, n)) < 0.6
    mask[2] = False
    bias = RANDOM.standard_normal((n, n)).astype(np.float32)
    reply = attend(server.url, {
        "inputs": x.tolist(), "model": model, "attn_mask": mask.tolist(), "attn_bias": bias.tolist(), "scale": 0.25,
        "backend": backend, "return": list(TENSOR_NAMES),
    })  # fmt: skip

    found = reply.decoded()
    for name, wanted in expected(model, x, attn_mask=mask, attn_bias=bias, scale=0.25).items():
        assert_close(found.tensors[name][0], wanted)
    assert found.metadata["fully_masked_rows"] == [2]
    assert not found.tensors["weights"][0][..., 2, :].any()
    assert not found.tensors["outputs"][0][2].any()
    assert not found.tensors["weights"][0][..., ~mask].any()
    assert found.metadata["backend"]["name"] == backend
    assert found.metadata["backend"]["device"] == "cpu"


@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
def test_a_masked_column_weighs_exactly_nothing_whatever_stands_in_it(server: Server, backend: str):
    """A bias of 3e38 and an embedding of 1e15 in a hidden column change no bit of the other rows."""
    x, n = draw("lesson", 4), 4
    hidden = np.ones((n, n), bool)
    hidden[:3, 3] = False
    bias = np.zeros((n, n), np.float32)
    request = {"model": "lesson", "backend": backend, "attn_mask": hidden.tolist(), "scale": 0.5}
    tame = attend(server.url, request | {"inputs": x.tolist(), "attn_bias": bias.tolist()}).decoded()
    bias[:3, 3], x[3] = 3e38, 1e15
    wild = attend(server.url, request | {"inputs": x.tolist(), "attn_bias": bias.tolist()}).decoded()

    assert not wild.tensors["weights"][0][:3, 3].any()
    for name in ("weights", "outputs"):
        assert bits(wild.tensors[name][0][:3]) == bits(tame.tensors[name][0][:3])


@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
def test_a_mask_and_causality_both_apply(server: Server, backend: str):
    """Row 0 sees only column 0, and that is masked: it sees nothing."""
    x, n = draw("multi-head-384x12", 3), 3
    mask = ~np.eye(n, dtype=bool)

    reply = attend(server.url, {"model": "multi-head-384x12", "inputs": x.tolist(), "attn_mask": mask.tolist(),
                                "is_causal": True, "backend": backend, "return": ["weights", "scores"]})  # fmt: skip

    found = reply.decoded()
    seen = mask & np.tri(n, dtype=bool)
    assert not found.tensors["weights"][0][:, ~seen].any()
    assert np.isneginf(found.tensors["scores"][0][:, ~seen]).all()
    assert np.isfinite(found.tensors["scores"][0][:, seen]).all()
    assert found.metadata["fully_masked_rows"] == [0]
    assert reply.json()["scores"][0][0] == [None] * n


def test_backends_agree_within_the_contract(server: Server):
    """1e-5 of the largest value, between onnx and eager."""
    x = draw("multi-head-384x12", 33)

    one, other = (
        attend(server.url, {"inputs": x.tolist(), "model": "multi-head-384x12", "backend": name}).decoded()
        for name in ("onnx", "eager")
    )

    for name in ("outputs", "weights"):
        assert_close(one.tensors[name][0], other.tensors[name][0].astype(np.float64))


@pytest.mark.parametrize("accept", ANSWERS)
@pytest.mark.parametrize("sent", [JSON, SAFETENSORS])
def test_a_callers_own_projections_take_the_place_of_a_model(server: Server, sent: str, accept: str):
    """`x @ W`, no bias; value may have a width of its own."""
    x = RANDOM.standard_normal((4, 6)).astype(np.float32)
    own = {name: RANDOM.standard_normal((6, width)).astype(np.float32) for name, width in
           (("query", 3), ("key", 3), ("value", 2))}  # fmt: skip
    if sent == JSON:
        document = {"inputs": x.tolist(), "projections": {name: matrix.tolist() for name, matrix in own.items()}}
        body = json.dumps(document).encode()
    else:
        body = safetensors_file({"inputs": x} | {f"projections.{name}": matrix for name, matrix in own.items()})

    found = call(server.url, "POST", "/v1/attention", body, {"Content-Type": sent, "Accept": accept}).decoded()

    query, key, value = ((x.astype(np.float64) @ matrix)[None] for matrix in own.values())
    wanted = attention(query, key, value)
    assert_close(found.tensors["weights"][0], wanted.weights[0])
    assert_close(found.tensors["outputs"][0], wanted.outputs)
    assert found.metadata["model"] == {"name": "projections", "version": ""}


def test_a_list_and_a_stack_are_answered_as_they_were_sent(server: Server):
    """Ragged lists, and arrays of equal lengths, with a mask each or none."""
    ragged = [draw("lesson", n) for n in (1, 4, 2)]
    mask = np.tril(np.ones((4, 4), bool))
    listed = attend(server.url, {
        "model": "lesson", "inputs": [x.tolist() for x in ragged], "attn_mask": [None, mask.tolist(), None],
    }).decoded(3)  # fmt: skip
    stack = np.stack([draw("lesson", 3) for _ in range(2)])
    by_npy = call(server.url, "POST", "/v1/attention?model=lesson", npy(stack), {"Content-Type": NPY}).decoded(2)
    by_names = call(
        server.url, "POST", "/v1/attention?model=lesson",
        safetensors_file({f"inputs.{i}": x for i, x in enumerate(ragged)} | {"attn_mask.1": mask}),
        {"Content-Type": SAFETENSORS},
    ).decoded(3)  # fmt: skip

    for i, x in enumerate(ragged):
        wanted = expected("lesson", x, attn_mask=mask if i == 1 else None)
        assert_close(listed.tensors["weights"][i], wanted["weights"])
        assert_close(by_names.tensors["outputs"][i], wanted["outputs"])
    for i, x in enumerate(stack):
        assert_close(by_npy.tensors["outputs"][i], expected("lesson", x)["outputs"])


@pytest.mark.parametrize("accept", ANSWERS)
@pytest.mark.parametrize("count", [None, 2])
def test_top_k_and_averaged_heads_are_taken_of_the_full_weights(server: Server, accept: str, count: int | None):
    """Sparse: the k largest of each row, largest first, ties to the earlier column; averaged: the mean over heads."""
    model, n, k = "multi-head-384x12", 6, 3
    x = draw(model, n)
    inputs = x.tolist() if count is None else [x.tolist()] * count
    request = {"model": model, "inputs": inputs, "return": ["weights", "scores"]}

    full = attend(server.url, request, Accept=accept).decoded(count)
    sparse = attend(server.url, request, f"?top_k={k}", Accept=accept).decoded(count)
    mean = attend(server.url, request, "?average_heads=true", Accept=accept).decoded(count)
    both = attend(server.url, request, f"?average_heads=true&top_k={k}", Accept=accept).decoded(count)
    large = attend(server.url, request, "?top_k=999", Accept=accept).decoded(count)

    weights = full.tensors["weights"][0]
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    indices, values = sparse.tensors["weights"][-1]
    assert indices.tolist() == order.tolist()
    assert bits(values) == bits(np.take_along_axis(weights, order, -1))
    assert mean.tensors["weights"][0].shape == mean.tensors["scores"][0].shape == (n, n)
    assert_close(mean.tensors["weights"][0], weights.astype(np.float64).mean(0), 1e-6)
    assert_close(mean.tensors["scores"][0], full.tensors["scores"][0].astype(np.float64).mean(0), 1e-6)
    assert both.tensors["weights"][0][1].shape == (n, k)
    assert large.tensors["weights"][0][0].shape == (12, n, n)


def test_base64_answers_hold_the_same_bits(server: Server):
    """`encoding` changes how tensors are written, nothing else."""
    request = {"inputs": draw("multi-head-384x12", 5).tolist(), "model": "multi-head-384x12", "is_causal": True,
               "return": list(TENSOR_NAMES)}  # fmt: skip

    numbers, objects = attend(server.url, request), attend(server.url, request, "?encoding=base64")

    assert isinstance(objects.json()["outputs"], dict)
    assert_same(objects.decoded(), numbers.decoded())


@pytest.mark.parametrize("sent", ["one", "list"])
@pytest.mark.parametrize("accept", [*ANSWERS, "base64"])
def test_a_float16_answer_is_the_float32_one_rounded(server: Server, accept: str, sent: str):
    """In every format, masked scores and sparse weights too; binary tensors have half the bytes."""
    model, count = "multi-head-384x12", None if sent == "one" else 2
    x = draw(model, 9).tolist()
    request = {"model": model, "inputs": x if count is None else [x] * 2, "is_causal": True, "top_k": 3,
               "return": list(TENSOR_NAMES)} | ({"encoding": "base64"} if accept == "base64" else {})  # fmt: skip
    accepted = JSON if accept == "base64" else accept

    full = attend(server.url, request, Accept=accepted)
    half = attend(server.url, request, "?dtype=float16", Accept=accepted)

    wanted, found = full.decoded(count).tensors, half.decoded(count).tensors
    assert wanted.keys() == found.keys() == set(TENSOR_NAMES)
    for name, parts in wanted.items():
        for want, got in zip(parts, found[name], strict=True):
            if name == "weights":
                assert bits(got[0]) == bits(want[0])
                want, got = want[1], got[1]
            assert got.dtype == (np.float32 if accept == JSON else np.float16)
            assert bits(got.astype(np.float16)) == bits(want.astype(np.float16))
    assert len(half.body) < 0.8 * len(full.body)
    assert half.decoded(count).metadata["backend"]["dtype"] == "float32"


def test_decimals_round_the_numbers_of_a_json_answer(server: Server):
    """And nothing else: the binary answer to compare with has every bit."""
    request = {"model": "lesson", "inputs": draw("lesson", 40).tolist(), "return": ["weights", "scores"]}

    full = attend(server.url, request).decoded()
    short = attend(server.url, request, "?decimals=3", Accept_Encoding="zstd")
    text = zstandard.ZstdDecompressor().decompressobj().decompress(short.body)

    document = json.loads(text)
    for name in ("weights", "scores"):
        assert document[name] == np.round(full.tensors[name][0].astype(np.float64), 3).tolist()
    assert max(len(number.partition(".")[2]) for number in re.findall(r"[0-9]+\.[0-9]+", text.decode())) == 3
    assert np.abs(np.sum(document["weights"], axis=1) - 1).max() <= 40 / 2 * 1e-3


def test_a_score_beyond_float16_is_refused_by_name(server: Server):
    """Never an infinity, in any format; without `dtype` the same request is answered."""
    request = {"model": "lesson", "inputs": [[[1] * 5], [[3e3] * 5]], "return": ["scores"]}
    assert attend(server.url, request).status == 200

    for accept in ANSWERS:
        reply = attend(server.url, request | {"dtype": "float16"}, Accept=accept)
        problem = reply.json()
        assert (reply.status, problem["type"]) == (422, "/problems/numeric-overflow")
        assert problem["errors"][0]["pointer"] == "/inputs/1"
        assert "scores would hold" in problem["detail"]
        assert "leave `dtype` out" in problem["detail"]


@pytest.mark.parametrize("accept", [SAFETENSORS, NPZ])
def test_decimals_are_not_for_binary_answers(server: Server, accept: str):
    """Asked for, or of the request's family."""
    x = draw("lesson", 2)

    asked = attend(server.url, {"model": "lesson", "inputs": x.tolist(), "decimals": 2}, Accept=accept)
    own = call(server.url, "POST", "/v1/attention?model=lesson&decimals=2", npy(x), {"Content-Type": NPY})

    for reply in (asked, own):
        assert (reply.status, reply.json()["type"]) == (406, "/problems/not-acceptable")
        assert "accept application/json" in reply.json()["detail"]


def test_what_is_not_asked_for_is_not_answered(server: Server):
    """Default: outputs and weights."""
    x = draw("lesson", 2).tolist()

    assert set(attend(server.url, {"inputs": x, "model": "lesson"}).decoded().tensors) == {"outputs", "weights"}
    assert set(attend(server.url, {"inputs": x, "model": "lesson", "return": ["key"]}).decoded().tensors) == {"key"}


def test_the_default_model_and_versions_are_named(server: Server):
    """`name`, `name@version` or nothing."""
    x = draw("single-head-64", 2).tolist()
    replies = [attend(server.url, {"inputs": x} | extra) for extra in
               ({}, {"model": "single-head-64"}, {"model": "single-head-64@1"}, {"model": None})]  # fmt: skip

    assert {reply.json()["model"]["name"] for reply in replies} == {"single-head-64"}
    for reply in replies[1:]:
        assert_same(reply.decoded(), replies[0].decoded())


@pytest.mark.parametrize(
    ("document", "query", "status", "code", "pointer"),
    [
        ({"model": "lesso", "inputs": [[1]]}, "", 404, "not-found", "/model"),
        ({"model": "lesson@9", "inputs": [[1]]}, "", 404, "not-found", "/model"),
        ({"model": "lesson", "inputs": [[1, 2]]}, "", 422, "shape-mismatch", "/inputs/0"),
        ({"model": "lesson", "inputs": [[[1] * 5], [[1] * 4]]}, "", 422, "shape-mismatch", "/inputs/1/0"),
        ({"model": "lesson", "inputs": [[1] * 5], "attn_bias": [[[1]]] * 2}, "", 422, "shape-mismatch", "/attn_bias"),
        ({"model": "lesson", "inputs": [[3e38] * 5]}, "", 422, "numeric-overflow", "/inputs"),
        ({"model": "lesson", "inputs": [[[0] * 5], [[3e38] * 5]]}, "", 422, "numeric-overflow", "/inputs/1"),
        ({"model": "lesson", "inputs": [[1] * 5], "top_k": 1}, "?top_k=2", 422, "conflicting-fields", "/top_k"),
        ({"model": "lesson", "inputs": [[1] * 5]}, "?top_k=1&top_k=2", 422, "conflicting-fields", "/top_k"),
        ({"model": "lesson", "inputs": [[1] * 5]}, "?topk=1", 422, "unknown-field", "/topk"),
        ({"model": "lesson", "inputs": [[1] * 5], "decimals": 1}, "?decimals=2", 422, "conflicting-fields",
         "/decimals"),
        ({"model": "lesson", "inputs": [[1] * 5], "decimals": 1}, "?encoding=base64", 422, "conflicting-fields",
         "/decimals"),
        ({"model": "lesson", "inputs": [[1] * 5], "dtype": "float16"}, "?decimals=2", 422, "conflicting-fields",
         "/decimals"),
        ({"model": "lesson", "inputs": [[1] * 5], "dtype": "bfloat16"}, "", 422, "invalid-option", "/dtype"),
        ({"model": "lesson", "inputs": [[1] * 5], "projections": {k: [[1]] * 5 for k in ("query", "key", "value")}}, "",
         422, "conflicting-fields", "/projections"),
        ({"inputs": [[1]], "projections": {k: [[1]] * 5 for k in ("query", "key", "value")}}, "",
         422, "shape-mismatch", "/inputs/0"),
        ({"model": "lesson", "inputs": [[0] * 5] * 16_385}, "", 413, "too-large", "/inputs"),
        ({"model": "lesson", "inputs": [[[0] * 5]] * 257}, "", 413, "too-large", "/inputs"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_a_problem_with_its_place(
    server: Server, document: Any, query: str, status: int, code: str, pointer: str
):
    """RFC 9457, with the pointer of the field at fault."""
    reply = attend(server.url, document, query, X_Request_Id="mine")

    assert reply.status == status
    assert reply.headers["content-type"] == PROBLEM
    problem = reply.json()
    assert problem["type"] == f"/problems/{code}"
    assert problem["instance"] == reply.headers["x-request-id"] == "mine"
    assert [place["pointer"] for place in problem["errors"]] == [pointer]


def test_an_answer_that_would_be_too_large_says_how_to_make_it_smaller(server: Server):
    """413 before anything is computed."""
    x = np.zeros((4_000, 384), np.float32)
    query = "/v1/attention?model=multi-head-384x12"

    reply = call(server.url, "POST", query, npy(x), {"Content-Type": NPY})

    assert reply.status == 413
    assert all(word in reply.json()["detail"] for word in ("`return`", "`top_k`", "`average_heads`"))


def test_options_in_the_query_string_give_the_same_answer_as_in_the_body(server: Server):
    """With any body."""
    options = {"model": "multi-head-384x12", "is_causal": True, "scale": 0.1, "average_heads": True, "top_k": 2,
               "backend": "eager", "return": ["weights", "outputs"]}  # fmt: skip
    x = draw("multi-head-384x12", 4)
    query = urlencode({
        name: value if not isinstance(value, (bool, list)) else ",".join(value) if isinstance(value, list) else "true"
        for name, value in options.items()
    })  # fmt: skip

    in_body = attend(server.url, {"inputs": x.tolist()} | options).decoded()

    assert_same(attend(server.url, {"inputs": x.tolist()}, f"?{query}").decoded(), in_body)
    assert_same(attend(server.url, {"inputs": x.tolist()} | options, f"?{query}").decoded(), in_body)
    by_npy = call(server.url, "POST", f"/v1/attention?{query}", npy(x), {"Content-Type": NPY})
    assert_same(by_npy.decoded(), in_body)


# ---- bitwise


@dataclass(frozen=True)
class Case:
    """A request in any format, and how to read its answer."""

    path: str
    body: bytes
    headers: dict[str, str]
    count: int | None

    def ask(self, connection: http.client.HTTPConnection) -> Reply:
        return send(connection, "POST", self.path, self.body, self.headers)


def make_case(random: np.random.Generator) -> Case:
    model = str(random.choice(list(ENTRIES)))
    options = {
        "model": model,
        "backend": str(random.choice(["onnx", "eager"])),
        "is_causal": str(random.choice(["true", "false"])),
        "return": str(random.choice(["outputs,weights", "outputs", "outputs,weights,scores,key"])),
    }
    if random.random() < 0.3:
        options["top_k"] = "2"
    if random.random() < 0.3:
        options["scale"] = "0.3"
    count = int(random.integers(2, 5)) if random.random() < 0.4 else None
    sequences = [draw_with(random, model) for _ in range(count or 1)]
    masks = [random.random((len(x), len(x))) < 0.7 for x in sequences] if random.random() < 0.4 else None
    sent = str(random.choice([JSON, "base64", SAFETENSORS, NPY]))
    if sent == NPY and (masks or count):
        sent = SAFETENSORS
    if sent == NPY:
        body = npy(sequences[0])
    elif sent == SAFETENSORS:
        names = ["inputs"] if count is None else [f"inputs.{i}" for i in range(count)]
        tensors = dict(zip(names, sequences, strict=True))
        if masks:
            tensors |= {n.replace("inputs", "attn_mask"): m for n, m in zip(names, masks, strict=True)}
        body = safetensors_file(tensors)
    else:
        write = tensor_object if sent == "base64" else np.ndarray.tolist
        document: dict[str, Any] = {"inputs": write(sequences[0]) if count is None else [write(x) for x in sequences]}
        if masks:
            document["attn_mask"] = masks[0].tolist() if count is None else [mask.tolist() for mask in masks]
        body = json.dumps(document).encode()
    headers = {"Content-Type": JSON if sent == "base64" else sent, "Accept": str(random.choice(ANSWERS))}
    return Case(f"/v1/attention?{urlencode(options)}", body, headers, count)


def draw_with(random: np.random.Generator, model: str) -> np.ndarray:
    n = int(random.choice([1, 2, 3, 5, 8, 8, 8, 13, 40]))
    return random.standard_normal((n, ENTRIES[model].spec.embed_dim)).astype(np.float32)


def test_an_answer_is_bitwise_the_same_alone_and_in_company(server: Server):
    """200 different requests at once, each against its own solo answer: lengths, models, backends, options, formats."""
    random = np.random.default_rng(11)
    cases = [make_case(random) for _ in range(200)]
    with closing(connect(server.url)) as connection:
        alone = [case.ask(connection) for case in cases]
    assert {reply.status for reply in alone} == {200}
    connections = [connect(server.url) for _ in range(25)]
    start = threading.Barrier(len(connections))

    def ask(at: int) -> list[Reply]:
        start.wait(30)
        return [case.ask(connections[at]) for case in cases[at :: len(connections)]]

    together: list[Any] = [None] * len(cases)
    with ThreadPoolExecutor(len(connections)) as threads:
        for at, replies in enumerate(threads.map(ask, range(len(connections)))):
            together[at :: len(connections)] = replies
            connections[at].close()

    for case, one, other in zip(cases, alone, together, strict=True):
        assert other.headers["content-type"] == case.headers["Accept"]
        assert_same(other.decoded(case.count), one.decoded(case.count))
        assert other.body == one.body or case.headers["Accept"] == NPZ  # a zip file holds the time


@pytest.mark.parametrize("backend", ["onnx", "eager"])
def test_a_sequence_is_bitwise_the_same_alone_and_in_a_list(server: Server, backend: str):
    """64 sequences of few lengths, so that batches form within the one request."""
    sequences = [draw("single-head-64", n) for n in [8] * 30 + [3] * 20 + [17] * 14]
    request = {"backend": backend, "inputs": [x.tolist() for x in sequences]}

    together = attend(server.url, request).decoded(len(sequences))

    with closing(connect(server.url)) as connection:
        for i, x in enumerate(sequences):
            body = json.dumps({"backend": backend, "inputs": x.tolist()}).encode()
            alone = send(connection, "POST", "/v1/attention", body, {"Content-Type": JSON}).decoded()
            for name in ("outputs", "weights"):
                assert bits(together.tensors[name][i]) == bits(alone.tensors[name][0])


def test_a_request_that_fails_fails_no_other_in_its_batch(server: Server):
    """Overflowing neighbours of one length and model are batched with good ones, and only they are refused."""
    good = json.dumps({"inputs": draw("single-head-64", 8).tolist()}).encode()
    bad = json.dumps({"inputs": np.full((8, 64), 3e38).tolist()}).encode()
    alone = attend(server.url, good).decoded()

    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda body: attend(server.url, body), [good, bad] * 24))

    for body, reply in zip([good, bad] * 24, replies, strict=True):
        if body is bad:
            assert reply.status == 422
        else:
            assert_same(reply.decoded(), alone)


# ---- headers


def test_an_inference_answer_says_how_long_its_stages_took(server: Server):
    """Server-Timing in milliseconds: all four, and within what the caller measured."""
    body = json.dumps({"inputs": draw("single-head-64", 200).tolist()}).encode()
    started = time.perf_counter()
    reply = attend(server.url, body)
    elapsed_ms = (time.perf_counter() - started) * 1e3

    parts = dict(part.strip().split(";dur=") for part in reply.headers["server-timing"].split(","))
    stages = {name: float(value) for name, value in parts.items()}
    assert list(stages) == ["decode", "queue", "compute", "encode"]
    assert stages["decode"] > 0
    assert stages["compute"] > 0
    assert stages["encode"] > 0
    assert stages["queue"] >= 0
    assert sum(stages.values()) < elapsed_ms


def test_every_answer_has_a_request_id(server: Server):
    """Also errors, pages and metrics; a caller's own is echoed."""
    for method, path in [("GET", "/"), ("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/v1/attention"),
                         ("GET", "/v1/attention"), ("HEAD", "/docs"), ("GET", "/static/page.css")]:  # fmt: skip
        assert len(call(server.url, method, path).headers["x-request-id"]) == 32
        assert call(server.url, method, path, headers={"X-Request-Id": "it's me"}).headers["x-request-id"] == "it's me"


def test_a_deadline_that_has_passed_is_answered_504_and_nothing_is_computed(server: Server):
    """Counted from arrival: a body that takes longer to come than its deadline is given up."""
    before = metrics_of(server)
    place = connect(server.url)
    place.putrequest("POST", "/v1/attention")
    for name, value in {"Content-Type": JSON, "Content-Length": "1000", "X-Request-Timeout-Ms": "20"}.items():
        place.putheader(name, value)
    place.endheaders(b'{"inputs"')

    response = place.getresponse()

    problem = json.loads(response.read())
    assert response.status == problem["status"] == 504
    assert problem["type"] == "/problems/deadline-exceeded"
    assert response.getheader("connection") == "close"
    after = metrics_of(server)
    assert computed(after) == computed(before)


def test_work_past_its_deadline_is_not_computed(server: Server):
    """A long sequence with a millisecond: 504, soon, whatever state it was in."""
    x = np.zeros((2_000, 64), np.float32)

    started = time.perf_counter()
    reply = call(
        server.url, "POST", "/v1/attention?return=outputs", npy(x), {"Content-Type": NPY, "X-Request-Timeout-Ms": "1"}
    )

    assert reply.status == 504
    assert reply.json()["type"] == "/problems/deadline-exceeded"
    assert time.perf_counter() - started < 5


def test_a_generous_deadline_changes_nothing(server: Server):
    """The longest one is the service's own."""
    request = {"inputs": draw("single-head-64", 3).tolist()}

    assert_same(attend(server.url, request, X_Request_Timeout_Ms="999999999999").decoded(),
                attend(server.url, request).decoded())  # fmt: skip


# ---- content codings


@pytest.mark.parametrize(
    ("coding", "encode"), [("gzip", gzip.compress), ("zstd", lambda body: zstandard.ZstdCompressor().compress(body))]
)
@pytest.mark.parametrize("media_type", [JSON, SAFETENSORS, NPY])
def test_a_compressed_request_is_answered_as_the_plain_one(
    server: Server, media_type: str, coding: str, encode: Callable[[bytes], bytes]
):
    """Whatever the format."""
    x = draw("single-head-64", 9)
    body = {JSON: json.dumps({"inputs": x.tolist()}).encode(), SAFETENSORS: safetensors_file({"inputs": x}),
            NPY: npy(x)}[media_type]  # fmt: skip

    plain = call(server.url, "POST", "/v1/attention", body, {"Content-Type": media_type})
    packed = call(
        server.url, "POST", "/v1/attention", encode(body), {"Content-Type": media_type, "Content-Encoding": coding}
    )

    assert_same(packed.decoded(), plain.decoded())


@pytest.mark.parametrize(
    ("accept_encoding", "coding"),
    [("gzip", "gzip"), ("zstd", "zstd"), ("gzip, deflate, br, zstd", "zstd"), ("br", None)],
)
def test_an_answer_is_compressed_for_whoever_asks(server: Server, accept_encoding: str, coding: str | None):
    """And says so; the bytes are those of the plain answer."""
    request = {"inputs": draw("single-head-64", 20).tolist()}
    plain = attend(server.url, request)

    packed = attend(server.url, request, Accept_Encoding=accept_encoding)

    assert packed.headers.get("content-encoding") == coding
    assert packed.headers["vary"] == "accept, accept-encoding"
    unpack = {"gzip": gzip.decompress, "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body), None: bytes}
    assert unpack[coding](packed.body) == plain.body
    assert "content-encoding" not in plain.headers


def test_small_and_binary_answers_are_not_compressed(server: Server):
    """It would cost time and save nothing."""
    small = attend(server.url, {"model": "lesson", "inputs": [[1] * 5]}, Accept_Encoding="gzip")
    binary = attend(server.url, {"inputs": draw("single-head-64", 50).tolist()}, Accept_Encoding="gzip", Accept=NPZ)

    assert "content-encoding" not in small.headers
    assert "content-encoding" not in binary.headers


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported-media-type"),
        (b"{}", {"Content-Type": JSON, "Accept": "text/html"}, 406, "not-acceptable"),
        (b"{}", {"Content-Type": JSON, "Content-Encoding": "br"}, 415, "unsupported-media-type"),
        (b"{}", {"Content-Type": JSON, "Content-Encoding": "gzip"}, 400, "unparsable"),
        (gzip.compress(b"{}", mtime=0)[:-3], {"Content-Type": JSON, "Content-Encoding": "gzip"}, 400, "unparsable"),
        (b"{", {"Content-Type": JSON}, 400, "unparsable"),
        (b'{"inputs": [[NaN]]}', {"Content-Type": JSON}, 400, "unparsable"),
        (b"", {}, 400, "unparsable"),
        (gzip.compress(bytes(80 << 20), mtime=0), {"Content-Type": JSON, "Content-Encoding": "gzip"}, 413, "too-large"),
    ],
)
def test_a_body_that_cannot_be_taken_is_a_problem(
    server: Server, body: bytes, headers: dict[str, str], status: int, code: str
):
    """The statuses of the contract."""
    reply = call(server.url, "POST", "/v1/attention", body, headers)

    assert reply.status == status
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["type"] == f"/problems/{code}"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_answered_413_and_the_answer_arrives(server: Server, chunked: bool):
    """Also to a client that sends all of it before it reads: a reset connection would tell it nothing."""
    pieces = (b" " * (1 << 20) for _ in range(80))

    reply = call(server.url, "POST", "/v1/attention", pieces if chunked else b" " * (80 << 20), {"Content-Type": JSON})

    assert reply.status == 413
    assert "64 MiB" in reply.json()["detail"]
    assert reply.headers["connection"] == "close"


# ---- the service around it


def test_models_are_listed_with_their_specs(server: Server):
    """Every field of the contract; one by name, or by name and version."""
    listing = call(server.url, "GET", "/v1/models").json()

    assert listing["default"] == "single-head-64"
    assert {model["name"] for model in listing["models"]} == set(ENTRIES)
    for model in listing["models"]:
        spec = ENTRIES[model["name"]].spec
        assert (model["embed_dim"], model["num_heads"], model["num_kv_heads"], model["head_dim"]) == (
            spec.embed_dim, spec.num_heads, spec.kv_heads, spec.head_dim,
        )  # fmt: skip
        assert model["position"]["scheme"] == "none"
        assert model["versions"] == [model["version"]]
        assert model["source"]
        assert set(model["backends"]) == {"onnx", "eager", "reference"}
        assert model["dtypes"] == {"onnx": "float32", "eager": "float32", "reference": "float64"}
        assert len(model["parity"]) == 3
        assert all(0 <= difference <= 1e-5 for difference in model["parity"].values())
        for name in (model["name"], f"{model['name']}@{model['version']}"):
            assert call(server.url, "GET", f"/v1/models/{name}").json() == model


def test_an_unknown_model_is_404_with_the_nearest_name(server: Server):
    """As in an inference request."""
    reply = call(server.url, "GET", "/v1/models/leson")

    assert reply.status == 404
    assert "did you mean 'lesson'?" in reply.json()["detail"]


def test_the_service_is_live_and_ready(server: Server):
    """For Kubernetes and for people."""
    assert call(server.url, "GET", "/healthz/live").json() == {"status": "live"}
    ready = call(server.url, "GET", "/healthz/ready")
    assert ready.status == 200
    assert ready.json()["status"] == "ready"
    assert set(ready.json()["models"]) == {f"{name}@1" for name in (*ENTRIES, "minilm-l6")}
    assert ready.json()["device"] == "cpu"


def computed(metrics: Any) -> float:
    return total(metrics, "attention_batch_sequences_sum")


def test_received_requests_are_the_sum_of_outcomes_and_those_in_progress(server: Server):
    """The identity holds after a mixed bag, also in the scrape that is itself in progress."""
    before = metrics_of(server)
    attend(server.url, {"model": "lesson", "inputs": [[1] * 5]})
    attend(server.url, {"model": "none", "inputs": [[1] * 5]})
    attend(server.url, b"{")
    call(server.url, "GET", "/nothing")
    call(server.url, "PUT", "/v1/attention")
    call(server.url, "POST", "/v1/attention", b" " * (65 << 20), {"Content-Type": JSON})
    for sent in (b"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"GET /docs HTTP/1.1\r\n"):
        with raw(server) as connection:
            connection.sendall(sent)

    after: dict[Any, float] = {}

    def settled() -> bool:
        after.clear()
        after.update(metrics_of(server))
        return total(after, "attention_requests_in_progress") == 1  # the scrape

    until(settled)

    assert total(after, "attention_requests_received_total") == total(after, "attention_requests_total") + 1
    gained = {
        outcome: total(after, "attention_requests_total", outcome=outcome, route="/v1/attention")
        - total(before, "attention_requests_total", outcome=outcome, route="/v1/attention")
        for outcome in ("ok", "invalid", "rejected", "expired", "cancelled", "failed")
    }
    assert gained == {"ok": 1, "invalid": 3, "rejected": 1, "expired": 0, "cancelled": 1, "failed": 0}
    assert total(after, "attention_stage_duration_seconds_count", stage="compute") >= 1
    assert total(after, "attention_ready") == 1


def test_metric_labels_are_the_documented_ones(server: Server):
    """Routes are templates: whoever makes up paths makes no time series."""
    for path in ("/v1/models/lesson", "/v1/models/other", "/made/up/1", "/made/up/2"):
        call(server.url, "GET", path)

    routes = {dict(labels)["route"] for (name, labels) in metrics_of(server) if name == "attention_requests_total"}
    assert "/v1/models/{name}" in routes
    assert not [route for route in routes if "lesson" in route or "made" in route]


def test_the_start_page_and_the_docs_are_served(server: Server):
    """For people; test_app.py looks at what they load."""
    assert b"<html" in call(server.url, "GET", "/").body
    docs = call(server.url, "GET", "/docs")
    assert docs.status == 200
    assert b"swagger" in docs.body
    script = call(server.url, "GET", "/swagger/swagger-ui-bundle.js")
    assert script.status == 200
    assert len(script.body) > 100_000


def test_head_has_no_body(server: Server):
    """Only the real server can leave it out."""
    for path in ("/healthz/live", "/v1/models", "/openapi.json", "/", "/v1/attention", "/nothing"):
        reply = call(server.url, "HEAD", path)
        assert reply.body == b""
        assert int(reply.headers["content-length"]) > 0


# ---- connections


def test_pipelined_requests_are_answered_in_order(server: Server):
    """Sent at once on one connection; an invalid one in between does not end it."""
    bodies = [json.dumps({"inputs": draw("lesson", n).tolist()}).encode() for n in (1, 2, 3)]
    alone = [attend(server.url, body, "?model=lesson").body for body in bodies]
    with raw(server) as connection:
        connection.sendall(
            http_request(bodies[0])
            + http_request(b"{")
            + http_request(bodies[1], extra="X-Request-Id: two\r\n")
            + http_request(bodies[2])
        )
        with connection.makefile("rb") as file:
            replies = [read_reply(file) for _ in range(4)]

    assert [status for status, _, _ in replies] == [200, 400, 200, 200]
    assert [replies[i][2] for i in (0, 2, 3)] == alone
    assert replies[2][1]["x-request-id"] == "two"


def test_a_connection_serves_many_requests_also_after_errors(server: Server):
    """Keep-alive: errors that leave the stream intact do not close it."""
    connection = connect(server.url)
    send(connection, "GET", "/healthz/live")
    socket_before = connection.sock
    assert socket_before is not None

    for body, headers in [(b"{", {"Content-Type": JSON}), (b"x" * 300_000, {"Content-Type": "text/plain"}),
                          (b"x" * 300_000, {"Content-Type": JSON, "Accept": "text/html"})]:  # fmt: skip
        assert send(connection, "POST", "/v1/attention", body, headers).status in (400, 406, 415)
    assert send(connection, "PUT", "/v1/attention", b"x" * 300_000).status == 405
    reply = send(connection, "POST", "/v1/attention?model=lesson", b'{"inputs": [[1,1,1,1,1]]}', {"Content-Type": JSON})

    assert reply.status == 200
    assert connection.sock is socket_before
    connection.close()


def test_a_body_in_crumbs_is_read(server: Server):
    """One byte at a time, as chunks of every size."""
    body = b'{"inputs": [[1, 0, 0, 0, 0.5]], "model": "lesson"}'
    plain = attend(server.url, body)

    crumbs = call(
        server.url, "POST", "/v1/attention", (body[i : i + 1] for i in range(len(body))), {"Content-Type": JSON}
    )

    assert crumbs.body == plain.body


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(server: Server):
    """`Expect: 100-continue`, as curl sends it with large bodies; and not asked where the answer is clear."""
    body = b'{"inputs": [[1, 0, 0, 0, 0.5]]}'
    request = http_request(body, extra="Expect: 100-continue\r\n")
    with raw(server) as connection, connection.makefile("rb") as file:
        connection.sendall(request[: -len(body)])
        assert file.readline().startswith(b"HTTP/1.1 100")
        file.readline()
        connection.sendall(body)
        assert read_reply(file)[0] == 200
    too_long = f"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\nExpect: 100-continue\r\n\r\n"
    with raw(server) as connection, connection.makefile("rb") as file:
        connection.sendall(too_long.encode())
        assert read_reply(file)[0] == 413


def test_a_client_that_leaves_in_the_queue_is_not_computed_and_nobody_else_suffers(artifacts: Path):
    """Its work is dropped: attention_cancelled_total grows, batches do not, and the others get their answers."""
    with own_server(artifacts, ATTENTION_COMPUTE_THREADS="1") as server:
        blocker = npy(np.zeros((8_192, 64), np.float32))
        body = json.dumps({"inputs": draw("lesson", 4).tolist()}).encode()  # the first: nobody knows that it is small
        before = metrics_of(server)
        with ThreadPoolExecutor(9) as threads:
            path = "/v1/attention?return=outputs"
            blocking = threads.submit(call, server.url, "POST", path, blocker, {"Content-Type": NPY})
            until(lambda: total(metrics_of(server), "attention_busy_slots") == 1)
            staying = [threads.submit(attend, server.url, body, "?model=lesson") for _ in range(4)]
            leaving = [raw(server) for _ in range(5)]
            for connection in leaving:
                connection.sendall(http_request(body))
            until(lambda: total(metrics_of(server), "attention_queue_requests") == 9)
            for connection in leaving:
                connection.close()
            until(lambda: total(metrics_of(server), "attention_cancelled_total") == 5)
            still_blocked = total(metrics_of(server), "attention_busy_slots")

            assert blocking.result().status == 200
            bodies = [future.result().body for future in staying]
        after = metrics_of(server)
        assert bodies == [attend(server.url, body, "?model=lesson").body] * 4
        assert still_blocked == 1, "the blocking request ended too soon to prove anything"
        assert computed(after) - computed(before) == 5
        assert total(after, "attention_requests_total", outcome="cancelled", status="499") == 5
        assert total(after, "attention_inflight_bytes") == 0


def test_a_full_queue_is_refused_at_once_and_is_not_full_for_ever(artifacts: Path):
    """503 with Retry-After while two requests are in flight; then all is well again."""
    with own_server(artifacts, ATTENTION_COMPUTE_THREADS="1", ATTENTION_MAX_INFLIGHT_REQUESTS="2") as server:
        blocker = npy(np.zeros((8_192, 64), np.float32))
        small = {"model": "lesson", "inputs": [[1] * 5]}
        with ThreadPoolExecutor(3) as threads:
            path = "/v1/attention?return=outputs"
            blocking = [
                threads.submit(call, server.url, "POST", path, blocker, {"Content-Type": NPY}) for _ in range(2)
            ]
            until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 2 * 8_192)

            refused = attend(server.url, small)

            assert refused.status == 503
            assert refused.json()["type"] == "/problems/queue-full"
            assert int(refused.headers["retry-after"]) >= 1
            assert [future.result().status for future in blocking] == [200, 200]
        until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 0)
        assert attend(server.url, small).status == 200


# ---- settings


def test_keys_and_rates_hold_over_http(artifacts: Path):
    """Only a real server knows a caller's address; the guarded part is all under /v1."""
    with own_server(artifacts, ATTENTION_API_KEYS="one, two", ATTENTION_RATE_LIMIT="3/minute") as server:
        small = {"model": "lesson", "inputs": [[1] * 5]}
        assert attend(server.url, small).status == 401
        assert attend(server.url, small, X_API_Key="three").status == 403
        assert [attend(server.url, small, Authorization="Bearer one").status for _ in range(4)] == [200, 200, 200, 429]
        limited = call(server.url, "GET", "/v1/models", headers={"X-API-Key": "one"})
        assert limited.status == 429
        assert 1 <= int(limited.headers["retry-after"]) <= 60
        assert call(server.url, "GET", "/v1/models", headers={"X-API-Key": "two"}).status == 200
        assert [call(server.url, "GET", "/healthz/ready").status for _ in range(5)] == [200] * 5


def test_a_body_that_does_not_come_is_given_up(artifacts: Path):
    """408 after `body_timeout_s`, and the connection is closed."""
    with own_server(artifacts, ATTENTION_BODY_TIMEOUT_S="0.2") as server, raw(server) as connection:
        connection.sendall(http_request(b'{"inputs": [[1]]}')[:-5])
        with connection.makefile("rb") as file:
            status, headers, body = read_reply(file)
            rest = file.read()

    assert status == 408
    assert json.loads(body)["type"] == "/problems/client-timeout"
    assert headers["connection"] == "close"
    assert rest == b""


# ---- the end


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_under_load_answers_every_request(artifacts: Path, number: int, workers: str):
    """While it drains it says 503 and closes; no request that was sent is lost, and it exits with 0."""
    body = json.dumps({"inputs": draw("single-head-64", 16).tolist()}).encode()
    replies: list[tuple[float, Reply]] = []
    lost: list[tuple[float, str]] = []

    def keep_posting(url: str) -> None:
        with closing(connect(url)) as connection:
            while True:
                sent = time.monotonic()
                try:
                    reply = send(connection, "POST", "/v1/attention", body, {"Content-Type": JSON})
                except (OSError, http.client.HTTPException) as error:  # nobody listens, or the connection was lost
                    lost.append((sent, repr(error)))
                    return
                replies.append((sent, reply))
                if reply.headers.get("connection") == "close":
                    connection.close()

    with own_server(artifacts, ATTENTION_DRAIN_GRACE_S="1.5", ATTENTION_WORKERS=workers) as server:
        alone = attend(server.url, body).body
        threads = [threading.Thread(target=keep_posting, args=[server.url]) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(replies) > 50)
        signalled = time.monotonic()
        assert server.stop(number) == 0
        for thread in threads:
            thread.join(30)

    assert {reply.status for _, reply in replies} == {200, 503}
    for _, reply in replies:
        if reply.status == 200:
            assert reply.body == alone
        else:
            assert reply.json()["type"] == "/problems/draining"
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["connection"] == "close"
    assert len(lost) == len(threads)
    assert min(sent for sent, _ in lost) > signalled + 1.4, lost


def test_work_that_was_accepted_is_answered_before_the_service_stops(artifacts: Path):
    """A long computation, queued twice; a signal right after that waits for both."""
    blocker, path = npy(np.zeros((6_000, 64), np.float32)), "/v1/attention?return=outputs"
    with (
        own_server(artifacts, ATTENTION_COMPUTE_THREADS="1", ATTENTION_DRAIN_GRACE_S="0") as server,
        ThreadPoolExecutor(2) as threads,
    ):
        accepted = [threads.submit(call, server.url, "POST", path, blocker, {"Content-Type": NPY}) for _ in range(2)]
        until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 12_000)

        assert server.stop() == 0

        assert [future.result().status for future in accepted] == [200, 200]


def test_a_port_in_use_is_said_in_one_line(server: Server, artifacts: Path):
    """And the exit code is 1."""
    port = server.url.rpartition(":")[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_")}
    ended = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--port", port], cwd=ROOT, capture_output=True, text=True,
        timeout=60, env=environment | {"ATTENTION_ARTIFACTS": str(artifacts), "ATTENTION_DEVICE": "cpu"},
    )  # fmt: skip

    assert ended.returncode == 1
    assert f"attention: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    assert len(ended.stderr.strip().splitlines()) == 1
