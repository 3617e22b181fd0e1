"""The Open Inference Protocol over gRPC, driven by its own client, unmodified: tritonclient, sync and async."""

import asyncio
import gzip
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as rest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from serving import ROOT, Server, start_server
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.grpc.auth import BasicAuth
from tritonclient.utils import InferenceServerException
from wire import NPY, SAFETENSORS, bits, call, npy, safetensors_file

from models.repository import ModelEntry, builtin
from models.types import TENSOR_NAMES
from service.errors import NotFound
from service.problems import MOST_TEXT, RPC_CODE
from service.rpc import health_pb2 as our_health
from service.rpc import inference_pb2 as ours
from service.rpc.calls import MOST_DETAILS, address, coding_of, details_of

pytestmark = pytest.mark.server

ENTRIES = {entry.spec.name: entry for entry in builtin() if isinstance(entry, ModelEntry)}
RANDOM = np.random.default_rng(5)
ADMIN = {"x-api-key": "root"}
BOTH = ("outputs", "weights")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@contextmanager
def serving(artifacts: Path, **environment: str) -> Iterator[Server]:
    running = start_server(artifacts, ATTENTION_GRPC_PORT="0", **environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            assert running.stop() == 0


@pytest.fixture(scope="module")
def own(artifacts: Path) -> Iterator[Server]:
    """A service that others do not talk to, so that what it counts is known; it knows an admin."""
    with serving(
        artifacts,
        ATTENTION_ADMIN_KEYS="root",
        ATTENTION_DEFAULT_MODEL="lesson",
        ATTENTION_MAX_BODY_MIB="4",
        ATTENTION_COMPUTE_THREADS="1",
    ) as running:
        yield running


@pytest.fixture
def client(own: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(own.grpc) as found:
        yield found


@pytest.fixture
def channel(own: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(own.grpc) as found:
        yield found


def draw(model: str, *shape: int) -> np.ndarray:
    return RANDOM.standard_normal((*shape, ENTRIES[model].spec.embed_dim)).astype(np.float32)


def tensors(kind: Any = triton, **arrays: np.ndarray) -> list[Any]:
    names = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL"}
    found = []
    for name, array in arrays.items():
        given = kind.InferInput(name, list(array.shape), names[str(array.dtype)])
        given.set_data_from_numpy(array)
        found.append(given)
    return found


def wanted(*names: str) -> list[Any]:
    return [triton.InferRequestedOutput(name) for name in names]


def v1(server: Server, model: str, query: str = "", **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The answer of the main endpoint, in safetensors."""
    stacked = arrays["inputs"].ndim == 3
    body = safetensors_file(arrays)
    reply = call(server.url, "POST", f"/v1/attention?model={model}{query}", body, {"Content-Type": SAFETENSORS})
    found = reply.decoded(len(arrays["inputs"]) if stacked else None).tensors
    return {name: np.stack(parts) if stacked else parts[0] for name, parts in found.items()}


def samples(server: Server) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, sorted by their names."""
    text = call(server.url, "GET", "/metrics").body.decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def request(model: str = "lesson", tokens: int = 3, **fields: Any) -> Any:
    """A request as the client's library has it, with one raw input."""
    x = draw(model, tokens)
    found = theirs.ModelInferRequest(model_name=model, raw_input_contents=[x.tobytes()])
    found.inputs.add(name="inputs", datatype="FP32", shape=x.shape)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def infer(channel: grpc.Channel, message: Any, **how: Any) -> Any:
    method = channel.unary_unary(
        INFER, lambda given: given if isinstance(given, bytes) else given.SerializeToString(),
        theirs.ModelInferResponse.FromString,
    )  # fmt: skip
    return method(message, **how)


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """The only compute slot is taken for a while."""
    blocker = npy(np.zeros((14_000, 64), np.float32))
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(
            call, server.url, "POST", "/v1/attention?model=single-head-64&return=outputs", blocker,
            {"Content-Type": NPY},
        )  # fmt: skip
        until(lambda: samples(server)["attention_busy_slots",] == 1)
        yield
        assert future.result().status == 200


# ---- what there is


def test_the_server_and_its_models_are_live_and_ready(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    for name in ENTRIES:
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
        assert not client.is_model_ready(name, "2")
    assert not client.is_model_ready("none")


def test_what_is_said_is_what_rest_says(own: Server, client: Any):
    with rest.InferenceServerClient(own.url.removeprefix("http://")) as other:
        assert client.get_server_metadata(as_json=True) == other.get_server_metadata()
        for model in ENTRIES:
            found, expected = client.get_model_metadata(model, "1"), other.get_model_metadata(model, "1")
            assert (found.name, list(found.versions), found.platform) == (model, ["1"], expected["platform"])
            for kind in ("inputs", "outputs"):
                assert [
                    {"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in getattr(found, kind)
                ] == expected[kind]
            config, expected = client.get_model_config(model).config, other.get_model_config(model)
            assert (config.name, config.backend, config.max_batch_size) == (model, "onnx", 0)
            assert [
                {"name": t.name, "data_type": model_config_pb2.DataType.Name(t.data_type), "dims": list(t.dims),
                 "optional": t.optional} for t in config.input
            ] == expected["input"]  # fmt: skip
            assert [t.name for t in config.output] == [t["name"] for t in expected["output"]]


def test_our_messages_are_those_of_the_protocol():
    """Every field has the published name, number and type; and both sets of messages live in one process."""
    for our_file, their_files in (
        (ours.DESCRIPTOR, [theirs.DESCRIPTOR, *theirs.DESCRIPTOR.dependencies]),
        (our_health.DESCRIPTOR, [health_pb2.DESCRIPTOR]),
    ):
        known = {name: found for file in their_files for name, found in file.message_types_by_name.items()}
        compared = 0
        for name, message in our_file.message_types_by_name.items():
            compared += same_fields(message, known[name])
        assert compared > 1
        for name, service in our_file.services_by_name.items():
            published = next(file.services_by_name[name] for file in their_files if name in file.services_by_name)
            for method in service.methods:
                other = published.methods_by_name[method.name]
                assert method.input_type.full_name == other.input_type.full_name
                assert method.output_type.full_name == other.output_type.full_name
                assert (method.client_streaming, method.server_streaming) == (
                    other.client_streaming, other.server_streaming,
                )  # fmt: skip
    assert ours.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool


def same_fields(message: Any, other: Any) -> int:
    for field in message.fields:
        twin = other.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (twin.number, twin.type, twin.is_repeated)
        if field.enum_type is not None:
            numbers = {value.name: value.number for value in twin.enum_type.values}
            assert all(numbers[value.name] == value.number for value in field.enum_type.values)
    for name, nested in message.nested_types_by_name.items():
        same_fields(nested, other.nested_types_by_name[name])
    return len(message.fields)


# ---- infer


@pytest.mark.parametrize("model", list(ENTRIES))
@pytest.mark.parametrize("shape", [(1,), (5,), (1, 4), (3, 7)])
def test_answers_are_those_of_the_main_endpoint_to_the_bit(own: Server, client: Any, model: str, shape: Any):
    """Every tensor, in the order in which they were asked for."""
    x = draw(model, *shape)
    expected = v1(own, model, f"&return={','.join(TENSOR_NAMES)}", inputs=x)

    answer = client.infer(model, tensors(inputs=x), outputs=wanted(*reversed(TENSOR_NAMES)))

    assert [output.name for output in answer.get_response().outputs] == list(reversed(TENSOR_NAMES))
    for name in TENSOR_NAMES:
        assert bits(answer.as_numpy(name)) == bits(expected[name])


def test_masks_biases_and_parameters_mean_what_they_mean_there(own: Server, client: Any):
    model = "multi-head-384x12"
    x, mask = draw(model, 2, 4), np.tri(4, dtype=bool)[None].repeat(2, axis=0)
    mask[1, 0] = False
    bias = RANDOM.standard_normal((2, 12, 4, 4)).astype(np.float32)
    given = {"inputs": x, "attn_mask": mask, "attn_bias": bias}
    query = "&is_causal=true&scale=0.5&average_heads=true&backend=eager&return=weights,scores"
    expected = v1(own, model, query, **given)
    parameters = {"is_causal": True, "scale": 0.5, "average_heads": True, "backend": "eager"}

    answer = client.infer(
        model, tensors(**given), outputs=wanted("weights", "scores"), parameters=parameters, priority=1,
        request_id="no 7",
    )  # fmt: skip

    for name in ("weights", "scores"):
        assert bits(answer.as_numpy(name)) == bits(expected[name])
    response = answer.get_response()
    assert (response.model_name, response.model_version, response.id) == (model, "1", "no 7")
    assert response.parameters["backend"].string_param == "eager"
    assert response.parameters["fully_masked_rows"].string_param == "[[],[0]]"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_computed_in_float32(own: Server, client: Any, dtype: str):
    x = draw("lesson", 4).astype(dtype)

    answer = client.infer("lesson@1", tensors(inputs=x))

    assert bits(answer.as_numpy("weights")) == bits(v1(own, "lesson", inputs=x)["weights"])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_requests_may_be_compressed(own: Server, client: Any, coding: str):
    x = np.zeros((40, 64), np.float32)

    answer = client.infer("single-head-64", tensors(inputs=x), compression_algorithm=coding)

    expected = v1(own, "single-head-64", inputs=x)
    assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]


def test_typed_contents_are_read_and_answered_raw(own: Server, channel: grpc.Channel):
    x, mask = draw("lesson", 2), np.tri(2, dtype=bool)
    message = theirs.ModelInferRequest(model_name="lesson", model_version="1")
    message.inputs.add(name="inputs", datatype="FP32", shape=x.shape).contents.fp32_contents.extend(x.ravel())
    message.inputs.add(name="attn_mask", datatype="BOOL", shape=[2, 2]).contents.bool_contents.extend(mask.ravel())
    bias = message.inputs.add(name="attn_bias", datatype="FP64", shape=[2, 2])
    bias.contents.fp64_contents.extend([0.5, 0, 0, 0.5])

    answer = infer(channel, message)

    expected = v1(own, "lesson", inputs=x, attn_mask=mask, attn_bias=(np.eye(2) / 2).astype(np.float32))
    assert [output.name for output in answer.outputs] == list(BOTH)
    assert list(answer.raw_output_contents) == [bits(expected[name]) for name in BOTH]
    assert not any(output.HasField("contents") for output in answer.outputs)


@pytest.mark.parametrize(("datatype", "field"), [("INT64", "int64_contents"), ("INT32", "int_contents")])
def test_typed_lengths_are_read(own: Server, channel: grpc.Channel, datatype: str, field: str):
    x = draw("lesson", 2, 3)
    message = theirs.ModelInferRequest(model_name="lesson")
    message.inputs.add(name="inputs", datatype="FP32", shape=x.shape).contents.fp32_contents.extend(x.ravel())
    lengths = message.inputs.add(name="lengths", datatype=datatype, shape=[2])
    getattr(lengths.contents, field).extend([3, 1])
    message.outputs.add(name="weights")

    (raw,) = infer(channel, message).raw_output_contents

    found = np.frombuffer(raw, np.float32).reshape(2, 3, 3)
    assert bits(found[0]) == bits(v1(own, "lesson", inputs=x[0])["weights"])
    assert found[1].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_the_async_client_is_served_too(own: Server):
    """Many at the same time."""
    xs = [draw("single-head-64", n) for n in (1, 5, 16, 40)]

    async def scenario() -> list[Any]:
        async with triton_aio.InferenceServerClient(own.grpc) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("lesson")).name == "lesson"
            with pytest.raises(InferenceServerException, match="there is no model 'none'"):
                await client.infer("none", tensors(triton_aio, inputs=xs[0]))
            return await asyncio.gather(
                *(client.infer("single-head-64", tensors(triton_aio, inputs=x)) for x in xs for _ in range(8))
            )

    answers = asyncio.run(scenario())

    for x, answer in zip((x for x in xs for _ in range(8)), answers, strict=True):
        expected = v1(own, "single-head-64", inputs=x)
        assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]


def test_a_stream_answers_in_order_and_outlives_an_error(own: Server, client: Any):
    x = draw("single-head-64", 16)
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)), headers={"x-request-id": "mine"})
    for i in range(3):
        client.async_stream_infer("single-head-64", tensors(inputs=x[: 4 + i]), request_id=str(i))
    client.async_stream_infer("none", tensors(inputs=x))
    client.async_stream_infer("single-head-64", tensors(inputs=x), request_id="3")
    found = [results.get(timeout=30) for _ in range(5)]
    client.stop_stream()

    assert [result and result.get_response().id for result, _ in found] == ["0", "1", "2", None, "3"]
    assert [error and error.message() for _, error in found] == [
        None, None, None,
        "/model: there is no model 'none'; there are lesson, multi-head-384x12, single-head-64", None,
    ]  # fmt: skip
    for (result, _), n in zip((found[0], found[1], found[2], found[4]), (4, 5, 6, 16), strict=True):
        assert bits(result.as_numpy("weights")) == bits(v1(own, "single-head-64", inputs=x[:n])["weights"])
    assert samples(own)["attention_requests_total", "GRPC", "invalid", STREAM, "NOT_FOUND"] == 1


