import json
import math

import pytest
from pydantic import ValidationError

from models.errors import InvalidModel
from models.spec import AttentionSpec, parse_spec

LEAST = {"name": "m", "embed_dim": 4, "head_dim": 3}


def test_three_fields_are_enough():
    """The rest has defaults: one head, values as wide as queries, version 1."""
    spec = AttentionSpec(**LEAST)

    assert (spec.id, spec.num_heads, spec.kv_heads, spec.v_dim, spec.output_dim) == ("m@1", 1, 1, 3, 3)
    assert spec.position.scheme == "none"
    assert not spec.is_causal


def test_sizes_follow_from_one_another():
    """Outputs are the values of all query heads side by side, however few the key/value heads are."""
    spec = AttentionSpec(**LEAST, num_heads=6, num_kv_heads=2, value_dim=5, version="2.1")

    assert (spec.id, spec.kv_heads, spec.v_dim, spec.output_dim) == ("m@2.1", 2, 5, 30)


def test_the_scale_is_the_models_own_or_that_of_the_paper():
    """T5 has no square root, so it must be possible to say 1."""
    assert AttentionSpec(**LEAST).effective_scale == 1 / math.sqrt(3)
    assert AttentionSpec(**LEAST, scale=1.0).effective_scale == 1.0


def test_a_spec_does_not_change():
    """Its numbers decide shapes all over the service."""
    with pytest.raises(ValidationError, match="frozen"):
        AttentionSpec(**LEAST).embed_dim = 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"embed_dim": None}, "embed_dim: Input should be a valid integer"),
        ({"embed_dim": 0}, "embed_dim: Input should be greater than or equal to 1"),
        ({"embed_dim": 65_537}, "embed_dim: Input should be less than or equal to 65536"),
        ({"head_dim": 1.5}, "head_dim: Input should be a valid integer"),
        ({"num_heads": 0}, "num_heads: Input should be greater than or equal to 1"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"num_heads": 2, "num_kv_heads": 4}, "num_heads 2 is not a multiple of num_kv_heads 4"),
        ({"scale": 0}, "scale: Input should be greater than 0"),
        ({"scale": -1}, "scale: Input should be greater than 0"),
        ({"position": {"scheme": "learned"}}, "position: Input tag 'learned' found using 'scheme' does not match"),
        (
            {"position": {"scheme": "rope", "rotary_dim": 3}},
            "position.rope.rotary_dim: Input should be a multiple of 2",
        ),
        ({"position": {"scheme": "rope", "rotary_dim": 8}}, "rotary_dim 8 is more than head_dim"),
        ({"position": {"scheme": "rope"}, "head_dim": 3}, "rotary positions turn pairs, but head_dim 3 is odd"),
        ({"position": {"scheme": "rope", "scaling": {"type": "ntk"}}}, "Input tag 'ntk'"),
        ({"position": {"scheme": "relative", "max_distance": 8}}, "max_distance must be above"),
        ({"window": 0}, "window: Input should be greater than or equal to 1"),
        ({"logit_softcap": 0}, "logit_softcap: Input should be greater than 0"),
        ({"heads": 2}, "heads: Extra inputs are not permitted"),
        ({"name": "Capital"}, "name 'Capital' must match"),
        ({"name": "../up"}, "name '../up' must match"),
        ({"name": "x" * 65}, "must match"),
        ({"name": ".hidden"}, "must match"),
        ({"name": "m\n"}, "must match"),
        ({"version": "1/2"}, "version '1/2' must match"),
        ({"version": ""}, "version '' must match"),
        ({"name": "projections"}, "the name 'projections' is reserved"),
        ({"labels": ["a"]}, "1 labels for embed_dim 4"),
        ({"seed": 1, "weights": {}}, "give seed or weights, not both"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"seed": 2**32}, "seed: Input should be less than 4294967296"),
        ({"example": {"labels": ["a", "b"], "inputs": [[1, 2, 3, 4]]}}, "2 labels for 1 rows"),
        ({"example": {"labels": ["a"], "inputs": [[1, 2, 3]]}}, "example.inputs must have embed_dim 4 numbers"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_field(change, says):
    """Whoever wrote the file learns which field is at fault, and what would be right."""
    text = json.dumps({**LEAST, **change})

    with pytest.raises(InvalidModel) as caught:
        parse_spec(text, "here/spec.json")

    assert caught.value.detail.startswith("here/spec.json: ")
    assert says in caught.value.detail


@pytest.mark.parametrize("missing", LEAST)
def test_a_missing_field_is_named(missing):
    """The three that have no default."""
    text = json.dumps({name: value for name, value in LEAST.items() if name != missing})

    with pytest.raises(InvalidModel, match=f"{missing}: Field required"):
        parse_spec(text, "spec.json")


def test_every_fault_is_told_at_once():
    """One round of corrections, not three."""
    with pytest.raises(InvalidModel) as caught:
        parse_spec('{"name": "m", "embed_dim": -1, "heads": 2}', "spec.json")

    for field in ("embed_dim", "head_dim", "heads"):
        assert f"{field}: " in caught.value.detail


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff", b'{"name": "m", "embed_dim": NaN}', b"[" * 100_000]
)
def test_what_is_not_a_json_object_is_refused(text):
    """However broken the file, the error is ours."""
    with pytest.raises(InvalidModel, match=r"^spec\.json: "):
        parse_spec(text, "spec.json")


def test_a_spec_survives_its_own_json():
    """The store's key is made of that JSON."""
    spec = AttentionSpec(**LEAST, num_heads=4, num_kv_heads=2, is_causal=True, scale=0.1, labels=("a", "b", "c", "d"))

    assert parse_spec(spec.model_dump_json(), "spec.json") == spec


def test_a_model_declares_in_what_its_products_may_be_computed():
    """Nothing but float32 unless it does."""
    fields = {"name": "m", "embed_dim": 2, "head_dim": 2}

    assert AttentionSpec(**fields).compute_dtype == "float32"
    assert AttentionSpec(**fields, compute_dtype="bfloat16").compute_dtype == "bfloat16"
    with pytest.raises(ValidationError, match="compute_dtype"):
        AttentionSpec(**fields, compute_dtype="int8")
