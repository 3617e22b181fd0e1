"""The real MiniLM, which others trained, against the library that it was made for."""

import json
import warnings
from functools import lru_cache

import numpy as np
import onnxruntime as ort
import pytest
import torch

from models.encoder_eager import Encoder
from models.encoder_reference import encode, hidden_states
from models.encoder_spec import encoder_tensor_names
from models.encoder_weights import load
from models.export import export_encoder
from models.reference import Trace
from models.repository import write
from models.tokenizer import Tokenizer
from tests import parity_table
from tests.checkpoints import largest, library, library_run
from tests.minilm import minilm, minilm_folder

SENTENCES = (
    "Cats!",
    "The cat sat on the mat.",
    "Mia gave Tom her book because he had asked for it.",
    "Attention is all you need, they said in 2017, and most of us believed it.",
    "naïve café, ÅNGSTRÖM, 猫 and 😀",
    "the the the the the the the the the the the the the the the the",
    "If a sentence is long enough, its matrices are no longer a matter of looking: one has to ask for a row, "
    "a column, a head or a layer, and to know why.",
    "1 + 1 = 2; 2 + 2 = 4; 4 + 4 = 8.",
    "Colorless green ideas sleep furiously.",
    " ".join(["Each of these words is a token, or several, and all of them see all the others."] * 7),
)


@lru_cache
def minilm_session() -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    graph = export_encoder(minilm().spec, minilm().weights)
    return ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


@lru_cache
def minilm_module() -> Encoder:
    return Encoder(minilm().spec, minilm().weights).eval()


@pytest.fixture(scope="module")
def minilm_library():
    return library(minilm_folder(), torch.float32)


@pytest.fixture(scope="module")
def minilm_library_in_float64():
    return library(minilm_folder(), torch.float64)


def ids_of(sentence: str) -> np.ndarray:
    return Tokenizer(minilm().tokenizer, minilm().spec.vocab_size).encode(sentence).ids


@lru_cache
def traces_of(sentence: str) -> list[Trace]:
    return encode(ids_of(sentence), minilm().spec, minilm().weights)


@pytest.mark.parity
@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda s: s[:12])
def test_minilm_attends_as_in_the_library(minilm_library, minilm_library_in_float64, measured, sentence):
    """A real model, trained by others: 6 layers of 12 heads."""
    spec, ids = minilm().spec, ids_of(sentence)
    attentions, states = library_run(minilm_library, ids[None])
    exact, exact_states = library_run(minilm_library_in_float64, ids[None])
    names = [f"layers.{i}.weights" for i in range(6)]

    reference = [trace.weights for trace in traces_of(sentence)]
    with torch.inference_mode():
        tensors = minilm_module()(torch.tensor(ids[None]))
        eager = dict(zip(encoder_tensor_names(spec), (t[0].numpy() for t in tensors), strict=True))
        eager_states = minilm_module().hidden_states(torch.tensor(ids[None]))

    want = [a[0] for a in attentions]
    assert want[0].shape == (12, len(ids), len(ids))
    assert largest(reference, want) <= 1e-5
    for tensor, column, difference, bound in (
        ("weights", "reference", largest(reference, [a[0] for a in exact]), 1e-12),
        ("weights", "eager", largest([eager[name] for name in names], want), 1e-5),
        ("weights", "onnx", largest([t[0] for t in minilm_session().run(names, {"ids": ids[None]})], want), 1e-5),
        (
            "hidden states",
            "reference",
            largest(hidden_states(ids, spec, minilm().weights), [s[0] for s in exact_states]),
            1e-11,
        ),
        ("hidden states", "eager", largest([s.numpy() for s in eager_states], states), 5e-5),
    ):
        measured(parity_table.MINILM, (tensor,), column, difference)
        assert difference <= bound, f"{tensor}, {column}"


def test_minilm_gives_the_same_bits_alone_and_in_a_batch():
    ids = np.random.RandomState(0).randint(0, 30_522, (4, 19))

    together = minilm_session().run(None, {"ids": ids})

    for i in range(len(ids)):
        for tensor, alone in zip(together, minilm_session().run(None, {"ids": ids[i : i + 1]}), strict=True):
            np.testing.assert_array_equal(tensor[i], alone[0])


def test_a_head_of_minilm_looks_at_the_previous_token():
    """Known of this model, and seen only if words, types, positions, norms and heads are all in their places."""
    for sentence in SENTENCES[1:4]:
        head = traces_of(sentence)[0].weights[2]

        assert np.diagonal(head, offset=-1).min() > 0.99


def test_minilm_tokenizes_as_the_library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(minilm_folder(), local_files_only=True)

    for sentence in SENTENCES:
        assert ids_of(sentence).tolist() == theirs(sentence)["input_ids"]


def test_minilms_entry_is_read_back(tmp_path):
    place = write(tmp_path, minilm())

    assert load(minilm().spec, place / "weights.safetensors").digest() == minilm().weights.digest()
    assert json.loads((place / "encoder.json").read_text())["files"]["model.safetensors"].startswith("53aa5117")
