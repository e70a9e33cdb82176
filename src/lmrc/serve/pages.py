"""The page, and the form to sign in."""

import base64
import hashlib
from importlib import resources
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from lmrc.serve.errors import ApiError
from lmrc.serve.guard import COOKIE, same, session

TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
MAX_FORM = 10_000  # bytes
STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:24rem;margin:15vh auto;padding:1rem;"
    "color-scheme:light dark}input,button{font:inherit;width:100%;box-sizing:border-box;"
    "padding:.5rem;margin:.5rem 0}"
)
SIGN_IN = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>lmrc: sign in</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>
<body><h1>lmrc</h1><form method="post" action="/sign-in">
<label>Token of this server<input name="token" type="password" autocomplete="current-password"
autofocus required></label><button>Sign in</button></form></body></html>"""
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

# All files of the page, read once: no name from a client is looked up on disk.
FILES = {
    file.name: file.read_bytes()
    for file in (resources.files("lmrc.serve") / "page").iterdir()
    if file.name.rpartition(".")[2] in TYPES
}

router = APIRouter(include_in_schema=False)


def sign_in(status: int) -> HTMLResponse:
    """Return the form to sign in."""
    policy = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; form-action 'self'"
    return HTMLResponse(SIGN_IN, status, {"Content-Security-Policy": policy})


@router.get("/")
def index() -> Response:
    """Return the page."""
    return Response(FILES["index.html"], media_type=TYPES["html"])


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a file of the page."""
    if name not in FILES:
        raise ApiError(404, "not_found", "there is no such file")
    return Response(FILES[name], media_type=TYPES[name.rpartition(".")[2]])


@router.post("/sign-in")
async def enter(request: Request) -> Response:
    """Exchange the token for a cookie."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_FORM:
            raise ApiError(413, "too_large", "the form is too large")
    given = parse_qs(content.decode(errors="replace")).get("token", [""])[0]
    token = request.app.state.settings.token
    if not token or not same(given.strip(), token):
        return sign_in(401)
    answer = RedirectResponse("/", 303)
    secure = request.headers.get("x-forwarded-proto") == "https" or request.url.scheme == "https"
    answer.set_cookie(COOKIE, session(token), httponly=True, samesite="strict", secure=secure)
    return answer
