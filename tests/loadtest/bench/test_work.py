import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from loadtest.bench import work
from loadtest.bench.formats import Message, read_safetensors, service_formats
from loadtest.bench.work import Layer, WrongAnswer
from loadtest.payloads import write_safetensors
from models.reference import attention


@pytest.mark.parametrize("heads", [1, 4])
def test_the_right_answer_is_attention(heads: int):
    """The benchmark's own float64, held against the project's, which is tested against everything else."""
    layer, n = Layer(32, heads), 7
    x = work.inputs(n, 32)
    split = [
        (x.astype(np.float64) @ w.astype(np.float64)).reshape(n, heads, -1).swapaxes(0, 1) for w in layer.weights()
    ]

    outputs, weights = work.reference(layer, x)

    trace = attention(*split)
    np.testing.assert_allclose(outputs, trace.outputs, atol=1e-12)
    np.testing.assert_allclose(weights, trace.weights if heads > 1 else trace.weights[0], atol=1e-12)
    np.testing.assert_allclose(work.reference(layer, x, rows=3)[0], outputs[:3], atol=1e-12)


def test_a_number_that_is_off_is_a_wrong_answer():
    """So are a wrong shape and what is no number."""
    layer = Layer(8)
    x = work.inputs(5, 8)
    outputs, weights = work.reference(layer, x)

    work.check(layer, x, {"outputs": outputs + 1e-6, "weights": weights})
    work.check(layer, x, {"outputs": outputs})
    for bad in (outputs + 1e-3, outputs * np.nan):
        with pytest.raises(WrongAnswer, match="outputs are"):
            work.check(layer, x, {"outputs": bad, "weights": weights})
    with pytest.raises(WrongAnswer, match="shape"):
        work.check(layer, x, {"outputs": outputs[:4]})


def test_the_cases_say_what_they_are():
    """The report's first table."""
    found = work.cases()

    assert found["S"].title == "16 tokens × 64"
    assert found["heads"].title == "128 tokens × 384, 12 heads"
    assert found["mixed"].title.startswith("8 to ")
    assert {len(x) for x in found["mixed"].inputs()} == set(found["mixed"].lengths)


def test_the_repository_is_one_that_the_service_reads(tmp_path):
    """As docs/models.md describes it."""
    layer = Layer(8, 2)

    work.write_repository(tmp_path, [layer])

    assert json.loads((tmp_path / layer.name / "spec.json").read_text())["num_heads"] == 2
    np.testing.assert_array_equal(load_file(tmp_path / layer.name / "weights.safetensors")["key"], layer.weights()[1])


def test_formats_ask_for_what_they_can_read():
    """The layer by name, options beside it, and an answer in the request's format."""
    layer, x = Layer(4), work.inputs(3, 4)

    forms = service_formats(backend="eager")

    assert {name: form.binary for name, form in forms.items()} == {"json": False, "safetensors": True, "npy": True}
    for form in forms.values():
        message = form.encode(layer, x)
        assert message.path == f"/v1/attention?model={layer.name}&backend=eager"
        assert message.headers["Accept-Encoding"] == "identity"
    np.testing.assert_array_equal(read_safetensors(forms["safetensors"].encode(layer, x).body)["inputs"], x)
    answer = Message("", {}, b'{"model":{},"outputs":[[1,2]],"weights":[[1]]}')
    assert forms["json"].decode(answer, layer, 1)["outputs"].tolist() == [[1, 2]]
    packed = Message("", {}, write_safetensors({"outputs": x}))
    np.testing.assert_array_equal(forms["safetensors"].decode(packed, layer, 3)["outputs"], x)