def test_the_async_client_streams_too(own: Server):
    xs = [draw("lesson", n) for n in (2, 3)]

    async def scenario() -> list[Any]:
        async def requests() -> Any:
            for x in xs:
                yield {"model_name": "lesson", "inputs": tensors(triton_aio, inputs=x)}

        async with triton_aio.InferenceServerClient(own.grpc) as client:
            return [answer async for answer in client.stream_infer(requests())]

    for x, (result, error) in zip(xs, asyncio.run(scenario()), strict=True):
        assert error is None
        assert bits(result.as_numpy("weights")) == bits(v1(own, "lesson", inputs=x)["weights"])


# ---- what is refused


def status_and_text(caught: Any) -> tuple[str, str]:
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_errors_have_the_text_of_rest(own: Server, client: Any):
    """One text for one fault, whatever the transport."""
    good = draw("lesson", 3)
    bad = good.copy()
    bad[1, 2] = np.nan
    with rest.InferenceServerClient(own.url.removeprefix("http://")) as other:
        for model, arrays, parameters, code in (
            ("none", {"inputs": good}, {}, "NOT_FOUND"),
            ("minilm-l6", {"inputs": good}, {}, "NOT_FOUND"),
            ("lesson", {"inputs": bad}, {}, "INVALID_ARGUMENT"),
            ("lesson", {"inputs": good}, {"scale": -1.0}, "INVALID_ARGUMENT"),
            ("lesson", {"inputs": good}, {"skale": 1.0}, "INVALID_ARGUMENT"),
            ("lesson", {"inputs": good[:, :4]}, {}, "INVALID_ARGUMENT"),
            ("lesson", {"inputs": good, "attn_mask": np.tri(4, dtype=bool)}, {}, "INVALID_ARGUMENT"),
            ("lesson", {"attn_mask": np.tri(4, dtype=bool)}, {}, "INVALID_ARGUMENT"),
            ("lesson", {"inputs": np.zeros((300, 1, 5), np.float32)}, {}, "RESOURCE_EXHAUSTED"),
        ):
            with pytest.raises(InferenceServerException) as expected:
                other.infer(model, tensors(rest, **arrays), parameters=dict(parameters))
            with pytest.raises(InferenceServerException) as caught:
                client.infer(model, tensors(**arrays), parameters=dict(parameters))
            assert status_and_text(caught) == (code, expected.value.message())


