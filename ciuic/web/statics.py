"""The static files of the page, which a browser asks for once.

An address has a digest of the file, so a file that changes gets another address. Without it, each
page would wait for its style sheet again.
"""

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["Statics"]

_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
_DIRECTORY: Final = Path(__file__).with_name("static")
_FOR_EVER: Final = "private, max-age=31536000, immutable"
_DIGITS: Final = 16


class _File:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media_type = _TYPES[path.suffix]
        self.version = hashlib.sha256(self.content).hexdigest()[:_DIGITS]


class Statics:
    """Holds the files in memory: together they have 80 KB.

    Args:
        directory: The files; those with another ending than the page needs are left alone.
    """

    def __init__(self, directory: Path = _DIRECTORY) -> None:
        found = directory.iterdir()
        # An editor or a file manager may leave other files there.
        self._files = {path.name: _File(path) for path in found if path.suffix in _TYPES}

    def address(self, name: str) -> str:
        """Return the address of a file with this content."""
        return f"/static/{name}?v={self._files[name].version}"

    def route(self) -> Route:
        """Return the route of all files."""
        return Route("/static/{name}", self._answer)

    async def _answer(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("there is no such file\n", 404, media_type="text/plain")
        answer = Response(found.content, media_type=found.media_type)
        if request.query_params.get("v") == found.version:
            answer.headers["cache-control"] = _FOR_EVER
        return answer
