"""How a command reaches the store of its session, if that is in a bucket."""

from ciuic.cli.session import Session
from ciuic.store.place.keys import is_url
from ciuic.store.place.location import PlaceOptions

__all__ = ["place_options"]


def place_options(session: Session, address: str) -> PlaceOptions | None:
    """Return how to reach the session's store; None if it is in a directory.

    Raises:
        ConfigError: The configuration that names the store is wrong.
    """
    if not is_url(address):
        return None
    options: PlaceOptions = session.store_settings().place_options
    return options
