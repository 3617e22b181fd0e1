"""Content-Type and Accept: who reads a request, who writes its answer."""

import pytest

from service.codecs import DECODERS, ENCODERS, decoder_for, encoder_for
from service.errors import NotAcceptable, UnsupportedMediaType

JSON, SAFETENSORS, NPY, NPZ = (
    "application/json", "application/x-safetensors", "application/x-npy", "application/x-npz",
)  # fmt: skip


def test_the_media_types_are_those_of_the_contract():
    """Adding one is a change of the contract."""
    assert list(DECODERS) == [JSON, SAFETENSORS, NPY]
    assert list(ENCODERS) == [JSON, SAFETENSORS, NPZ]


@pytest.mark.parametrize(
    ("content_type", "media_type"),
    [
        ("", JSON),
        ("application/json", JSON),
        ("application/json; charset=utf-8", JSON),
        ("Application/JSON;charset=UTF-8", JSON),
        (" application/x-safetensors ", SAFETENSORS),
        ("application/x-npy", NPY),
    ],
)
def test_a_content_type_finds_its_reader(content_type: str, media_type: str):
    """Parameters and case do not matter; without one it is JSON."""
    assert decoder_for(content_type, DECODERS).media_type == media_type


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-npz",
        "application/octet-stream",
        "*/*",
        "json",
        ";",
        "multipart/form-data; boundary=x",
    ],
)
def test_any_other_content_type_is_refused_naming_what_is_read(content_type: str):
    """The 415 says what to send; `;` alone is as good as none."""
    if content_type == ";":
        assert decoder_for(content_type, DECODERS).media_type == JSON
        return
    with pytest.raises(UnsupportedMediaType) as caught:
        decoder_for(content_type, DECODERS)

    assert all(media_type in caught.value.detail for media_type in DECODERS)


def test_what_curl_sends_by_default_is_refused_with_a_hint():
    """The commonest first mistake."""
    with pytest.raises(
        UnsupportedMediaType, match="curl -d sends this unless told -H 'Content-Type: application/json'"
    ):
        decoder_for("application/x-www-form-urlencoded", DECODERS)


@pytest.mark.parametrize(("request_type", "answer_type"), [(JSON, JSON), (SAFETENSORS, SAFETENSORS), (NPY, NPZ)])
@pytest.mark.parametrize("accept", ["", " ", "*/*", "*/*;q=0.1", "application/*", "text/html, */*;q=0.8"])
def test_without_a_wish_the_answer_is_of_the_requests_family(accept: str, request_type: str, answer_type: str):
    """Absent or `*/*`: the same family as the request."""
    assert encoder_for(accept, request_type).media_type == answer_type


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (SAFETENSORS, SAFETENSORS),
        (NPZ, NPZ),
        (NPZ.upper(), NPZ),
        (f"{NPZ}; v=1", NPZ),
        (f"{SAFETENSORS};q=0.5, {NPZ};q=0.8", NPZ),
        (f"{SAFETENSORS}; Q=0.5 , {NPZ} ; q=0.8", NPZ),
        (f"{NPZ};q=0.5, {JSON}", JSON),
        (f"*/*;q=0.1, {NPZ}", NPZ),
        (f"{JSON};q=0.1, */*", SAFETENSORS),
        (f"{JSON};q=0, */*;q=0.5", SAFETENSORS),
        (f"{JSON};q=0, {SAFETENSORS};q=0, application/*", NPZ),
        (f"application/*;q=0.9, {JSON};q=0.1", SAFETENSORS),
        ("text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8", JSON),
        (f"text/html, {NPZ};q=0.001", NPZ),
        (f"{NPZ};q=nan, {JSON};q=0.9", NPZ),
        (f"{NPZ};q=nonsense, {JSON};q=0.9", NPZ),
        (f"{NPZ};q=7, {SAFETENSORS};q=9", SAFETENSORS),
        (f"{NPZ};q=-1, {JSON};q=0.1", JSON),
        (f", ,{NPZ},", NPZ),
    ],
)
def test_accept_chooses_by_quality_and_then_by_specificity(accept: str, media_type: str):
    """RFC 9110 section 12.5.1, and leniency where a header is not quite one."""
    assert encoder_for(accept, JSON).media_type == media_type


@pytest.mark.parametrize(
    "accept",
    ["text/html", f"{JSON};q=0", "image/*", "application/x-npy", "*/*;q=0", "application/*;q=0.000", "nonsense"],
)
def test_an_accept_that_nobody_can_meet_is_refused_naming_what_is_written(accept: str):
    """406, rather than an answer that the caller cannot read."""
    with pytest.raises(NotAcceptable) as caught:
        encoder_for(accept, JSON)

    assert all(media_type in caught.value.detail for media_type in ENCODERS)
