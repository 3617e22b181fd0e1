"""How far an imported layer is from the same one in the library that its checkpoint is made for, measured.

The library loads the checkpoint by itself, from the files, and runs it up to the layer over tokens drawn from a seed.
What enters its attention module is given to our reference in float64, and what both make of it is compared.
"""

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from models.errors import InvalidModel
from models.importers.base import Checkpoint, Family, Library, find_block
from models.reference import self_attention
from models.spec import AttentionSpec, Parity
from models.types import Array
from models.weights import AttentionWeights

TOKENS = 24
NARROW = 5
"""Windows are cut to this on both sides, so that few tokens show whether they are the same."""

LIMIT = 1e-4
"""Largest difference, relative to the largest number, of a layer that is imported: float32 makes some 1e-6."""

OLDEST = 5
"""Major version of `transformers` from which on its modules are where the families say."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the library's layer got and made of n tokens.

    Attributes:
        library: its name and version.
        inputs: (n, embed_dim).
        weights: (num_heads, n, n).
        outputs: (n, num_heads * value_dim), before the output projection.
        projected: (n, embed_dim), after it.
    """

    library: str
    inputs: Array
    weights: Array
    outputs: Array
    projected: Array


def run_library(checkpoint: Checkpoint, family: Family, layer: int, heads: int, dtype: str = "float32") -> Run | None:
    """Run the layer in its own library, or return None where that is not installed.

    Args:
        checkpoint: what was imported.
        family: its family.
        layer: number of the layer.
        heads: query heads.
        dtype: float32, or float64.

    Raises:
        InvalidModel: if the library fails on the checkpoint.
    """
    torch = importlib.import_module("torch")
    try:
        transformers = importlib.import_module("transformers") if family.library else None
    except ImportError:
        return None
    if transformers and int(transformers.__version__.split(".")[0]) < OLDEST:
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if family.library is None or transformers is None:
                return _run_torch(torch, checkpoint, family, layer, heads, dtype)
            with _quiet(transformers):
                return _run_transformers(torch, transformers, checkpoint, family.library, layer, dtype)
    except InvalidModel:
        raise
    except Exception as error:  # a library fails in ways of its own, and that is a finding about the checkpoint
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidModel(f"the library could not run the checkpoint ({message}); --no-check skips that") from error


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Without its log and its progress bars."""
    logging = transformers.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _run_transformers(
    torch: ModuleType, transformers: ModuleType, checkpoint: Checkpoint, library: Library, layer: int, dtype: str
) -> Run:
    model = _model(torch, transformers, checkpoint.path, library, layer, dtype)
    caught: dict[str, Any] = {}

    def of_attention(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Any, ...]) -> None:
        caught["inputs"] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        caught["weights"] = result[-1]

    def of_output(_: Any, args: tuple[Any, ...], result: Any) -> None:
        caught["outputs"], caught["projected"] = args[0], result

    model.get_submodule(library.attention.format(layer)).register_forward_hook(of_attention, with_kwargs=True)
    model.get_submodule(library.output.format(layer)).register_forward_hook(of_output)
    model(**_inputs(torch, model, library, dtype))
    arrays = {name: tensor[0].double().numpy() for name, tensor in caught.items()}
    return Run(f"transformers {transformers.__version__}", **arrays)


def _model(torch: ModuleType, transformers: ModuleType, path: Path, library: Library, layer: int, dtype: str) -> Any:
    """The model in evaluation mode, without the layers that come after."""
    auto = getattr(transformers, library.auto)
    eager = {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
    local = {"local_files_only": True, "trust_remote_code": False}
    if path.suffix == ".gguf":
        config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, **local)
        model = auto.from_config(_cut(config, layer), **eager)
        # What `from_pretrained` calls too, after it has asked for a package that is not needed for it.
        reader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
        with redirect_stderr(StringIO()):  # a progress bar
            read = reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
        model.load_state_dict(read["tensors"], strict=False)
        return model.eval()
    with _folder(path) as folder:
        config = transformers.AutoConfig.from_pretrained(folder, **local)
        return auto.from_pretrained(folder, config=_cut(config, layer), use_safetensors=True, **local, **eager).eval()


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder in which the library finds the checkpoint; of single files it loads `model.safetensors` only."""
    if path.is_dir():
        yield path
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.safetensors").symlink_to(path.resolve())
        (folder / "config.json").symlink_to((path.parent / "config.json").resolve())
        yield folder


