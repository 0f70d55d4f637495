"""Convert the images of scripts to images of Pillow, which every client takes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def as_image(image: Any) -> Any:
    """Convert an array to an image of Pillow.

    Args:
        image: An array or tensor, or an image of Pillow, which is returned as it is.

    Shape:
        (height, width) or (height, width, channels), with 1 to 4 channels.

    Units:
        Whole numbers from 0 to 255, and floats or booleans from 0 to 1.

    Raises:
        ValueError: The array has another shape.
        ImportError: Pillow or numpy is not installed.
    """
    if hasattr(image, "save"):
        return image
    if find_spec("PIL") is None or find_spec("numpy") is None:
        raise ImportError("images need Pillow and numpy, which are not installed: pip install pillow numpy")
    import numpy as np
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3) or 0 in pixels.shape or max(pixels.shape[2:], default=1) > 4:
        raise ValueError(f"an image has the shape (height, width, channels) with 1 to 4 channels, found {pixels.shape}")
    if pixels.dtype.kind in "fb":
        pixels = np.nan_to_num(pixels).clip(0, 1) * 255
    pixels = pixels.round().astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)