def broken(change: Callable[[Any], Any]) -> Any:
    message = request()
    change(message)
    return message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.raw_input_contents.append(b""), "there are 1 inputs, but 2 raw_input_contents: one for each"),
        (lambda m: m.inputs[0].contents.fp32_contents.append(1), "give contents or raw ones, not both"),
        (lambda m: m.inputs[0].shape.append(2), "raw contents: 60 bytes, but [3, 5, 2] of FP32 takes 120"),
        (lambda m: m.inputs[0].shape.append(-1), "expected a list of sizes"),
        (lambda m: setattr(m.inputs[0], "datatype", "INT8"), "expected FP32 or FP16 or FP64, got 'INT8'"),
        (lambda m: setattr(m.inputs[0], "name", "input"), "no such input; did you mean 'inputs'?"),
        (lambda m: (m.inputs.append(m.inputs[0]), m.raw_input_contents.append(b"")), "the tensor is given twice"),
        (lambda m: setattr(m.inputs[0].parameters["shared_memory_region"], "string_param", "x"),
         "inputs have no parameters"),
        (lambda m: m.outputs.add(name="weight"), "no such output"),
        (lambda m: (m.outputs.add(name="weights"), m.outputs.add(name="weights")), "'weights' is asked for twice"),
        (lambda m: setattr(m.outputs.add(name="weights").parameters["classification"], "int64_param", 3),
         "outputs have no parameters here"),
        (lambda m: m.outputs.extend([theirs.ModelInferRequest.InferRequestedOutputTensor(name="weights")] * 1025),
         "1025 of them"),
        (lambda m: m.parameters["scale"], "the parameter has no value"),
        (lambda m: setattr(m.parameters["binary_data_output"], "bool_param", True), "here all outputs are raw"),
        (lambda m: setattr(m.parameters["timeout"], "int64_param", -1), "expected a whole number from 0"),
        (lambda m: setattr(m.parameters["is_causal"], "string_param", "yes"), "is_causal"),
        (lambda m: setattr(m, "id", "i" * 1025), "expected a string of at most 1024 characters"),
        (lambda m: m.ClearField("raw_input_contents"), "there are 0 elements, but [3, 5] takes 15"),
        (lambda m: (m.ClearField("raw_input_contents"), m.inputs[0].contents.fp64_contents.append(1)),
         "expected fp32_contents for FP32, got fp64_contents"),
        (lambda m: (m.ClearField("raw_input_contents"), setattr(m.inputs[0], "datatype", "FP16")),
         "FP16 has no typed contents: send it raw"),
    ],
)  # fmt: skip
def test_what_the_protocol_does_not_allow_is_refused_by_name(channel: grpc.Channel, change: Any, text: str):
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, broken(change))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in caught.value.details()


