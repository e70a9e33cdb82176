"""Dependencies of the routes, and parts of the OpenAPI description that they share."""

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from lmrc.serve import schema
from lmrc.serve.errors import ApiError
from lmrc.serve.jobs import Job, Jobs
from lmrc.serve.served import Served
from lmrc.serve.settings import Settings
from lmrc.serve.uploads import FORM

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Error}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 429, 503)
}
_binary = {"type": "string", "format": "binary"}
_files = {"type": "object", "additionalProperties": {"type": "array", "items": _binary}}
IMAGES = {
    "requestBody": {
        "required": True,
        "content": {"image/*": {"schema": _binary}, FORM: {"schema": _files}},
    }
}
ONLY_FORM = {"requestBody": {"required": True, "content": {FORM: {"schema": _files}}}}


# Coroutines, since FastAPI calls functions in a thread.


async def settings_of(request: Request) -> Settings:
    """Return the settings of the server."""
    found: Settings = request.app.state.settings
    return found


async def jobs_of(request: Request) -> Jobs:
    """Return the jobs of the server."""
    found: Jobs = request.app.state.jobs
    return found


async def served_of(request: Request, model: Annotated[str, Path(max_length=255)]) -> Served:
    """Return the model in the URL."""
    models: dict[str, Served] = request.app.state.models
    if model not in models:
        raise ApiError(404, "no_model", "there is no such model")
    return models[model]


async def job_of(request: Request, job: Annotated[str, Path(max_length=64)]) -> Job:
    """Return the job in the URL."""
    found: Jobs = request.app.state.jobs
    return found.get(job)


async def writable(request: Request) -> None:
    """Raise an ApiError if the server only predicts."""
    if request.app.state.settings.read_only:
        raise ApiError(403, "read_only", "this server only predicts")


TheSettings = Annotated[Settings, Depends(settings_of)]
TheJobs = Annotated[Jobs, Depends(jobs_of)]
TheModel = Annotated[Served, Depends(served_of)]
TheJob = Annotated[Job, Depends(job_of)]
CHANGES = [Depends(writable)]
