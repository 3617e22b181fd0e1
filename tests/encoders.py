"""Small encoders with weights drawn at random, and small tokenizers."""

from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from models.encoder_spec import EncoderSpec
from models.encoder_weights import EncoderWeights, checked, shapes

SIZES: dict[str, Any] = {
    "num_layers": 3,
    "embed_dim": 24,
    "num_heads": 4,
    "head_dim": 6,
    "intermediate_dim": 40,
    "vocab_size": 50,
    "max_positions": 300,
}


def make_spec(**changes: Any) -> EncoderSpec:
    """A small encoder's."""
    return EncoderSpec(**{"name": "tiny", **SIZES, **changes})


def draw_tensors(spec: EncoderSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers that make attention far from uniform and keep hidden states of order 1."""
    random = np.random.RandomState(seed)
    found = {}
    for name, shape in shapes(spec).items():
        numbers = random.standard_normal(shape)
        if len(shape) == 2 and name.startswith("layers"):
            numbers *= 1.5 / np.sqrt(shape[0])
        elif name.endswith(("norm", "norm1", "norm2")):
            numbers = 1 + 0.3 * numbers
        found[name] = numbers.astype(np.float32)
    return found


def draw_weights(spec: EncoderSpec, seed: int = 0) -> EncoderWeights:
    """The same as weights."""
    return checked(spec, draw_tensors(spec, seed), spec.id)


def draw_ids(spec: EncoderSpec, n: int, count: int = 1) -> np.ndarray:
    """Token ids, (count, n)."""
    return np.random.RandomState(n).randint(0, spec.vocab_size, (count, n)).astype(np.int64)


VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", ".", "😀", "cafe", "猫")


def word_pieces(unknown: str = "[UNK]") -> bytes:
    """A tokenizer.json like BERT's, which pads and truncates to 16 tokens as MiniLM's does to 128."""
    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    made.enable_padding(length=16)
    made.enable_truncation(16)
    return made.to_str().encode()


def bytes_tokenizer() -> bytes:
    """A tokenizer.json like RoBERTa's without any merged token or special one: a token per byte."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made.to_str().encode()
