"""Pictures nobody should send: bombs, halves, other formats, things that are no files.

``hostile(home)`` writes them and tells the name each has in a table; none of them is a picture, or
one that is taken. ``odd(home)`` writes pictures that are strange and fine.
"""

import io
import os
import socket
import struct
import zlib

import numpy as np
from PIL import Image, PngImagePlugin


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def noise(size=(48, 40), mode="RGB"):
    rng = np.random.default_rng(sum(size))
    return Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).convert(mode)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, body=b"", *, depth=8, colour=2, before=()):
    """A PNG that says it has this size; its pixels are ``body``, packed as it comes."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", head), *(chunk(*one) for one in before), chunk(b"IDAT", body)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def blank(width, height, mode="1"):
    return encoded(Image.new(mode, (width, height)), "PNG")


def tiff(*tags):
    """A TIFF of one directory with these (tag, type, count, value)."""
    body = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + body + b"\0\0\0\0"


def jpeg_of_size(width, height):
    """A JPEG whose frame header says so."""
    whole = bytearray(encoded(noise(), "JPEG"))
    at = whole.index(b"\xff\xc0")
    whole[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(whole)


def cut(payload, share=0.5):
    return payload[: int(len(payload) * share)]


def spoilt(payload, at=0.5, size=30):
    start = int(len(payload) * at)
    return (
        payload[:start]
        + bytes(255 - b for b in payload[start : start + size])
        + payload[start + size :]
    )


def with_text(kind, size):
    """A PNG with a text chunk that unpacks to ``size`` bytes."""
    packed = zlib.compress(b"x" * size, 9)
    head = b"k\0\0" if kind == b"zTXt" else b"k\0\1\0\0\0"
    pixels = zlib.compress((b"\0" + b"\x80" * 24) * 8)
    return png(8, 8, pixels, before=[(kind, head + packed)])


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(id) system\n%%EOF\n"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
PDF = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"
WMF = b"\xd7\xcd\xc6\x9a\0\0\0\0\0\0\x64\0\x64\0\x60\0\0\0\0\0" + b"\0" * 40
EMF = b"\x01\0\0\0" + b"\0" * 36 + b" EMF" + b"\0" * 60


def of_kind(kind):
    """A good picture in a format that is not taken."""
    return encoded(noise((64, 64)), kind)


def files():
    """name: content, of all that are files."""
    small = noise()
    return {
        "wide.png": blank(1_000_000, 1), "tall.png": blank(1, 1_000_000),
        "bomb.png": blank(20_000, 20_000),
        "line.png": png(50_000_000, 1, zlib.compress(b"\0" * 100)),
        "largest.png": png(2**31 - 1, 2**31 - 1, zlib.compress(b"\0" * 100)),
        "large.jpg": jpeg_of_size(65_500, 65_500),
        "large.gif": b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\x80\0\0" + b"\0" * 6,
        "large.bmp": b"BM" + struct.pack("<IHHIIiiHHIIIIII", 100, 0, 0, 54, 40, 60_000, 60_000, 1,
                                         24, 0, 0, 0, 0, 0, 0),
        "large.ppm": b"P6 60000 60000 255\n" + b"\0" * 100,
        "large.tif": tiff((256, 4, 1, 90_000), (257, 4, 1, 90_000), (258, 3, 1, 8),
                          (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8), (279, 4, 1, 4)),
        "half.png": cut(encoded(small, "PNG")), "half.jpg": cut(encoded(small, "JPEG"), 0.3),
        "half.gif": cut(encoded(small, "GIF"), 0.2), "half.bmp": cut(encoded(small, "BMP")),
        "half.webp": cut(encoded(small, "WEBP"), 0.1), "half.tif": cut(encoded(small, "TIFF")),
        "half.jp2": cut(encoded(small, "JPEG2000"), 0.05),
        "half.ppm": cut(encoded(small, "PPM")), "head.png": encoded(small, "PNG")[:20],
        "empty.png": b"", "one-byte.jpg": b"\xff", "zeros.png": b"\0" * 5000,
        "text.png": b"this is not a picture\n" * 50,
        "spoilt.png": spoilt(encoded(small, "PNG")),
        "spoilt.webp": spoilt(encoded(small, "WEBP"), 0),
        "spoilt.gif": encoded(small, "GIF")[:13] + b"\x2c" + b"\xff" * 60,
        "no-pixels.png": png(40, 40, b""), "few-pixels.png": png(40, 40, zlib.compress(b"\0" * 9)),
        "not-packed.png": png(40, 40, b"\0" * 400), "no-depth.png": png(4, 4, b"", depth=77),
        "nothing.png": png(0, 0, b""), "no-height.png": png(40, 0, b""),
        "ztxt.png": with_text(b"zTXt", 300_000_000), "itxt.png": with_text(b"iTXt", 300_000_000),
        "loop.tif": b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 256, 4, 1, 8) + b"\x08\0\0\0",
        "away.tif": tiff((256, 4, 1, 40), (257, 4, 1, 40), (258, 3, 1, 8), (259, 3, 1, 1),
                         (262, 3, 1, 1), (273, 4, 1, 10**9), (279, 4, 1, 1600)),
        "tags.tif": tiff((256, 2, 10**9, 4), (257, 7, 4, 0), (258, 12, 1, 8), (9999, 99, 1, 1)),
        "many.tif": b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 3000,
        "a.eps": POSTSCRIPT, "eps.png": POSTSCRIPT, "a.ps": POSTSCRIPT, "a.svg": SVG,
        "svg.jpg": SVG, "a.pdf": PDF, "pdf.png": PDF, "a.wmf": WMF, "wmf.bmp": WMF, "a.emf": EMF,
        "a.ico": of_kind("ICO"), "ico.png": of_kind("ICO"), "a.icns": of_kind("ICNS"),
        "a.tga": of_kind("TGA"), "a.pcx": of_kind("PCX"), "a.sgi": of_kind("SGI"),
        "a.dds": of_kind("DDS"),
        "a.xbm": b"#define w_width 8\n#define w_height 8\nstatic char w_bits[] = {0,0};\n",
        "a.psd": b"8BPS\0\1" + b"\0" * 6 + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + b"\0" * 200,
        "a.html": b"<html><script>alert(1)</script></html>",
        "a.zip": b"PK\x03\x04" + b"\0" * 100, "a.elf": b"\x7fELF" + b"\0" * 100,
    }  # fmt: skip


def hostile(home, outside):
    """Write them; the names by which a table would have them."""
    found = files()
    for name, content in found.items():
        (home / name).write_bytes(content)
    os.mkfifo(home / "pipe.png")
    (home / "folder.png").mkdir()
    (home / "dangling.png").symlink_to(home / "nowhere.png")
    (home / "loop.png").symlink_to(home / "loop.png")
    outside.write_bytes(encoded(noise(), "PNG"))
    (home / "link.png").symlink_to(outside)
    (home / "device.png").symlink_to("/dev/zero")
    (home / "stdin.png").symlink_to("/dev/stdin")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(home)  # the path of a socket is short
    listener.bind("socket.png")
    os.chdir(here)
    listener.close()
    with open(os.fsencode(home) + b"/\xff\xfe.png", "wb") as stream:
        stream.write(encoded(noise(), "PNG"))
    return [
        *found, "pipe.png", "folder.png", "dangling.png", "loop.png", "link.png", "device.png",
        "stdin.png", "socket.png", "\udcff\udcfe.png", "a\0b.png", "missing.png", str(outside),
        f"../{outside.name}", "/dev/zero", "x" * 300 + ".png", "..", "a/" * 3000 + "b.png",
    ]  # fmt: skip


def frames(kind, count, **options):
    shades = [Image.new("P", (8, 8), k % 256) for k in range(count)]
    return encoded(shades[0], kind, save_all=True, append_images=shades[1:], **options)


def grey(depth, kind):
    values = np.arange(48 * 40).reshape(48, 40) * (1 if depth == 16 else 1000)
    return Image.fromarray(values.astype(kind))


def odd(home):
    """Pictures that are strange and fine; their names."""
    small, text = noise(), PngImagePlugin.PngInfo()
    text.add_text("k", "v" * 1000)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    exif[0x010E] = "x" * 60_000
    found = {
        **{f"{mode}.png": encoded(small.convert(mode), "PNG") for mode in ("1", "L", "P", "LA",
                                                                           "RGBA")},
        **{f"{mode}.tif": encoded(small.convert(mode), "TIFF") for mode in ("CMYK", "LAB", "YCbCr",
                                                                            "F", "I", "RGBX")},
        "I;16.png": encoded(grey(16, np.uint16), "PNG"), "cmyk.jpg": encoded(
            small.convert("CMYK"), "JPEG"), "progressive.jpg": encoded(
            small, "JPEG", progressive=True), "lossless.webp": encoded(
            small, "WEBP", lossless=True), "a.jp2": encoded(small, "JPEG2000"),
        "a.bmp": encoded(small, "BMP"), "a.ppm": encoded(small, "PPM"), "a.pgm": encoded(
            small.convert("L"), "PPM"), "interlaced.gif": encoded(small.convert("P"), "GIF"),
        "frames.gif": frames("GIF", 10_000, duration=10), "frames.png": frames("PNG", 500),
        "frames.webp": frames("WEBP", 50), "text.png": encoded(small, "PNG", pnginfo=text),
        "icc.png": encoded(small, "PNG", icc_profile=os.urandom(60_000)),
        "exif.jpg": encoded(small, "JPEG", exif=exif.tobytes()),
        "broken-exif.jpg": encoded(small, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
        "zip.png": encoded(small, "PNG") + b"PK\x03\x04" + b"\0" * 100,
        "script.gif": encoded(small.convert("P"), "GIF") + b"<script>alert(1)</script>",
        "php.jpg": encoded(small, "JPEG", comment=b"<?php system('id'); ?>"),
        "a.png.exe": encoded(small, "PNG"), "one.png": encoded(Image.new("RGB", (1, 1)), "PNG"),
        "line\nbreak.png": encoded(small, "PNG"), "-rf.png": encoded(small, "PNG"),
        "$(id).png": encoded(small, "PNG"),
        "depth.png": encoded(Image.new("RGBA", (9_990, 9_990), "red"), "PNG", compress_level=1),
    }  # fmt: skip
    for name, content in found.items():
        (home / name).write_bytes(content)
    return list(found)
