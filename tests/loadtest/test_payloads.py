import base64

import numpy as np
import orjson
import pytest
from safetensors.numpy import load

from loadtest.payloads import (
    CAUSAL_SHARE,
    FORMATS,
    HEADER_LENGTH,
    LENGTH_MU,
    LENGTH_SIGMA,
    LONGEST,
    MODELS,
    SHORTEST,
    Model,
    draw_lengths,
    generate,
    make_payload,
    parse_models,
    parse_tokens,
    write_safetensors,
)

LESSON = MODELS["lesson"]


def embeddings(n, width=LESSON.embed_dim):
    return np.random.default_rng(n).standard_normal((n, width), dtype=np.float32)


def sent_inputs(payload):
    if payload.format == "safetensors":
        return load(payload.body)["inputs"]
    if payload.format == "v2":
        length = int(payload.headers[HEADER_LENGTH])
        shape = orjson.loads(payload.body[:length])["inputs"][0]["shape"]
        return np.frombuffer(payload.body[length:], "<f4").reshape(shape)
    inputs = orjson.loads(payload.body)["inputs"]
    if payload.format == "base64":
        return np.frombuffer(base64.b64decode(inputs["data"]), "<f4").reshape(inputs["shape"])
    return np.array(inputs, np.float32)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_seed_makes_the_same_requests(form):
    """Two runs can only be compared if they sent the same bytes."""
    first, second = (generate(form, list(MODELS.values()), seed=7, count=20) for _ in range(2))

    assert first == second


@pytest.mark.parametrize("form", FORMATS)
def test_another_seed_makes_other_requests(form):
    """A seed that changes nothing would be a setting that lies."""
    first, second = (generate(form, [LESSON], seed=seed, count=5) for seed in (1, 2))

    assert [p.body for p in first] != [p.body for p in second]


def test_every_format_sends_the_same_tensors():
    """Formats are compared with one another, so they must carry the same work, to the last bit."""
    requests = [generate(form, list(MODELS.values()), seed=3, count=10) for form in FORMATS]

    for same in zip(*requests, strict=True):
        assert len({(p.n, p.embed_dim, p.causal, p.model, sent_inputs(p).tobytes()) for p in same}) == 1


def test_lengths_are_log_normal_between_the_bounds():
    """The lengths are the claim that the load is like real traffic."""
    lengths = draw_lengths(np.random.default_rng(0), 50_000)

    assert lengths.min() == SHORTEST
    assert lengths.max() == LONGEST
    quartiles = np.percentile(lengths, [25, 50, 75])
    expected = np.exp(LENGTH_MU + LENGTH_SIGMA * np.array([-0.6745, 0, 0.6745]))
    np.testing.assert_allclose(quartiles, expected, rtol=0.03)


def test_fixed_lengths_are_used_in_turn():
    """A fixed size is what makes a single number of a benchmark comparable."""
    payloads = generate("safetensors", [LESSON], seed=0, count=5, tokens=(16, 64))

    assert [p.n for p in payloads] == [16, 64, 16, 64, 16]


def test_about_the_promised_share_is_causal():
    """Both kinds must occur, or one of the invariants is never looked at."""
    payloads = generate("safetensors", [LESSON], seed=0, count=2_000, tokens=(1,))

    assert np.mean([p.causal for p in payloads]) == pytest.approx(CAUSAL_SHARE, abs=0.03)


def test_every_model_is_asked():
    """A mix that leaves a model out measures something else than it says."""
    payloads = generate("safetensors", list(MODELS.values()), seed=0, count=60, tokens=(1,))

    assert {p.model for p in payloads} == set(MODELS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_request_says_what_it_asks_in_its_own_format(form):
    """What the checks believe of a request must be what the service was told."""
    inputs = embeddings(4)

    payload = make_payload(form, LESSON, inputs, causal=True)

    np.testing.assert_array_equal(sent_inputs(payload), inputs)
    assert (payload.n, payload.embed_dim, payload.heads, payload.output_dim) == (4, 5, 1, 3)
    if form == "safetensors":
        assert payload.path == "/v1/attention?model=lesson&is_causal=true"
        assert payload.headers["Accept"] == payload.headers["Content-Type"] == "application/x-safetensors"
    elif form == "v2":
        assert payload.path == "/v2/models/lesson/infer"
        fields = orjson.loads(payload.body[: int(payload.headers[HEADER_LENGTH])])
        assert fields["parameters"] == {"is_causal": True}
        assert [output["name"] for output in fields["outputs"]] == ["outputs", "weights"]
    else:
        fields = orjson.loads(payload.body)
        assert payload.path == "/v1/attention"
        assert (fields["model"], fields["is_causal"]) == ("lesson", True)
        assert fields.get("encoding") == ("base64" if form == "base64" else None)


def test_json_numbers_are_the_shortest_that_read_back_the_same():
    """Written as float64, 0.1 would be 0.10000000149011612: half again the bytes for no information."""
    payload = make_payload("json", LESSON, np.full((1, 5), 0.1, np.float32))

    assert b'"inputs":[[0.1,0.1,0.1,0.1,0.1]]' in payload.body


def test_safetensors_are_what_the_reference_library_reads():
    """The writer is ours, the format is not."""
    tensors = {"inputs": embeddings(3), "attn_bias": np.zeros((3, 3), np.float32)}

    body = write_safetensors(tensors)

    read = load(body)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)


@pytest.mark.parametrize("shape", [(0, 5), (3, 4), (5,), (1, 3, 5)])
def test_inputs_that_do_not_fit_the_model_are_refused(shape):
    """A load of 422 answers is a mistake of the generator, to be found before the start."""
    with pytest.raises(ValueError, match="lesson takes"):
        make_payload("json", LESSON, np.zeros(shape, np.float32))


def test_models_are_read_by_name_or_with_their_width():
    """People load their own models too; only the width is needed to ask one."""
    models = parse_models("lesson, my-model@2:128")

    assert models == (LESSON, Model("my-model@2", embed_dim=128))


@pytest.mark.parametrize("text", ["", " , ", "unknown", "unknown:", "unknown:0", "lesson:-5", "lesson:x"])
def test_models_that_cannot_be_asked_are_refused(text):
    """A spelling mistake must stop the run, not fill it with 404."""
    with pytest.raises(ValueError, match="give"):
        parse_models(text)


@pytest.mark.parametrize(("text", "expected"), [("mixed", None), ("16", (16,)), ("16, 64", (16, 64))])
def test_lengths_are_read_as_mixed_or_as_sizes(text, expected):
    """The two ways of saying it that `--help` names."""
    assert parse_tokens(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "16,", "many"])
def test_lengths_that_are_none_are_refused(text):
    """A spelling mistake must stop the run, not change what it measures."""
    with pytest.raises(ValueError, match="give mixed"):
        parse_tokens(text)
