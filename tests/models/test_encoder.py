import json
from functools import lru_cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file

from models import export
from models.encoder_eager import Encoder
from models.encoder_reference import encode, hidden_states
from models.encoder_spec import EncoderSpec, encoder_tensor_names, parse_encoder_spec
from models.encoder_weights import checked, load, save
from models.errors import ArtifactError, InvalidInput, InvalidModel, ShapeMismatch
from models.export import OPSET, export_encoder
from models.graphs import narrow
from models.spec import AttentionSpec
from models.store import ArtifactStore
from models.types import ALL_TENSOR_NAMES
from models.weights import seeded
from tests.encoders import SIZES, draw_ids, draw_tensors, draw_weights, make_spec

KINDS = {
    "bert": make_spec(),
    "roberta": make_spec(position_offset=2, token_types=1, layer_norm_eps=1e-5),
    "no token types, tanh": make_spec(token_types=0, activation="gelu_tanh"),
    "narrow heads, relu": make_spec(num_heads=2, head_dim=5, activation="relu"),
    "one head": make_spec(num_layers=1, num_heads=1, head_dim=24),
}
LENGTHS = (1, 2, 31, 33, 257)


@lru_cache
def exported(kind: str) -> onnx.ModelProto:
    return export_encoder(KINDS[kind], draw_weights(KINDS[kind]))


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@lru_cache
def session(kind: str) -> ort.InferenceSession:
    return session_of(exported(kind))


def by_torch(kind: str, ids: np.ndarray) -> list[np.ndarray]:
    with torch.inference_mode():
        return [t.numpy() for t in Encoder(KINDS[kind], draw_weights(KINDS[kind])).eval()(torch.tensor(ids))]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2**-6), (torch.bfloat16, 2**-3)])
def test_products_may_be_of_half_precision(dtype, tolerance):
    """Of every layer, and between them; hidden states stay float32."""
    ids, spec = draw_ids(KINDS["bert"], 31), KINDS["bert"]
    module = Encoder(spec, draw_weights(spec), dtype)

    with torch.inference_mode():
        found = module.eval()(torch.tensor(ids))

    assert module.layers[0].feed_in.dtype == module.layers[0].attention.query_projection.dtype == dtype
    for name, got, want in zip(encoder_tensor_names(spec), found, wanted("bert", ids[0]), strict=True):
        assert got.dtype == torch.float32
        assert np.abs(got[0].numpy() - want).max() < tolerance * np.abs(want).max(), name


def wanted(kind: str, ids: np.ndarray) -> list[np.ndarray]:
    """What the reference says of one sequence, in the order of `encoder_tensor_names`."""
    traces = encode(ids, KINDS[kind], draw_weights(KINDS[kind]))
    return [trace.tensor(name) for trace in traces for name in ALL_TENSOR_NAMES]


