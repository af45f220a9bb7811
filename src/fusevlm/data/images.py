"""Images as users have them, turned into plain RGB or into an error that says what is wrong."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from fusevlm.errors import InputError

MAX_PIXELS = 100_000_000


def load_image(source: Any) -> Any:
    """An RGB PIL image from a path, bytes or a PIL image.

    EXIF rotation is applied, transparency is laid on white, grey, palette and CMYK images are
    converted, and of an animation the first frame is taken.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = str(source) if isinstance(source, str | Path) else "image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = _opened(source, name)
            if image.width * image.height > MAX_PIXELS:
                raise InputError(
                    f"{name} has {image.width}×{image.height} pixels; at most "
                    f"{MAX_PIXELS // 1_000_000} million are taken. Scale it down first."
                )
            image.seek(0)
            image.load()
            upright = ImageOps.exif_transpose(image)
    except FileNotFoundError as error:
        raise InputError(f"{name} does not exist. Check the image folder.") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is too large: {error}. Scale it down first.") from error
    except UnidentifiedImageError as error:
        raise InputError(f"{name} is not an image that Pillow can read.") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} cannot be read as an image: {error}.") from error
    return _rgb(upright)


def _opened(source: Any, name: str) -> Any:
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    if isinstance(source, str | Path):
        source = Path(source).read_bytes()
    if not isinstance(source, bytes | bytearray):
        raise InputError(
            f"cannot take a {type(source).__name__} as an image; pass a path, bytes or a PIL image."
        )
    if not source:
        raise InputError(f"{name} is empty (0 bytes).")
    return Image.open(io.BytesIO(source))


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
