"""Pictures of requests: data URLs within the limits, and nothing else."""

from __future__ import annotations

import base64
import binascii
import re

from fusevlm.data.images import TooLarge, measured
from fusevlm.errors import InputError
from fusevlm.serve.faults import Fault

HEAD = re.compile(r"data:image/[\w.+-]{1,40};base64", re.IGNORECASE)


def picture_of(url: str, most: int) -> bytes:
    """The bytes of a picture in a data URL, of at most so many pixels; it is not decoded yet."""
    head, comma, body = url.partition(",")
    if not comma or not HEAD.fullmatch(head):
        raise Fault("not_a_data_url")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Fault("not_a_picture", words="the data URL is not whole base64.") from error
    try:
        measured(data, most)
    except TooLarge as error:
        raise Fault("too_many_pixels", words=str(error)) from error
    except InputError as error:
        raise Fault("not_a_picture", words=str(error)) from error
    return data