def apart(found: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    assert found.shape == want.shape
    return float(np.abs(found - want).max() / np.abs(want).max())


def test_names_go_layer_by_layer():
    """Outputs of a graph and of the module are told apart by their place."""
    names = encoder_tensor_names(make_spec(num_layers=2))

    assert names[:7] == [f"layers.0.{t}" for t in ALL_TENSOR_NAMES]
    assert names[7:] == [f"layers.1.{t}" for t in ALL_TENSOR_NAMES]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_and_onnx_encode_as_the_reference(kind, n):
    """One export runs at every length and batch: it was made at 5 tokens and a batch of 3."""
    ids = draw_ids(KINDS[kind], n, 1 if n > 100 else 4)

    for found in (by_torch(kind, ids), session(kind).run(None, {"ids": ids})):
        for i, sequence in enumerate(ids):
            for name, tensor, want in zip(
                encoder_tensor_names(KINDS[kind]), found, wanted(kind, sequence), strict=True
            ):
                assert tensor.dtype == np.float32
                assert apart(tensor[i], want) <= 1e-5, name


@pytest.mark.parametrize("n", [1, 2, 31, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_gives_the_same_bits_alone_and_in_a_batch(kind, n):
    """A sentence's answer must not depend on its neighbours."""
    ids = draw_ids(KINDS[kind], n, 6)

    together = session(kind).run(None, {"ids": ids})

    for i in range(len(ids)):
        for tensor, alone in zip(together, session(kind).run(None, {"ids": ids[i : i + 1]}), strict=True):
            np.testing.assert_array_equal(tensor[i], alone[0])


@pytest.mark.parametrize("kind", KINDS)
def test_torch_gives_the_same_bits_again(kind):
    """On a CPU it is given one sequence at a time, so this is what its promise rests on."""
    ids = draw_ids(KINDS[kind], 33)

    for first, second in zip(by_torch(kind, ids), by_torch(kind, ids), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_graph_is_free_in_batch_and_tokens_and_computes_no_shape():
    """A frozen axis works until somebody sends another length; a computed shape is a chance for one."""
    model = exported("bert")

    (ids,) = model.graph.input
    assert ids.name == "ids"
    assert ids.type.tensor_type.elem_type == onnx.TensorProto.INT64
    assert [d.dim_param for d in ids.type.tensor_type.shape.dim] == ["batch", "tokens"]
    assert [v.name for v in model.graph.output] == encoder_tensor_names(KINDS["bert"])
    assert [o.version for o in model.opset_import if o.domain == ""] == [OPSET]
    constants = {t.name for t in model.graph.initializer}
    assert all(node.input[1] in constants for node in model.graph.node if node.op_type == "Reshape")


@pytest.mark.parametrize("tensor", ALL_TENSOR_NAMES)
def test_a_narrower_graph_gives_the_same_and_computes_no_later_layer(tensor):
    """Whoever looks at the first layer does not wait for the others."""
    wanted, ids = [f"layers.1.{tensor}", f"layers.0.{tensor}"], draw_ids(KINDS["bert"], 31, 3)

    small = narrow(exported("bert"), wanted)

    assert [value.name for value in small.graph.output] == wanted
    assert not any(t.name.startswith("layers.2.") for t in small.graph.initializer)
    narrowed = session_of(small)
    found = narrowed.run(None, {"ids": ids})
    for a, b in zip(found, session("bert").run(wanted, {"ids": ids}), strict=True):
        assert apart(a, b) <= 1e-5
    for i in range(len(ids)):
        for together, alone in zip(found, narrowed.run(None, {"ids": ids[i : i + 1]}), strict=True):
            np.testing.assert_array_equal(together[i], alone[0])


def test_an_output_that_does_not_exist_is_refused():
    with pytest.raises(ArtifactError, match=r"the graph has no output 'layers\.3\.weights'"):
        narrow(exported("bert"), ["layers.0.weights", "layers.3.weights"])


def test_numbers_beyond_one_graph_are_refused_before_the_export(monkeypatch):
    """protobuf would fail after minutes, with an error that names neither."""
    monkeypatch.setattr(export, "MAX_BYTES", 1_000)

    with pytest.raises(ArtifactError, match=r"tiny@1 has \d+ bytes of numbers, but a graph holds 1000 at most"):
        export_encoder(make_spec(), draw_weights(make_spec()))


def test_an_encoder_is_exported_once_beside_a_layer_of_its_name(tmp_path, monkeypatch):
    """The second start takes the graph from the folder; neither pushes the other out."""
    spec, store = make_spec(num_layers=1), ArtifactStore(tmp_path)
    weights, layer = draw_weights(spec), AttentionSpec(name="tiny", embed_dim=4, head_dim=2)
    first = store.encoder(spec, weights)
    store.layer(layer, seeded(layer, 0))
    monkeypatch.delattr(export, "export_encoder")
    monkeypatch.delattr(export, "export_layer")

    assert store.encoder(spec.model_copy(update={"description": "another"}), weights) == first
    store.layer(layer, seeded(layer, 0))
    assert sorted(p.parent.name for p in tmp_path.rglob("model.onnx")) == ["1", "encoder"]


def test_other_numbers_are_exported_anew(tmp_path, monkeypatch):
    """Above all, weights under the same name and version."""
    spec = make_spec(num_layers=1)
    seen = []
    monkeypatch.setattr(export, "export_encoder", lambda s, w: seen.append(s) or exported("one head"))
    for change, seed in (({}, 0), ({}, 0), ({}, 1), ({"activation": "relu"}, 1), ({"position_offset": 1}, 1)):
        changed = spec.model_copy(update=change)
        ArtifactStore(tmp_path).encoder(changed, draw_weights(changed, seed))

    assert len(seen) == 4


def test_the_last_hidden_states_come_from_all_of_the_last_layer():
    """No attention tensor depends on what follows the last attention, so only this sees it."""
    spec, weights = KINDS["bert"], draw_weights(KINDS["bert"])
    ids = draw_ids(spec, 7)

    ours = hidden_states(ids[0], spec, weights)
    with torch.inference_mode():
        theirs = Encoder(spec, weights).eval().hidden_states(torch.tensor(ids))

    assert len(ours) == len(theirs) == spec.num_layers + 1
    for found, want in zip(theirs, ours, strict=True):
        assert apart(found[0].numpy(), want) <= 1e-5


def test_a_layer_is_computed_when_it_is_asked_for():
    """Whoever wants the first layer alone does not pay for all."""
    spec = make_spec()
    module = Encoder(spec, draw_weights(spec)).eval()
    ran = []
    for i, layer in enumerate(module.layers):
        layer.attention.register_forward_hook(lambda *_, i=i: ran.append(i))

    next(module.intermediates(torch.zeros(1, 3, dtype=torch.int64)))

    assert ran == [0]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (np.zeros(0, np.int64), ShapeMismatch, r"ids have shape \(0,\), expected \(1 <= n <= 300,\)"),
        (np.zeros(301, np.int64), ShapeMismatch, r"ids have shape \(301,\)"),
        (np.zeros((1, 3), np.int64), ShapeMismatch, r"ids have shape \(1, 3\)"),
        (np.zeros(3), InvalidInput, "ids are float64, expected integers"),
        (np.array([0, 50, 3]), InvalidInput, r"id 50 at place 1 is not one of 0..49"),
        (np.array([0, 1, -1]), InvalidInput, r"id -1 at place 2 is not one of 0..49"),
        (np.array([2**64 - 1], np.uint64), InvalidInput, r"id 18446744073709551615 at place 0"),
    ],
)
def test_ids_that_are_not_the_encoders_are_refused(ids, error, message):
    """NumPy would take the last row for -1."""
    spec = make_spec()

    with pytest.raises(error, match=message):
        encode(ids, spec, draw_weights(spec))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_read_back_bit_by_bit(tmp_path, kind):
    spec = KINDS[kind]
    weights = draw_weights(spec)
    save(weights, tmp_path / "weights.safetensors")

    found = load(spec, tmp_path / "weights.safetensors")

    assert found.digest() == weights.digest()
    assert found.tensors().keys() == draw_tensors(spec).keys()
    for name, tensor in found.tensors().items():
        np.testing.assert_array_equal(tensor, draw_tensors(spec)[name])


def test_the_digest_sees_every_number():
    spec = make_spec(num_layers=1)
    tensors, digests = draw_tensors(spec), set()
    for name in tensors:
        changed = {**tensors, name: tensors[name] + np.float32(1)}
        digests.add(checked(spec, changed, "x").digest())

    assert len(digests) == len(tensors)


def broken(spec: EncoderSpec, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    tensors = draw_tensors(spec) | {name.replace("__", "."): t for name, t in changes.items()}
    return {name: t for name, t in tensors.items() if t is not None}


NAN = np.full(24, np.nan, np.float32)
REFUSED = [
    ({"layers__3__query": np.zeros((24, 24))}, "unknown tensor 'layers.3.query'"),
    ({"pooler": NAN}, "unknown tensor 'pooler'"),
    ({"layers__1__norm2_bias": None}, "tensor 'layers.1.norm2_bias' is missing"),
    ({"layers__2__output": None}, "tensor 'layers.2.output' is missing"),
    ({"token_type": None}, "tensor 'token_type' is missing"),
    ({"word": np.zeros((51, 24))}, r"word has shape \(51, 24\), but tiny@1 needs \(50, 24\)"),
    ({"layers__0__feed_in": np.zeros((40, 24))}, r"layers.0.feed_in has shape \(40, 24\)"),
    ({"norm": np.zeros(24, np.int64)}, "norm has dtype .*64; float16, float32 or float64 are served"),
    ({"layers__0__key_bias": NAN}, "layers.0.key_bias holds NaN or infinity"),
    ({"norm_bias": np.full(24, 1e300)}, "norm_bias holds NaN or infinity, or numbers too large for float32"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_tensors_that_do_not_fit_are_named(tmp_path, changes, message):
    """In memory and in a file."""
    spec = make_spec()
    tensors = broken(spec, **changes)
    save_file(tensors, tmp_path / "weights.safetensors")

    with pytest.raises(InvalidModel, match=message):
        checked(spec, tensors, "import")
    with pytest.raises(InvalidModel, match=f"weights.safetensors: {message}"):
        load(spec, tmp_path / "weights.safetensors")


def test_the_header_is_checked_before_numbers_are_read(tmp_path, monkeypatch):
    """A spec and a file that do not belong together are told apart without reading gigabytes."""
    save(draw_weights(make_spec(num_layers=2)), tmp_path / "weights.safetensors")
    monkeypatch.setattr("models.tensor_file._tensor", lambda *_: pytest.fail("numbers were read"))

    with pytest.raises(InvalidModel, match="is missing"):
        load(make_spec(), tmp_path / "weights.safetensors")


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_what_is_no_safetensors_file_is_said_to_be_none(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidModel, match=r"weights\.safetensors: not readable as safetensors"):
        load(make_spec(), path)


def test_bfloat16_is_refused_by_name(tmp_path):
    """NumPy has no such dtype; an import turns it into float32."""
    import safetensors.torch

    tensors = {name: torch.tensor(t) for name, t in draw_tensors(make_spec()).items()}
    tensors["norm"] = tensors["norm"].bfloat16()
    safetensors.torch.save_file(tensors, tmp_path / "weights.safetensors")

    with pytest.raises(InvalidModel, match="norm has dtype BF16"):
        load(make_spec(), tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "No Name"}, "name 'No Name' must match"),
        ({"name": "projections"}, "the name 'projections' is reserved"),
        ({"version": ""}, "version '' must match"),
        ({"num_layers": 0}, "num_layers"),
        ({"activation": "silu"}, "activation"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
        ({"token_types": -1}, "token_types"),
        ({"is_causal": True}, "is_causal"),
    ],
)
def test_specs_that_are_none_are_refused(changes, message):
    text = json.dumps({"name": "tiny", **SIZES, **changes})

    with pytest.raises(ValidationError, match=message):
        make_spec(**changes)
    with pytest.raises(InvalidModel, match=f"encoder.json: .*{message}"):
        parse_encoder_spec(text, "encoder.json")


def test_a_spec_is_read_back():
    spec = make_spec(
        files={"config.json": "0" * 64}, parity={"library": "transformers 5", "differences": {"weights": 1e-7}}
    )

    assert parse_encoder_spec(spec.model_dump_json(), "encoder.json") == spec
    assert spec.id == "tiny@1"
    assert spec.layer.output_dim == 24
