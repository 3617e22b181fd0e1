"""Exported graphs on disk: found, verified, and made again when stale."""

import hashlib
import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import ModelProto

from models import export
from models.encoder_spec import EncoderSpec
from models.encoder_weights import EncoderWeights
from models.spec import AttentionSpec
from models.weights import AttentionWeights

log = logging.getLogger(__name__)


NOT_EXPORTED = {
    "description", "labels", "source", "license", "provenance", "example", "weights", "files", "parity",
    "compute_dtype",
}  # fmt: skip
"""Fields of a spec that its graph does not depend on; the numbers have a digest of their own."""


def artifact_key(spec: AttentionSpec | EncoderSpec, weights: AttentionWeights | EncoderWeights) -> str:
    """SHA-256 over all that an exported graph depends on: spec, numbers, exporter."""
    described = spec.model_dump_json(exclude=NOT_EXPORTED)
    return hashlib.sha256(f"{described}\n{weights.digest()}\n{export.EXPORTER}".encode()).hexdigest()


class ArtifactStore:
    """A folder `NAME/VERSION/{model.onnx,manifest.json}` that may be deleted at any time.

    A graph is used only if its manifest names the key asked for and the SHA-256 of the file. A folder that cannot be
    written costs the time of an export at each start and a warning, nothing else.
    """

    def __init__(self, folder: Path) -> None:
        """Keep graphs under `folder`, made on first use."""
        self.folder = folder

    def layer(self, spec: AttentionSpec, weights: AttentionWeights) -> ModelProto:
        """The full graph of a layer, exported now if it is not there or stale.

        Raises:
            ArtifactError: if the export fails.
        """
        place = self.folder / spec.name / spec.version
        return self._get(place, artifact_key(spec, weights), lambda: export.export_layer(spec, weights))

    def encoder(self, spec: EncoderSpec, weights: EncoderWeights) -> ModelProto:
        """The full graph of an encoder, kept beside that of a layer of the same name; errors as in `layer`."""
        place = self.folder / spec.name / spec.version / "encoder"
        return self._get(place, artifact_key(spec, weights), lambda: export.export_encoder(spec, weights))

    def projections(self) -> ModelProto:
        """The full graph of `models.eager.Projections`; errors as in `layer`."""
        key = hashlib.sha256(f"projections\n{export.EXPORTER}".encode()).hexdigest()
        return self._get(self.folder / "projections", key, export.export_projections)

    def _get(self, place: Path, key: str, make: Callable[[], ModelProto]) -> ModelProto:
        if (found := self._read(place, key)) is not None:
            return found
        log.info("exporting %s", place.relative_to(self.folder))
        model = make()
        try:
            self._write(place, key, model)
        except OSError as error:
            log.warning("exported graph not kept, %s cannot be written: %s", place, error)
        return model

    def _read(self, place: Path, key: str) -> ModelProto | None:
        try:
            manifest = json.loads((place / "manifest.json").read_text())
            blob = (place / "model.onnx").read_bytes()
            if manifest["key"] != key:
                log.info("%s is stale", place)
                return None
            if manifest["sha256"] != hashlib.sha256(blob).hexdigest():
                log.warning("%s is not the file its manifest describes; exporting it again", place / "model.onnx")
                return None
            return onnx.load_model_from_string(blob)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, a new export mends it
            log.warning("%s cannot be used (%s); exporting it again", place, error)
            return None

    def _write(self, place: Path, key: str, model: ModelProto) -> None:
        blob = model.SerializeToString()
        manifest = {"key": key, "sha256": hashlib.sha256(blob).hexdigest(), "exporter": export.EXPORTER}
        place.mkdir(parents=True, exist_ok=True)
        # The manifest comes last: a reader between the two sees a mismatch and exports for itself. Plain files, unlike
        # those of `tempfile`, may be read by other users, such as the one a container runs as.
        for name, content in (("model.onnx", blob), ("manifest.json", json.dumps(manifest, indent=1).encode())):
            temporary = place / f".{name}.{uuid.uuid4().hex}"
            try:
                temporary.write_bytes(content)
                temporary.replace(place / name)
            finally:
                temporary.unlink(missing_ok=True)
