"""A server on the loopback, in a thread of its own, and what its clients send."""

import base64
import io
import threading
import time
from contextlib import contextmanager

import httpx2
import numpy as np
from PIL import Image

from fusevlm.serve.app import create_app
from fusevlm.serve.connections import bound, server_of
from fusevlm.serve.desk import Desk, Offer
from fusevlm.serve.guard import HERE
from fusevlm.serve.page import ASSETS

SHAPE = (ASSETS / "shape.png").read_bytes()
QUESTION = "what shape is in the image?"


def data_url(data, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def picture(seed):
    """One like no other."""
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def noise(seed):
    return data_url(png(picture(seed)))


CLEAN = data_url(SHAPE)
ASK = {"question": QUESTION, "image": CLEAN}


def chat(question=QUESTION, image=CLEAN, **more):
    parts = [{"type": "text", "text": question}]
    if image is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": image}})
    return {"model": "embedded", "messages": [{"role": "user", "content": parts}], **more}


class Gate:
    """A real answerer whose answers wait until the gate is open."""

    def __init__(self, inner):
        self.inner, self.open, self.batches = inner, threading.Event(), []
        self.entered = threading.Semaphore(0)
        self.open.set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ask_all(self, queries, **terms):
        self.batches.append([query.id for query in queries])
        self.entered.release()
        assert self.open.wait(60)
        return self.inner.ask_all(queries, **terms)


@contextmanager
def served(answerer, *, token=None, hosts=HERE, name="embedded", offer=None, **options):
    """(client, desk) of a server that ends with the block."""
    desk = Desk(answerer, offer or Offer(name), **options)
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = server_of(create_app(desk, token=token, hosts=hosts), desk.limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            yield client, desk
    finally:
        server.should_exit = True
        thread.join(90)
        listening.close()
        assert not thread.is_alive(), "the server did not end"


def code(reply):
    return reply.json()["error"]["code"]
