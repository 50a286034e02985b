"""A place in a bucket of a real S3 server keeps the contract of places."""

import pytest

from ciuic.store.place.address import open_place
from ciuic.store.place.location import PlaceOptions
from tests.kit.place_contract import Contract

pytestmark = [pytest.mark.slow, pytest.mark.root]


class TestS3(Contract):
    @pytest.fixture
    def place(self, server, address):
        options = PlaceOptions(endpoint=server.endpoint, patience_s=20)
        return open_place(address, server.environment, options)