def test_an_error_says_its_type_and_the_id_of_the_request(channel: grpc.Channel):
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, b"\xff", metadata=(("x-request-id", "mine"),))

    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT, "the message is no ModelInferRequest",
    )  # fmt: skip
    assert dict(caught.value.trailing_metadata()) == {"x-request-id": "mine", "problem": "/problems/unparsable"}


def test_an_answer_says_the_id_of_the_request_and_how_long_it_took(channel: grpc.Channel):
    method = channel.unary_unary(INFER)
    _, done = method.with_call(request().SerializeToString(), metadata=(("x-request-id", "mine"),))

    trailing = dict(done.trailing_metadata())
    assert trailing["x-request-id"] == "mine"
    assert [part.partition(";")[0] for part in trailing["server-timing"].split(", ")] == [
        "decode", "queue", "compute", "encode",
    ]  # fmt: skip


def test_messages_have_a_limit_before_and_after_decompression(own: Server, client: Any, channel: grpc.Channel):
    large = np.zeros((1, 20_000, 64), np.float32)
    before = samples(own)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("single-head-64", tensors(inputs=large))
    assert status_and_text(caught)[0] == "RESOURCE_EXHAUSTED"
    assert "larger than max" in caught.value.message()
    with pytest.raises(InferenceServerException) as caught:
        client.infer("single-head-64", tensors(inputs=large), compression_algorithm="gzip")
    assert status_and_text(caught)[0] == "RESOURCE_EXHAUSTED"
    assert "larger than 4 MiB after decompression" in caught.value.message()
    with pytest.raises(grpc.RpcError) as broken_stream:
        infer(channel, gzip.compress(request().SerializeToString())[:-9])
    assert broken_stream.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    name = ("attention_rejected_total", "body")
    until(lambda: samples(own)[name] == before[name] + 2)


