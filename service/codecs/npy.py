"""NumPy's own formats: one array in as .npy, the answer's tensors out as .npz. Never pickle."""

import io
import tokenize
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import orjson
from numpy.lib import format as npy_format

from models.types import Array
from service.codecs.answers import RAW, flat_tensors, metadata, raw_pieces
from service.codecs.base import LONG_ANSWER, ReadsAtOnce
from service.codecs.options import query_options
from service.codecs.requests import FLOATS, assemble, check_count, float32, reshaped
from service.errors import Unparsable, WrongType
from service.lane import ALONE, Piece, Team
from service.messages import AttentionInput, AttentionOutput, Options


class NpyCodec(ReadsAtOnce):
    """`application/x-npy`, requests only: one sequence (n, d), or equally long ones (b, n, d)."""

    media_type = "application/x-npy"

    def decode(self, body: bytes, query: str) -> AttentionInput:
        """See `Decoder.decode`."""
        array = _read(body)
        if array.ndim == 3:
            check_count(len(array), "/inputs")
            inputs = [float32(x, f"/inputs/{i}") for i, x in enumerate(array)]
            return assemble(inputs, None, None, "stack", query_options(query, Options), None)
        return assemble([float32(array, "/inputs")], None, None, "one", query_options(query, Options), None)


class NpzCodec:
    """`application/x-npz`, answers only."""

    media_type = "application/x-npz"
    long_answer = LONG_ANSWER

    def encode(self, output: AttentionOutput) -> bytes:
        """See `Encoder.encode`. The array `metadata` holds the rest of the answer, as the bytes of a JSON text."""
        return b"".join(self.pieces(output))

    def pieces(self, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
        """See `Encoder.pieces`. The archive's directory is at its end, and sizes are at its members' beginnings."""
        tensors = flat_tensors(output)
        tensors["metadata"] = np.frombuffer(orjson.dumps(metadata(output)), np.uint8)
        file = io.BytesIO()
        with ZipFile(file, "w", ZIP_STORED) as archive:  # tensors of floats hardly compress
            for name, array in tensors.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    plain = {
                        "descr": npy_format.dtype_to_descr(array.dtype),
                        "fortran_order": False,
                        "shape": array.shape,
                    }
                    npy_format.write_array_header_1_0(member, plain)
                    for piece in raw_pieces(array):
                        member.write(piece)
        archived = file.getbuffer()
        return [archived[start : start + RAW] for start in range(0, len(archived), RAW)]


def _read(body: bytes) -> Array:
    """The array of an .npy file, as a view where it is in C order."""
    file = io.BytesIO(body)
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = npy_format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} is not read here")
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise Unparsable(f"not an .npy file: {error}") from error
    if dtype.hasobject:
        raise WrongType.at("/inputs", "object arrays are pickled, and pickles are refused")
    little = dtype.newbyteorder("<")
    if little not in FLOATS.values():
        raise WrongType.at("/inputs", f"dtype {dtype}; {', '.join(FLOATS)} are read")
    if any(type(axis) is not int or axis < 0 for axis in shape):
        raise Unparsable(f"not an .npy file: shape {shape}")
    count, start = int(np.prod(shape, dtype=object)), file.tell()
    if len(body) - start != count * dtype.itemsize:
        raise Unparsable(
            f"{len(body) - start} bytes follow the header; {shape} of {dtype} takes {count * dtype.itemsize}"
        )
    flat = np.frombuffer(body, dtype, count, start)
    return reshaped(flat, shape[::-1], "/inputs").T if fortran else reshaped(flat, shape, "/inputs")
