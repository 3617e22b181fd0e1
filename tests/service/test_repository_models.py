"""Layers of a user's own repository, each mechanism through the running service, against the float64 reference."""

import json

import numpy as np
import pytest
from serving import start_server
from wire import JSON, call

from models.reference import self_attention
from models.repository import scan

SPECS = {
    "decoder": {
        "embed_dim": 12,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 6,
        "value_dim": 5,
        "is_causal": True,
        "window": 4,
        "logit_softcap": 3.0,
        "query_key_norm": {"scope": "head"},
        "position": {"scheme": "rope", "scaling": {"type": "yarn", "factor": 4, "original_max_positions": 32}},
    },
    "encoder": {"embed_dim": 8, "num_heads": 2, "head_dim": 4, "scale": 1.0, "position": {"scheme": "relative"}},
    "biased": {"embed_dim": 8, "num_heads": 3, "head_dim": 4, "position": {"scheme": "alibi"}},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name, fields in SPECS.items():
        (folder / name).mkdir()
        (folder / name / "spec.json").write_text(json.dumps({"name": name, "seed": 5, **fields}))
    return folder


@pytest.fixture(scope="module")
def service(repository, artifacts):
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(repository))
    yield running
    assert running.stop() == 0


@pytest.mark.server
@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
@pytest.mark.parametrize("name", SPECS)
def test_a_layer_of_any_scheme_answers_as_the_mathematics_say(service, repository, name, backend):
    """At lengths within the window and beyond it, which no graph was exported at."""
    entry = next(entry for entry in scan(repository)[0] if entry.spec.name == name)
    for n in (1, 3, 31):
        inputs = np.random.default_rng(n).standard_normal((n, entry.spec.embed_dim)).astype(np.float32)
        body = {"model": name, "backend": backend, "inputs": inputs.tolist(), "return": ["outputs", "weights"]}
        want = self_attention(inputs, entry.weights, entry.spec)

        reply = call(service.url, "POST", "/v1/attention", json.dumps(body).encode(), {"Content-Type": JSON})

        assert reply.status == 200, reply.body
        answer = reply.json()
        np.testing.assert_allclose(answer["weights"], want.weights, rtol=0, atol=1e-5)
        np.testing.assert_allclose(answer["outputs"], want.outputs, rtol=0, atol=1e-5 * np.abs(want.outputs).max())
        if entry.spec.window is not None:
            far = np.subtract.outer(np.arange(n), np.arange(n)) >= entry.spec.window
            assert (np.array(answer["weights"])[:, far] == 0).all()


@pytest.mark.server
def test_a_model_says_how_it_computes(service):
    """Whoever compares numbers with another implementation must know the scheme."""
    reply = call(service.url, "GET", "/v1/models/decoder")

    described = reply.json()
    assert described["position"]["scheme"] == "rope"
    assert described["position"]["scaling"]["type"] == "yarn"
    assert (described["window"], described["logit_softcap"]) == (4, 3.0)
    assert described["query_key_norm"] == {"scope": "head", "eps": 1e-6}
    assert max(described["parity"].values()) < 1e-5
