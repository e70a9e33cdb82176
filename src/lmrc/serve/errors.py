"""Errors of the API: one form, ``{"error": {"code": …, "message": …}}``."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lmrc.text import escape, shorten

CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class ApiError(Exception):
    """An error response: an HTTP status, a stable code for programs, a message for people.

    `retry_after` is the number of seconds after which trying again may help.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after


def body(code: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"code": code, "message": escape(shorten(" ".join(message.split()), 500))}}


def response(error: ApiError) -> JSONResponse:
    """Return an error as a response."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body(error.code, error.message), error.status, headers)


def add_handlers(app: FastAPI) -> None:
    """Give all errors the same form."""

    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> JSONResponse:
        return response(error)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, "error")
        headers = dict(error.headers or {})
        return JSONResponse(body(code, str(error.detail)), error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse(body("invalid_request", f"{where}: {first['msg']}"), 422)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(body("internal", "an unexpected error; the server's log has it"), 500)
