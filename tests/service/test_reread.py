"""A worker that serves models without their numbers has them all the same, and never those of something else."""

import dataclasses
import json

import numpy as np
import pytest

from models.repository import BUILT_IN, EncoderEntry, ModelEntry, write
from models.spec import AttentionSpec
from models.weights import AttentionWeights, seeded
from service.catalog import LoadedEncoder, LoadedModel
from service.errors import UnservableModel
from service.reread import encoder_with_numbers, layer_with_numbers
from tests.encoders import draw_weights, make_spec, word_pieces

NONE = np.empty((0, 0), np.float32)
SPEC = AttentionSpec(name="own", version="2", embed_dim=6, head_dim=3)
WEIGHTS = seeded(SPEC, 7)


def emptied(entry: ModelEntry) -> LoadedModel:
    """As it arrives in a process that computes nothing."""
    bare = dataclasses.replace(entry, weights=AttentionWeights(NONE, NONE, NONE))
    return LoadedModel(bare, {}, {}, entry.weights.digest())


def test_numbers_that_are_held_are_taken(settings):
    loaded = LoadedModel(ModelEntry(SPEC, WEIGHTS, BUILT_IN), {}, {}, "whatever")

    assert layer_with_numbers(loaded, settings) is loaded.entry


def test_numbers_are_read_where_they_are_not_held(settings, tmp_path):
    entry = ModelEntry(SPEC, WEIGHTS, "own/2")
    write(tmp_path, entry)
    here = settings.model_copy(update={"model_repository": tmp_path})

    found = layer_with_numbers(emptied(entry), here)

    assert found.spec == SPEC
    assert found.weights.digest() == WEIGHTS.digest()


def test_those_of_a_built_in_model_need_no_repository(settings):
    from models.repository import builtin

    lesson = next(entry for entry in builtin() if entry.spec.name == "lesson")

    assert layer_with_numbers(emptied(lesson), settings).weights.digest() == lesson.weights.digest()


def test_an_encoder_is_read_too(settings, tmp_path):
    spec = make_spec()
    weights = draw_weights(spec)
    write(tmp_path, EncoderEntry(spec, weights, word_pieces(), ""))
    bare = dataclasses.replace(weights, word=NONE)
    loaded = LoadedEncoder(EncoderEntry(spec, bare, b"", ""), None, {}, {}, weights.digest())

    found = encoder_with_numbers(loaded, settings.model_copy(update={"model_repository": tmp_path}))

    assert found.weights.digest() == weights.digest()


@pytest.mark.parametrize("fate", ["gone", "other numbers", "broken"])
def test_a_folder_that_is_not_what_is_served_is_refused(settings, tmp_path, fate):
    """An explanation of other numbers than those that compute would be worse than none."""
    entry = ModelEntry(SPEC, WEIGHTS, "own/2")
    if fate != "gone":
        place = write(tmp_path, ModelEntry(SPEC, seeded(SPEC, 8), "own/2"))
    if fate == "broken":
        (place / "spec.json").write_text(json.dumps({"name": "own"}))

    with pytest.raises(UnservableModel, match=r"own@2.*(changed|cannot be read)"):
        layer_with_numbers(emptied(entry), settings.model_copy(update={"model_repository": tmp_path}))
