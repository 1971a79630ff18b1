"""One encoded image to pixels: Pillow, with what hostile and odd files do kept in bounds."""

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # [3, height, width]

# Formats that Pillow decodes by itself; EPS, for one, would start another program.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "AVIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
SIXTEEN_BITS = ("PNG", "PPM")  # formats of no more than 16 bits: also where Pillow gives them in 32
ORIENTATION = 0x0112  # the EXIF tag
SPARE = 2  # a JPEG may be decoded at a half, a quarter or an eighth while it stays this much too large


class Unreadable(ValueError):
    """Why an image cannot be used, in a few words."""


def pixels(data: bytes, size: int | None, image: Any) -> Pixels:
    """RGB bytes of an image file, upright as its EXIF says, squeezed to size × size (None: as it is).

    Alpha is dropped, 16-bit grey loses its lower byte, of an animation the first frame counts.
    """
    try:
        with image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if size is not None:  # of a large JPEG the decoder itself does most of the reduction
                opened.draft(None, (SPARE * size, SPARE * size))
            opened.load()  # turns some formats upright, and then their EXIF no longer says anything
            return _upright(_resized(_rgb(opened, image), size, image), _orientation(opened))
    except Unreadable:
        raise
    except image.UnidentifiedImageError:
        raise Unreadable("empty file" if not data else "no image of a known format") from None
    except (image.DecompressionBombError, image.DecompressionBombWarning):
        raise Unreadable(f"more than {image.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise almost anything on damaged files; nothing of ours is in here
        raise Unreadable(str(error).strip().split("\n")[0][:100] or type(error).__name__) from error


def pillow() -> Any:
    """The module PIL.Image, or the pip line."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"The images are decoded with Pillow, which cannot be imported ({error}): "
            "pip install 'evenprune[images]'"
        ) from error
    return Image


@contextmanager
def minding_bombs(image: Any) -> Iterator[None]:
    """Images far too large are refused, Pillow's remarks on untidy files are not shown. For all threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", image.DecompressionBombWarning)
        yield


def _orientation(opened: Any) -> int:
    try:
        return int(opened.getexif().get(ORIENTATION, 1))
    except (
        ValueError,
        TypeError,
        KeyError,
        SyntaxError,
        OSError,
        struct.error,
    ):  # damaged EXIF, sound pixels
        return 1


def _rgb(opened: Any, image: Any) -> Any:
    if opened.mode == "RGB":
        return opened
    if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in SIXTEEN_BITS):
        return image.fromarray((np.asarray(opened) >> 8).astype(np.uint8)).convert("RGB")
    if opened.mode in ("I", "F"):
        raise Unreadable(f"its pixels are 32-bit numbers (mode {opened.mode}); save it with 8 bits a channel")
    if opened.mode == "P" and "transparency" in opened.info:
        return opened.convert("RGBA").convert("RGB")
    return opened.convert("RGB")


def _resized(rgb: Any, size: int | None, image: Any) -> Any:
    if size is None or rgb.size == (size, size):
        return rgb
    return rgb.resize((size, size), image.Resampling.BICUBIC)


def _upright(rgb: Any, orientation: int) -> Pixels:
    """[3, height, width] as the EXIF orientation 1 … 8 wants it seen."""
    seen = np.asarray(rgb)  # [height, width, 3]
    if orientation in (5, 6, 7, 8):
        seen = seen.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        seen = seen[::-1]
    if orientation in (2, 3, 6, 7):
        seen = seen[:, ::-1]
    return np.ascontiguousarray(seen.transpose(2, 0, 1))
