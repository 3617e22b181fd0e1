"""Every backend, as it serves, on one layer of each kind of checkpoint, against the library of that checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import nn

from models.importers import parity
from models.repository import ModelEntry
from models.types import SequenceInput
from service.backends import BACKENDS
from tests import parity_table
from tests.contract.layers import attend, served
from tests.models.importers import test_distilbert as distilbert
from tests.models.importers import test_gpt2 as gpt2
from tests.models.importers import test_llama as llama
from tests.models.importers import test_multihead as multihead
from tests.models.importers import test_t5 as t5
from tests.models.importers import test_vit as vit
from tests.models.importers.checkpoints import EXACT, ROUNDED, SIZES, beside_library, save

TENSORS = ("weights", "outputs", "projected")


class Case(NamedTuple):
    """A layer of a checkpoint.

    Attributes:
        write: makes the checkpoint in a folder and returns its path.
        layer: which layer is taken.
        options: of the import.
    """

    write: Callable[[Path], Path]
    layer: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


def of_class(model: str, **config: Any) -> Callable[[Path], Path]:
    return lambda folder: save(folder, model, **config)


def as_in_test_llama(name: str) -> Callable[[Path], Path]:
    model, config, _ = llama.CASES[name]
    return of_class(model, **llama.SIZES | config)


def write_module(folder: Path) -> Path:
    return multihead.save(folder / "attention.safetensors", nn.MultiheadAttention(24, 4))


def write_gguf(folder: Path) -> Path:
    pytest.importorskip("gguf", reason="writes the file")
    from tests.models.importers.test_gguf import WIDE, convert

    return convert(save(folder / "llama", "LlamaModel", **WIDE), folder / "tiny.gguf", kind="Q8_0")


GEMMA2 = of_class("Gemma2Model", **llama.SIZES | llama.GEMMA)

# Random layers that normalise at their end make all tokens alike, and attention to them uniform: there, the first one.
CASES = {
    "bert": Case(of_class("BertModel", **SIZES), layer=0),
    "bert, decoder": Case(of_class("BertModel", **SIZES, is_decoder=True), layer=0),
    "roberta": Case(of_class("RobertaModel", **SIZES), layer=0),
    "distilbert": Case(of_class("DistilBertModel", **distilbert.SIZES), layer=0),
    "gpt2": Case(of_class("GPT2Model", **gpt2.SIZES), layer=0),
    "gpt2, inverse layer scale": Case(of_class("GPT2Model", **gpt2.SIZES, scale_attn_by_inverse_layer_idx=True)),
    "llama": Case(as_in_test_llama("llama")),
    "llama, dynamic": Case(as_in_test_llama("llama-dynamic")),
    "llama, linear": Case(as_in_test_llama("llama-linear")),
    "llama, llama3": Case(as_in_test_llama("llama-llama3")),
    "llama, longrope": Case(as_in_test_llama("llama-longrope")),
    "llama, yarn": Case(as_in_test_llama("llama-yarn")),
    "mistral, window": Case(as_in_test_llama("mistral")),
    "qwen2": Case(as_in_test_llama("qwen2")),
    "qwen2, window": Case(of_class("Qwen2Model", **llama.SIZES | llama.QWEN), layer=2),
    "qwen3": Case(as_in_test_llama("qwen3")),
    "gemma2": Case(GEMMA2, layer=1),
    "gemma2, window": Case(GEMMA2, layer=0),
    "vit": Case(of_class("ViTModel", **SIZES, **vit.PICTURE)),
    "t5": Case(of_class("T5Model", **t5.SIZES)),
    "t5-decoder": Case(of_class("T5Model", **t5.SIZES), options={"family": "t5-decoder"}),
    "multihead": Case(write_module, layer=0, options={"num_heads": 4}),
    "gguf, llama, Q8_0": Case(write_gguf),
}


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_every_backend_attends_as_the_library(name, tmp_path, artifacts, measured):
    """The last step of the way from a file to an answer: what runtimes make of an imported layer."""
    write, layer, options = CASES[name]
    found = beside_library(write(tmp_path), layer, check=False, **options)
    row = (name, found.exact.library)
    sharpest = found.exact.weights.max(axis=-1)  # (h, n)
    assert np.median(sharpest) >= 3 / sharpest.shape[-1], "attention is all but uniform, and would forgive much"

    exact, relative = parity.compare(found.exact, found.imported.spec, found.imported.weights)
    for tensor in TENSORS:
        measured(parity_table.LAYERS, row, f"{tensor}: reference", exact.differences[tensor])
    entry = ModelEntry(parity.narrowed(found.imported.spec), found.imported.weights, "test")
    served = {}
    for runtime in BACKENDS:
        served[runtime] = differences_of(runtime, entry, found.rounded, artifacts)
        for tensor in TENSORS if runtime != "reference" else ():
            measured(parity_table.LAYERS, row, f"{tensor}: {runtime}", served[runtime][tensor])

    assert relative <= EXACT
    for differences in served.values():
        assert differences["weights"] <= ROUNDED
        for tensor in ("outputs", "projected"):
            assert differences[tensor] <= ROUNDED * np.abs(getattr(found.rounded, tensor)).max()


def differences_of(runtime: str, entry: ModelEntry, run: parity.Run, artifacts: Path) -> dict[str, float]:
    """Largest differences of a backend's answers: with the weights, and without, which takes another kernel or graph.

    Another sequence shares the batch, as it may in service.
    """
    runner = served(runtime, entry, artifacts)
    inputs = run.inputs.astype(np.float32)
    assert (inputs == run.inputs).all(), "what entered the library was float32"
    worst = dict.fromkeys(TENSORS, 0.0)
    for wanted in (TENSORS, TENSORS[1:]):
        answers = attend(
            runner,
            [SequenceInput(inputs), SequenceInput(inputs[::-1].copy())],
            scale=entry.spec.effective_scale,
            wanted=wanted,
            is_causal=entry.spec.is_causal,
            window=entry.spec.window,
        )
        for tensor in wanted:
            got, want = answers[0][tensor], getattr(run, tensor)
            assert got.shape == want.shape
            worst[tensor] = float(np.maximum(worst[tensor], np.abs(got - want).max()))
    return worst


def test_the_table_in_the_docs_has_these_rows():
    """`make parity` prints it, and a case that is new belongs there too."""
    text = (Path(__file__).parents[3] / "docs" / "importing.md").read_text()
    start = text.index("| checkpoint |")
    table = text[start : text.index("\n\n", start)].splitlines()

    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == sorted(CASES)
