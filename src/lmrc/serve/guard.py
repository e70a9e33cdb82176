"""Checks of every request (host, origin, token, size, time) and headers of every response."""

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmrc.serve.errors import ApiError, response
from lmrc.serve.settings import Settings, is_loopback

OPEN = {"/health", "/sign-in"}  # without a token
PAGE = {"/"}  # may be opened from another site
SAFE = {"GET", "HEAD", "OPTIONS"}
COOKIE = "lmrc"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that are not allowed, before their bodies are read.

    `held` returns the bytes of the images in memory.
    """

    def __init__(self, app: ASGIApp, settings: Settings, held: Callable[[], int]) -> None:
        self.app, self.settings, self.held = app, settings, held
        self.receiving = 0  # bytes of the bodies that are being received
        self.hosts = _host_names(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        try:
            self._check_host(headers)
            self._check_origin(scope["method"], scope["path"], headers)
            self._check_token(scope["path"], headers)
            size = self._check_size(scope["method"], headers)
        except ApiError as error:
            if error.status == 401 and scope["path"] in PAGE and scope["method"] in SAFE:
                await _sign_in_page()(scope, receive, send_with_headers)
            else:
                await response(error)(scope, receive, send_with_headers)
            return
        self.receiving += size
        try:
            await self.app(scope, self._limited(receive), send_with_headers)
        finally:
            self.receiving -= size

    def _check_host(self, headers: Headers) -> None:
        name = _host_name(headers.get("host", ""))
        if name in self.hosts:
            return
        if _is_address(name) and not is_loopback(self.settings.host):
            return  # no name that someone else's name server could give to this machine
        raise ApiError(
            421,
            "bad_host",
            f"the host name {name!r} is not this server's: allow it with --allow-host",
        )

    def _check_origin(self, method: str, path: str, headers: Headers) -> None:
        """Refuse requests that another site makes a browser send."""
        site = headers.get("sec-fetch-site", "none").lower()
        origin = headers.get("origin")
        crosses = site not in ("none", "same-origin") and not (method in SAFE and path in PAGE)
        if origin is not None and method not in SAFE:
            crosses = crosses or _netloc(origin) != headers.get("host", "").lower()
        if crosses:
            raise ApiError(403, "cross_site", "requests from other sites are refused")

    def _check_token(self, path: str, headers: Headers) -> None:
        token = self.settings.token
        if not token or path in OPEN:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        by_header = kind.lower() == "bearer" and same(given.strip(), token)
        if not by_header and not same(_cookie(headers), session(token)):
            raise ApiError(401, "no_token", "send the token: Authorization: Bearer TOKEN")

    def _check_size(self, method: str, headers: Headers) -> int:
        """Return the size of the body, at most; refuse too many bytes at once."""
        text, most = headers.get("content-length"), self.settings.max_upload
        if text is None and "transfer-encoding" not in headers:
            return 0
        size = int(text) if text is not None and text.isdecimal() else most
        if size > most:
            raise ApiError(413, "too_large", f"a request may have {most:,} bytes at most")
        if self.receiving + self.held() + size > self.settings.max_memory:
            raise ApiError(429, "busy", "too many images at once", retry_after=5)
        return size

    def _limited(self, receive: Receive) -> Receive:
        """Return a `receive` that enforces the limits of size and time."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.settings.request_seconds
        left, complete = self.settings.max_upload, False

        async def limited() -> Message:
            nonlocal left, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "timeout", "the request took too long to arrive") from None
            left -= len(message.get("body", b""))
            if left < 0:
                most = self.settings.max_upload
                raise ApiError(413, "too_large", f"a request may have {most:,} bytes at most")
            complete = not message.get("more_body", False)
            return message

        return limited


def same(given: str, wanted: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def session(token: str) -> str:
    """Return the value of the cookie that stands for a token."""
    return hmac.new(token.encode(), b"lmrc serve", hashlib.sha256).hexdigest()


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _host_names(settings: Settings) -> set[str]:
    own = () if is_loopback(settings.host) else (socket.gethostname(), socket.getfqdn())
    names = ("localhost", "127.0.0.1", "::1", settings.host, *own, *settings.hosts)
    return {name.lower().rstrip(".") for name in names}


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port.

    >>> _host_name("[::1]:8000"), _host_name("LocalHost:80")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _sign_in_page() -> ASGIApp:
    from lmrc.serve.pages import sign_in

    return sign_in(401)
