"""Images as files of PNG."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

#: PNG's kinds of pixels, by the number of channels
KINDS = {1: 0, 2: 4, 3: 2, 4: 6}


def write_image(path: Path, image: Any) -> None:
    """Writes an image: one that can save itself, or an array.

    Shape: (height, width) or (height, width, channels), with 1 to 4 channels.
    Units: whole numbers from 0 to 255, or others from 0 to 1.
    Raises: ValueError for an array of another shape.
    """
    import numpy as np

    if hasattr(image, "save"):  # of Pillow, which need not be installed for it
        image.save(path)
        return
    pixels = np.asarray(image)
    if pixels.dtype.kind == "f":
        pixels = np.nan_to_num(pixels).clip(0, 1) * 255
    elif pixels.dtype.kind == "b":
        pixels = pixels * 255
    pixels = pixels.round().astype(np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in KINDS or 0 in pixels.shape:
        raise ValueError(f"an image has the shape (height, width, channels) with 1 to 4 channels, found {pixels.shape}")
    height, width, channels = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, KINDS[channels], 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes())) + _chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