def _cut(config: Any, layer: int) -> Any:
    """The configuration without the layers that come after, and with a narrow window."""
    for name in ("num_hidden_layers", "num_decoder_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, layer + 1)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[: layer + 1]
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window = min(config.sliding_window, NARROW)
    return config


def _inputs(torch: ModuleType, model: Any, library: Library, dtype: str) -> dict[str, Any]:
    """Ids of tokens, or a picture, drawn from a seed."""
    config, draw = model.config, np.random.RandomState(0)
    if model.main_input_name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        picture = draw.standard_normal((1, config.num_channels, height, width))
        return {"pixel_values": torch.tensor(picture, dtype=getattr(torch, dtype))}
    tokens = TOKENS
    if getattr(config, "rope_parameters", None) is None and getattr(config, "max_position_embeddings", None):
        tokens = max(1, min(TOKENS, config.max_position_embeddings // 2))  # some leave out the first positions
    ids = torch.tensor(draw.randint(0, config.vocab_size, (1, tokens)))
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if library.is_encoder_decoder else {})


def _run_torch(torch: ModuleType, checkpoint: Checkpoint, family: Family, layer: int, heads: int, dtype: str) -> Run:
    """`torch.nn.MultiheadAttention` with the checkpoint's tensors."""
    block = find_block(checkpoint, family.blocks, layer)
    state = {name: torch.from_numpy(checkpoint.read(block.prefix + name)) for name in block.left}
    if "in_proj_weight" not in state:
        state["in_proj_weight"] = torch.cat([state.pop(f"{name}_proj_weight") for name in ("q", "k", "v")])
    width = state["in_proj_weight"].shape[1]
    module = torch.nn.MultiheadAttention(width, heads, bias="in_proj_bias" in state, batch_first=True).eval()
    module.load_state_dict(state)
    module.to(getattr(torch, dtype))
    x = torch.tensor(np.random.RandomState(0).standard_normal((1, TOKENS, width)), dtype=getattr(torch, dtype))
    projected, weights = module(x, x, x, average_attn_weights=False)
    # The module returns no outputs but projected ones; with the projection left out, it returns those.
    module.out_proj.weight.copy_(torch.eye(width))
    if module.out_proj.bias is not None:
        module.out_proj.bias.zero_()
    outputs, _ = module(x, x, x, average_attn_weights=False)
    arrays = {"inputs": x, "weights": weights, "outputs": outputs, "projected": projected}
    return Run(f"torch {torch.__version__}", **{name: tensor[0].double().numpy() for name, tensor in arrays.items()})


def narrowed(spec: AttentionSpec) -> AttentionSpec:
    """The spec with its window as narrow as the library's is in a run."""
    return spec if spec.window is None else spec.model_copy(update={"window": min(spec.window, NARROW)})


def compare(run: Run, spec: AttentionSpec, weights: AttentionWeights) -> tuple[Parity, float]:
    """Hold our reference against a run of the library.

    Returns:
        The largest absolute differences by tensor, and the largest of all relative to its tensor's largest number.

    Raises:
        InvalidModel: if a tensor has another shape, or a difference is not finite.
    """
    trace = self_attention(run.inputs, weights, narrowed(spec))
    differences, relative = {}, 0.0
    for name in ("weights", "outputs", "projected"):
        found, want = trace.tensor(name), getattr(run, name)
        if found.shape != want.shape:
            raise InvalidModel(f"{name} has shape {found.shape} here, and {want.shape} in {run.library}")
        differences[name] = float(np.abs(found - want).max())
        if not np.isfinite(differences[name]):
            raise InvalidModel(f"{name} are not finite, here or in {run.library}")
        largest = float(np.abs(want).max())
        relative = max(relative, differences[name] / largest if largest else differences[name])
    return Parity(library=run.library, differences=differences), relative


def measure(
    checkpoint: Checkpoint, family: Family, layer: int, spec: AttentionSpec, weights: AttentionWeights
) -> Parity | None:
    """Compare a layer with its library's; None where that is not installed.

    Raises:
        InvalidModel: if they differ by more than `LIMIT`, or the library fails on the checkpoint.
    """
    run = run_library(checkpoint, family, layer, spec.num_heads)
    if run is None:
        return None
    parity, relative = compare(run, spec, weights)
    if relative > LIMIT:
        worst = ", ".join(f"{name} {value:.1e}" for name, value in parity.differences.items())
        raise InvalidModel(
            f"the layer differs from {parity.library} by {relative:.1e} of its largest number, more than {LIMIT:.0e} "
            f"(largest differences: {worst}), so it is not imported"
        )
    return parity
