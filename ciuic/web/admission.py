"""Decides by host name, token and origin which requests are answered; sets the headers of answers.

The address that ``ciuic web`` prints has a token. The first request trades it for a cookie that no
script can read and no other site can have sent. Programs send the token as a Bearer header.
"""

import hmac
import json
import re
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ASKS", "TOKEN", "Admission"]

TOKEN: Final = "token"  # noqa: S105 - the name of a field
ASKS: Final = "x-ciuic"
"""The header of every request that changes something: no form of another site can set it."""
_COOKIE: Final = "ciuic-session"
_SAFE: Final = frozenset({"GET", "HEAD"})
_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII)
"""With any port: ``ssh -L`` may forward another one."""
_PORT: Final = re.compile(r":\d{1,5}\Z", re.ASCII)
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Admission:
    """Wraps an application, which then sees only requests that may be answered.

    Args:
        app: The application.
        names: Host names and addresses under which it answers, besides those of loopback.
        is_encrypted: Requests come over TLS: the cookie is for such connections only.

    Attributes:
        token: What a request must show; new with each start.
    """

    def __init__(
        self, app: ASGIApp, names: Iterable[str] = (), *, is_encrypted: bool = False
    ) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._is_encrypted = is_encrypted
        self.token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(MutableHeaders(scope=message))
            await send(message)

        refused = self._answer(scope)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that the application does not see; else None."""
        headers = Headers(scope=scope)
        if not self._is_own_name(headers.get("host", "").lower()):
            known = ", ".join(["localhost", "127.0.0.1", "[::1]", *sorted(self._names)])
            return _refusal(421, "host", f"this server answers to these names alone: {known}")
        given = _token_in(scope["query_string"])
        if given is not None and scope["method"] in _SAFE:
            return self._trade(scope, given) if self._is(self.token, given) else _unknown()
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return None if self._is(self.token, bearer.strip()) else _unknown()
        if not any(self._is(self._session, one) for one in _sessions(headers.getlist("cookie"))):
            return _unknown()
        if scope["method"] not in _SAFE and not _is_own(headers):
            what = f"a request that changes something needs the header {ASKS}, from this page"
            return _refusal(403, "origin", what)
        return None

    def _trade(self, scope: Scope, given: str) -> Response:
        """Answer a request with the token: a cookie, and the address without the token."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), encoding="latin-1")
        left = urlencode([pair for pair in query if pair != (TOKEN, given)], encoding="latin-1")
        place = re.sub(r"\A[/\\]+", "/", scope["path"])
        answer = RedirectResponse(f"{place}?{left}" if left else place, status_code=303)
        answer.set_cookie(
            _COOKIE,
            self._session,
            httponly=True,
            samesite="strict",
            path="/",
            secure=self._is_encrypted,
        )
        return answer

    def _is_own_name(self, host: str) -> bool:
        return bool(_HOST.fullmatch(host)) or _PORT.sub("", host) in self._names

    @staticmethod
    def _is(secret: str, given: str) -> bool:
        return hmac.compare_digest(secret.encode(), given.encode("utf-8", "surrogateescape"))


def _token_in(query: bytes) -> str | None:
    found = dict(parse_qsl(query.decode("latin-1"), encoding="latin-1", keep_blank_values=True))
    return found.get(TOKEN)


def _sessions(headers: Iterable[str]) -> list[str]:
    """Return the session that each cookie header names."""
    found = []
    for header in headers:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(header)
        except CookieError:
            continue
        if _COOKIE in cookies:
            found.append(cookies[_COOKIE].value)
    return found


def _is_own(headers: Headers) -> bool:
    """Return whether a request with a cookie comes from this page."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return False
    return ASKS in headers and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _complete(headers: MutableHeaders) -> None:
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("cache-control", "no-store")


def _unknown() -> Response:
    what = "this address needs the token that 'ciuic web' has printed"
    answer = _refusal(401, "token", what)
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def _refusal(status: int, kind: str, message: str) -> Response:
    hint = "Open the address that 'ciuic web' has printed."
    body = {"error": {"kind": kind, "message": message, "hint": hint}}
    return Response(json.dumps(body) + "\n", status, media_type="application/json")
