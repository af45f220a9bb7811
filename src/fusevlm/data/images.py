"""Images as users have them, turned into plain RGB or into an error that says what is wrong.

Nothing is decoded before it is known to be a regular file of a sensible size and one of the formats
of pictures: no PostScript, PDF or SVG, no device, no pipe.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusevlm.checks import whole_text
from fusevlm.errors import ArtefactError, InputError, MissingFileError
from fusevlm.store.files import read_regular

MAX_PIXELS = 100_000_000
MAX_BYTES = 200_000_000  # of a file
MAX_ASPECT = 100  # of the longer side to the shorter: processors scale by the shorter one
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")


class TooLarge(InputError):
    """A picture of more pixels than are taken."""


@dataclass(frozen=True)
class Refused:
    """A picture that is named and must not be read, and why."""

    name: str
    reason: str


def located(root: Path, name: str, *, outside: bool = False) -> Path | Refused:
    """The picture ``name`` in the folder ``root``; one that leaves it only where that is allowed.

    Links count as what they lead to. A name that is no text cannot be kept in a table.
    """
    if whole_text(name) != name:
        plain = whole_text(name)
        return Refused(plain, f"{plain!r} is not read: its name is no text (UTF-8). Rename it.")
    try:
        path = root / name
        if outside or path.resolve().is_relative_to(root.resolve()):
            return path
        why = f"it lies outside of {root}"
    except (OSError, ValueError, RuntimeError) as error:  # NUL, loops of links
        why = str(error)
    return Refused(
        name,
        f"{name!r} is not read: {why}. Pictures lie in the folder of their table, or in "
        f"data.images; data.outside = true allows others.",
    )


def absent(image: Any) -> str:
    """Why a picture cannot be read, as far as that is known without reading it; "" if it may be."""
    if isinstance(image, Refused):
        return image.reason
    gone = isinstance(image, str | Path) and not os.path.isfile(image)  # of any name
    return f"{image} does not exist." if gone else ""


def load_image(source: Any) -> Any:
    """An RGB PIL image from a path, bytes or a PIL image.

    EXIF rotation is applied, transparency is laid on white, grey, palette and CMYK images are
    converted, and of an animation the first frame is taken.
    """
    from PIL import ImageOps

    if isinstance(source, Refused):
        raise InputError(source.reason)
    name = str(source) if isinstance(source, str | Path) else "image"
    with _reading(name):
        image = _opened(source, name)
        _refuse_size(image, name, MAX_PIXELS)
        image.seek(0)
        image.load()
        if image is source:  # the caller's own stays as it is
            image = ImageOps.exif_transpose(image)
        else:
            ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image)


def measured(data: bytes, most: int) -> tuple[int, int]:
    """Width and height of a picture that is one and has at most so many pixels; not decoded."""
    with _reading("image"):
        image = _opened(data, "image")
        _refuse_size(image, "image", most)
        return image.width, image.height


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Whatever a decoder raises as an error that says what is wrong with the picture ``name``."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bombs are measured here, odd metadata does not matter
            yield
    except FileNotFoundError as error:
        raise MissingFileError(f"{name} does not exist. Check the image folder.") from error
    except Image.DecompressionBombError as error:
        raise TooLarge(f"{name} is too large: {error}. Scale it down first.") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name} is not a picture; expected one of {', '.join(FORMATS)}."
        ) from error
    except (MemoryError, InputError):
        raise
    except ArtefactError as error:  # not a file to be read
        raise InputError(f"{error} Give the file of a picture.") from error
    except Exception as error:  # decoders raise anything on broken files
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InputError(f"{name} cannot be read as an image: {said}.") from error


def _refuse_size(image: Any, name: str, most: int) -> None:
    """Before anything is decoded."""
    if image.width * image.height > most:
        raise TooLarge(
            f"{name} has {image.width}×{image.height} pixels; at most {most / 1e6:g} million are "
            f"taken. Scale it down first."
        )
    if max(image.size) > MAX_ASPECT * max(1, min(image.size)):
        raise InputError(
            f"{name} has {image.width}×{image.height} pixels; one side may be {MAX_ASPECT} times "
            f"the other. Cut it first."
        )


def _opened(source: Any, name: str) -> Any:
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    if isinstance(source, str | Path):
        source = read_regular(source, MAX_BYTES)
    if not isinstance(source, bytes | bytearray):
        raise InputError(
            f"cannot take a {type(source).__name__} as an image; pass a path, bytes or a PIL image."
        )
    if not source:
        raise InputError(f"{name} is empty (0 bytes).")
    Image.init()
    # not every build of Pillow has all of them
    return Image.open(io.BytesIO(source), formats=[f for f in FORMATS if f in Image.OPEN])


def _rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        # 16-bit and float grey would be clipped to white by a plain conversion
        low, high = image.getextrema()
        scale = 255.0 / (high - low) if high > low else 0.0
        image = image.convert("F").point(lambda v: (v - low) * scale)
        return image.convert("L").convert("RGB")
    return image.convert("RGB")