def test_a_call_without_a_message_is_refused(channel: grpc.Channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(INFER)(iter([]))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "no message came that has at most 4 MiB"


@contextmanager
def unsent() -> Iterator[Iterator[bytes]]:
    """A message that does not come."""
    sent = threading.Event()
    yield iter(lambda: bytes(not sent.wait(60)), b"")
    sent.set()


def test_a_message_that_does_not_come_is_given_up(channel: grpc.Channel):
    with unsent() as message, pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(INFER)(message, metadata=(("x-request-timeout-ms", "100"),))

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details() == "the deadline passed with 0 bytes of the body received"


def test_what_is_not_served_is_unimplemented(client: Any):
    with pytest.raises(InferenceServerException) as caught:
        client.get_trace_settings()

    assert status_and_text(caught)[0] == "UNIMPLEMENTED"


def test_deadlines_are_grpcs_and_the_requests(own: Server, client: Any):
    """Both drop what is queued; gRPC's is the client's own, and it says so itself."""
    x = draw("lesson", 41)  # of no kind that is known to be small, which would wait for no slot
    before = samples(own)
    with busy(own):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("lesson", tensors(inputs=x), timeout=20_000)
        assert status_and_text(caught)[0] == "DEADLINE_EXCEEDED"
        assert re.fullmatch(r"not done in time: after \d+ ms the request was still queued", caught.value.message())
        with pytest.raises(InferenceServerException) as caught:
            client.infer("lesson", tensors(inputs=x), client_timeout=0.05)
        assert status_and_text(caught)[0] == "DEADLINE_EXCEEDED"
        until(lambda: samples(own)["attention_queue_requests",] == 0)
    key = ("attention_requests_total", "GRPC", "expired", INFER, "DEADLINE_EXCEEDED")
    until(lambda: samples(own)[key] == before.get(key, 0) + 2)


def test_what_a_client_cancels_is_not_computed(own: Server, channel: grpc.Channel):
    before = samples(own)
    with busy(own):
        unknown = request(tokens=43)  # a kind that is known to be small would wait for no slot
        future = channel.unary_unary(INFER).future(unknown.SerializeToString())
        until(lambda: samples(own)["attention_queue_requests",] == 1)
        future.cancel()
        until(lambda: samples(own)["attention_queue_requests",] == 0)
    after = samples(own)
    key = ("attention_requests_total", "GRPC", "cancelled", INFER, "CANCELLED")
    assert after[key] == before.get(key, 0) + 1
    assert after["attention_cancelled_total",] == before["attention_cancelled_total",] + 1


def test_every_request_ends_in_one_outcome(own: Server, client: Any):
    """Those of both transports sum to those received, less those in progress: the scrape itself."""
    client.infer("lesson", tensors(inputs=draw("lesson", 2)))
    found = samples(own)

    ended = sum(value for key, value in found.items() if key[0] == "attention_requests_total")
    assert ended == found["attention_requests_received_total",] - found["attention_requests_in_progress",]
    assert found["attention_requests_total", "GRPC", "ok", INFER, "OK"] > 0
    assert found["attention_request_duration_seconds_count", INFER] > 0


# ---- keys


def test_keys_and_rates_hold(artifacts: Path):
    with serving(artifacts, ATTENTION_API_KEYS="secret", ATTENTION_RATE_LIMIT="6/minute") as server:
        x = tensors(inputs=draw("lesson", 2))
        with triton.InferenceServerClient(server.grpc) as client, grpc.insecure_channel(server.grpc) as channel:
            assert client.is_server_live()
            assert client.is_server_ready()
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest()).status == 1
            with pytest.raises(InferenceServerException, match="send an API key") as caught:
                client.infer("lesson", x)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
            with pytest.raises(InferenceServerException, match="the API key is not known") as caught:
                client.infer("lesson", x, headers={"authorization": "Bearer wrong"})
            assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
            with pytest.raises(InferenceServerException, match="nobody may do this here") as caught:
                client.load_model("lesson", headers={"x-api-key": "secret"})
            assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
            with unsent() as message, pytest.raises(grpc.RpcError) as before:
                channel.stream_unary(INFER)(message)
            assert before.value.code() is grpc.StatusCode.UNAUTHENTICATED  # and the message has not come
            errors: queue.Queue[Any] = queue.Queue()
            client.start_stream(lambda result, error: errors.put(error))
            client.async_stream_infer("lesson", x)
            assert errors.get(timeout=30).status() == "StatusCode.UNAUTHENTICATED"
            client.stop_stream()
            client.register_plugin(BasicAuth("anyone", "secret"))
            for headers in ({}, {"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
                assert client.infer("lesson", x, headers=headers).as_numpy("weights").shape == (2, 2)
            client.get_server_metadata()
            client.get_server_metadata()
            with pytest.raises(InferenceServerException, match="more than 6 per 1 minute") as caught:
                client.get_server_metadata()
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
            with pytest.raises(grpc.RpcError) as limited:
                infer(channel, request(), metadata=(("x-api-key", "secret"),))
            assert 1 <= int(dict(limited.value.trailing_metadata())["retry-after"]) <= 60


# ---- the repository and the statistics


def test_models_come_and_go(client: Any):
    """Through the loader, with an admin's key."""
    with pytest.raises(InferenceServerException) as caught:
        client.unload_model("single-head-64")
    assert status_and_text(caught)[0] == "UNAUTHENTICATED"
    with pytest.raises(InferenceServerException, match="without it") as caught:
        client.unload_model("lesson", headers=ADMIN)
    assert status_and_text(caught)[0] == "FAILED_PRECONDITION"

    client.unload_model("single-head-64", headers=ADMIN, unload_dependents=True)

    assert not client.is_model_ready("single-head-64")
    index = {entry.name: (entry.version, entry.state, entry.reason) for entry in
             client.get_model_repository_index().models}  # fmt: skip
    assert index == {
        "lesson": ("1", "READY", ""), "multi-head-384x12": ("1", "READY", ""),
        "single-head-64": ("", "UNAVAILABLE", "not loaded"), "projections": ("", "READY", ""),
    }  # fmt: skip
    with pytest.raises(InferenceServerException, match="neither a config nor files can be sent") as caught:
        client.load_model("single-head-64", headers=ADMIN, config="{}")
    assert status_and_text(caught)[0] == "INVALID_ARGUMENT"

    client.load_model("single-head-64", headers=ADMIN)

    assert client.is_model_ready("single-head-64")
    with pytest.raises(InferenceServerException, match="there is no model 'none'"):
        client.load_model("none", headers=ADMIN)


def test_statistics_are_shared_with_rest(own: Server, client: Any):
    def kept() -> dict[str, int]:
        (found,) = client.get_inference_statistics("lesson").model_stats
        everything = {entry.name: entry for entry in client.get_inference_statistics().model_stats}
        assert found == everything["lesson"]
        assert everything.keys() == {*ENTRIES, "projections"}
        counts = {field.name: value.count for field, value in found.inference_stats.ListFields()}
        return {"inferences": found.inference_count, **counts}

    before = kept()
    client.infer("lesson", tensors(inputs=draw("lesson", 2, 4)))
    with rest.InferenceServerClient(own.url.removeprefix("http://")) as other:
        other.infer("lesson", tensors(rest, inputs=draw("lesson", 4)))
    with pytest.raises(InferenceServerException):
        client.infer("lesson", tensors(inputs=draw("lesson", 4)), parameters={"scale": -1.0})
    after = kept()

    assert {name: after[name] - before[name] for name in after} == {
        "inferences": 3, "success": 2, "fail": 1, "queue": 2, "compute_input": 2, "compute_infer": 2,
        "compute_output": 2, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip


# ---- health, and the end


def test_health_is_checked(channel: grpc.Channel):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "inference.GRPCInferenceService", "grpc.health.v1.Health"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="none"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watching = health.Watch(health_pb2.HealthCheckRequest(service="none"))
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()


def test_a_service_that_is_stopped_under_load_answers_what_it_accepted(artifacts: Path):
    """While it drains it is not ready and says UNAVAILABLE; whoever watches is told, and streams end."""
    x = draw("single-head-64", 16)
    answers: list[bytes] = []
    refusals: list[tuple[str, str]] = []

    def keep_asking(address: str) -> None:
        with triton.InferenceServerClient(address) as client:
            while True:
                try:
                    answers.append(bits(client.infer("single-head-64", tensors(inputs=x)).as_numpy("weights")))
                except InferenceServerException as error:
                    refusals.append((error.status(), error.message()))
                    return

    with serving(artifacts) as server, grpc.insecure_channel(server.grpc) as channel:
        alone = bits(v1(server, "single-head-64", inputs=x)["weights"])
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        sent = threading.Event()
        idle = channel.stream_stream(STREAM)(iter(lambda: sent.wait(60), False))
        threads = [threading.Thread(target=keep_asking, args=[server.grpc]) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) > 50)

        stopped = time.monotonic()
        assert server.stop() == 0

        assert time.monotonic() - stopped < 10
        for thread in threads:
            thread.join(30)
        assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for stream in (watching, idle):
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        sent.set()
    assert set(answers) == {alone}
    assert len(refusals) == len(threads)
    assert {status for status, _ in refusals} == {"StatusCode.UNAVAILABLE"}
    assert {text for _, text in refusals} == {"the service is shutting down; try another replica"}


def test_work_that_was_accepted_is_answered_before_the_service_stops(artifacts: Path):
    x = np.zeros((6_000, 64), np.float32)
    with (
        serving(artifacts, ATTENTION_COMPUTE_THREADS="1", ATTENTION_DRAIN_GRACE_S="0") as server,
        triton.InferenceServerClient(server.grpc) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        ask = [
            threads.submit(client.infer, "single-head-64", tensors(inputs=x), outputs=wanted("outputs"))
            for _ in range(2)
        ]
        until(lambda: samples(server)["attention_inflight_tokens",] == 12_000)

        assert server.stop() == 0

        assert [future.result().as_numpy("outputs").shape for future in ask] == [(6_000, 64)] * 2


def test_a_port_in_use_is_said(own: Server):
    port = own.grpc.rpartition(":")[2]
    ended = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--port", "0"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={"ATTENTION_GRPC_PORT": port, "ATTENTION_DEVICE": "cpu", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert ended.returncode == 1
    assert f"attention: cannot listen on 127.0.0.1:{port} for gRPC" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


def test_nobody_pays_for_grpc_who_does_not_serve_it():
    """It is imported where it is served only."""
    code = "import sys, service.cli, service.server; sys.exit('grpc' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


# ---- the page


PAGE = (ROOT / "docs/v2.md").read_text()


def test_the_python_example_of_the_page_works(own: Server, capsys: pytest.CaptureFixture[str]):
    *_, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {}

    exec(code.replace("127.0.0.1:8001", own.grpc), scope)

    scope["client"].close()
    numbers = capsys.readouterr().out.replace("[", "").replace("]", "").split()
    assert np.array(numbers, float).round(6).tolist() == [1] * 16


def test_the_page_names_every_method_and_every_code():
    section = PAGE[PAGE.index("## gRPC") : PAGE.index("## What is not offered")]
    methods = ours.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    methods_named, codes_named = (part.split("| --- |")[0] for part in section.split("| --- | --- |")[1:])

    first_cells = re.findall(r"^\| (.*?) \|", methods_named, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == set(methods)
    codes = set(re.findall(r"`([A-Z_]+)`", codes_named.split("\n\n")[0]))
    assert codes == set(RPC_CODE.values()) - {"CANCELLED"} | {"UNIMPLEMENTED"}


# ---- small parts


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.0.0.7:50512", ("10.0.0.7", 50512)),
        ("ipv6:%5B::1%5D:50512", ("::1", 50512)),
        ("ipv6:[fe80::1]:1", ("fe80::1", 1)),
        ("unix:/tmp/socket", None),
        ("", None),
    ],
)
def test_a_caller_has_an_address(peer: str, expected: Any):
    assert address(peer) == expected


def test_a_compressed_message_is_told_from_a_plain_one():
    assert [coding_of(b"\x1f\x8bx"), coding_of(b"\x78\x9cx"), coding_of(b"\x78\x9d"), coding_of(b"")] == [
        "gzip", "deflate", "", "",
    ]  # fmt: skip
    assert coding_of(request().SerializeToString()) == ""


def test_a_text_always_fits_the_clients_limit_of_metadata():
    assert details_of(NotFound("short")) == "short"
    assert details_of(NotFound("a" * MOST_TEXT)) == "a" * MOST_TEXT
    assert len(details_of(NotFound("𝄞" * MOST_TEXT)).encode()) * 3 <= MOST_DETAILS
