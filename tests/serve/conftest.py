"""One embedded model, and one server before it, for all tests of this room."""

import pytest
from tests.serve.live import served

import fusevlm


@pytest.fixture(scope="session")
def assistant():
    return fusevlm.load("embedded")


@pytest.fixture(scope="session")
def server(assistant):
    """(client, desk) of a server with the usual settings."""
    with served(assistant) as both:
        yield both


@pytest.fixture
def client(server):
    return server[0]
