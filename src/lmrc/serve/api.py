"""The API: predict, learn, jobs, versions, classes, downloads, health, metrics."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import TypeAdapter, ValidationError

from lmrc.data.images import UnreadableImageError
from lmrc.methods.calibrated import UNKNOWN_SHARE
from lmrc.practice import maintenance
from lmrc.practice.info import describe
from lmrc.practice.learn import Request as LearnRequest
from lmrc.practice.log import history
from lmrc.serve import schema
from lmrc.serve.checks import findings
from lmrc.serve.downloads import chunks, folder_as_zip
from lmrc.serve.errors import ApiError
from lmrc.serve.jobs import Image, Job, Jobs
from lmrc.serve.served import Answer, Loaded, Served
from lmrc.serve.settings import Settings
from lmrc.serve.uploads import FORM, Upload, decode, read_uploads, reason
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.folder import ModelFileError
from lmrc.store.lock import LockedError

CHECKED_SIZE = 224, 224  # to which images are decoded when they arrive, to see that they can be
KEPT_VERSIONS = 5  # of a model that the server creates
SOURCE = "images sent to lmrc serve"

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

router = APIRouter(prefix="/v1", responses=ERRORS)
root = APIRouter()
_class_name = TypeAdapter(schema.ClassName)


def settings_of(request: Request) -> Settings:
    """Return the settings of the server."""
    found: Settings = request.app.state.settings
    return found


def jobs_of(request: Request) -> Jobs:
    """Return the jobs of the server."""
    found: Jobs = request.app.state.jobs
    return found


def served_of(request: Request, model: Annotated[str, Path(max_length=255)]) -> Served:
    """Return the model that the address names."""
    models: dict[str, Served] = request.app.state.models
    if model not in models:
        raise ApiError(404, "no_model", "there is no such model")
    return models[model]


def job_of(request: Request, job: Annotated[str, Path(max_length=64)]) -> Job:
    """Return the job that the address names."""
    return jobs_of(request).get(job)


def writable(request: Request) -> None:
    """Refuse changes of a server that only predicts."""
    if settings_of(request).read_only:
        raise ApiError(403, "read_only", "this server only predicts")


TheSettings = Annotated[Settings, Depends(settings_of)]
TheJobs = Annotated[Jobs, Depends(jobs_of)]
TheModel = Annotated[Served, Depends(served_of)]
TheJob = Annotated[Job, Depends(job_of)]
CHANGES = [Depends(writable)]


@root.get("/health", response_model=schema.Health)
async def health() -> dict[str, str]:
    """Tell that the server runs; needs no token."""
    return {"status": "ok"}


@root.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
async def metrics(request: Request) -> Response:
    """Return metrics in the format of Prometheus."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/models", response_model=schema.Models)
async def list_models(request: Request, settings: TheSettings) -> dict[str, Any]:
    """List the models."""
    models = [await asyncio.to_thread(_outline, m) for m in request.app.state.models.values()]
    return {"models": models, "read_only": settings.read_only}


@router.get("/models/{model}", response_model=schema.Model)
async def show_model(served: TheModel) -> dict[str, Any]:
    """Describe a model: classes, versions, sizes, images stored in it."""
    return await asyncio.to_thread(_outline, served)


def _outline(served: Served) -> dict[str, Any]:
    path = served.path
    base = {"name": served.name, "version": served.version, "problem": served.problem}
    base |= {"busy": store.changing(path) is not None, "unfinished": unfinished.is_there(path)}
    if not store.holds_model(path):
        return {**base, "empty": True}
    try:
        info, versions = describe(path), history(path)
    except ModelFileError as error:
        return {**base, "empty": False, "problem": served.plain(error)}
    heads = enumerate(info["heads"], start=1)
    shape = info["input_shape"]
    form = dict(zip(("channels", "height", "width"), shape, strict=True)) if shape[1:] else None
    return {
        **base,
        "empty": False,
        "version": versions[-1]["version"],
        "classes": [{"name": label, "head": i} for i, head in heads for label in head],
        "versions": versions,
        "input": form,
        "exemplars": info["exemplars"],
        "earlier_versions_with_exemplars": info["earlier_versions_with_exemplars"],
        **{k: info[k] for k in ("backbone", "parameters", "bytes", "bytes_of_all_versions")},
    }


@router.post(
    "/models/{model}/predict",
    responses={200: {"model": schema.Predictions}},
    openapi_extra=IMAGES,
)
async def predict(
    request: Request,
    served: TheModel,
    settings: TheSettings,
    top: Annotated[int, Query(ge=1, le=1000, description="Number of classes to return.")] = 3,
    reject_below: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Predict unknown below this similarity."),
    ] = None,
    unknown_share: Annotated[
        float,
        Query(
            ge=0,
            le=0.5,
            allow_inf_nan=False,
            description="Predict unknown so that this share of images of known classes is; "
            "for models with probabilities, and without reject_below.",
        ),
    ] = UNKNOWN_SHARE,
) -> Response:
    """Predict the classes of one image (the body) or of many (a form)."""
    loaded = await served.current()
    uploads = await read_uploads(request, settings)
    served.batcher.check_room(len(uploads))
    pixels = await asyncio.gather(
        *(decode(u.content, loaded.size, loaded.mode, settings.max_pixels) for u in uploads),
        return_exceptions=True,
    )
    for found in pixels:
        if isinstance(found, BaseException) and not isinstance(found, UnreadableImageError):
            raise found
    good = [found for found in pixels if isinstance(found, np.ndarray)]
    outputs = iter(await served.batcher.outputs(loaded, good))
    predictions = [
        _unread(upload, found)
        if isinstance(found, UnreadableImageError)
        else _prediction(upload.name, loaded, next(outputs), top, reject_below, unknown_share)
        for upload, found in zip(uploads, pixels, strict=True)
    ]
    if len(predictions) == 1 and (problem := predictions[0]["error"]):
        raise ApiError(422, problem["code"], problem["message"])
    content = {"model": served.name, "version": loaded.version, "predictions": predictions}
    return JSONResponse(content)


def _prediction(
    name: str,
    loaded: Loaded,
    answer: Answer,
    top: int,
    reject_below: float | None,
    unknown_share: float,
) -> dict[str, Any]:
    scores, probabilities, unknown = answer
    order = np.argsort(-scores, kind="stable")[:top].tolist()
    best = [
        {
            "class": loaded.labels[i],
            "similarity": round(float(scores[i]), 4),
            "probability": None if probabilities is None else round(float(probabilities[i]), 4),
            "head": loaded.head_of[i],
        }
        for i in order
    ]
    if reject_below is not None:
        known = bool(scores[order[0]] >= reject_below)
    elif unknown is not None and unknown_share:
        known = unknown <= loaded.unknown_threshold(unknown_share)
    else:
        known = True
    label = best[0]["class"] if known else None
    return {"name": name, "class": label, "known": known, "best": best, "error": None}


def _unread(upload: Upload, error: UnreadableImageError) -> dict[str, Any]:
    problem = {"code": "unreadable_image", "message": reason(error)}
    return {"name": upload.name, "class": None, "known": False, "best": [], "error": problem}


@router.post(
    "/models/{model}/jobs", status_code=201, response_model=schema.Job, dependencies=CHANGES
)
async def create_job(served: TheModel, jobs: TheJobs) -> dict[str, Any]:
    """Begin a task: add images to it, then learn it."""
    return jobs.create(served).describe()


@router.post(
    "/models/{model}/learn",
    status_code=202,
    response_model=schema.Job,
    dependencies=CHANGES,
    openapi_extra=ONLY_FORM,
)
async def learn(
    request: Request,
    served: TheModel,
    jobs: TheJobs,
    settings: TheSettings,
    options: Annotated[schema.Options, Query()],
) -> dict[str, Any]:
    """Learn a task from one form: the name of each field is a class, its files are the images."""
    uploads = await read_uploads(request, settings)
    job = jobs.create(served)
    try:
        for added in await _add(job, [(_label(u.field), u) for u in uploads], settings):
            if added["error"]:
                message = f"{added['name']}: {added['error']['message']}"
                job.warnings.append(f"left out {message}")
        _start(jobs, job, options)
    except BaseException:
        await jobs.cancel(job)
        raise
    return job.describe()


@router.get("/jobs", response_model=schema.JobList)
async def list_jobs(jobs: TheJobs) -> dict[str, Any]:
    """List the jobs, oldest first."""
    return {"jobs": [job.describe() for job in jobs]}


@router.get("/jobs/{job}", response_model=schema.Job)
async def show_job(job: TheJob) -> dict[str, Any]:
    """Return the state of a job."""
    return job.describe()


@router.delete("/jobs/{job}", response_model=schema.Job, dependencies=CHANGES)
async def cancel_job(job: TheJob, jobs: TheJobs) -> dict[str, Any]:
    """Stop a job and drop its images; the model stays as it was."""
    await jobs.cancel(job)
    return job.describe()


@router.post(
    "/jobs/{job}/images",
    status_code=201,
    response_model=schema.AddedImages,
    dependencies=CHANGES,
    openapi_extra=IMAGES,
)
async def add_images(
    request: Request,
    job: TheJob,
    jobs: TheJobs,
    settings: TheSettings,
    label: Annotated[schema.ClassName, Query(description="The class of the images.")],
) -> dict[str, Any]:
    """Add images of a class to a job; they stay in memory until it is learnt."""
    jobs.collecting(job.id)
    uploads = await read_uploads(request, settings)
    added = await _add(jobs.collecting(job.id), [(label, u) for u in uploads], settings)
    return {"added": added, "findings": findings(job.images.values()), "job": job.describe()}


@router.delete("/jobs/{job}/images/{image}", response_model=schema.AddedImages)
async def remove_image(
    job: TheJob, jobs: TheJobs, image: Annotated[str, Path(max_length=64)]
) -> dict[str, Any]:
    """Remove an image from a job."""
    if jobs.collecting(job.id).images.pop(image, None) is None:
        raise ApiError(404, "no_image", "the job has no such image")
    job.update()
    return {"added": [], "findings": findings(job.images.values()), "job": job.describe()}


@router.post("/jobs/{job}/learn", status_code=202, response_model=schema.Job, dependencies=CHANGES)
async def learn_job(job: TheJob, jobs: TheJobs, options: schema.Options) -> dict[str, Any]:
    """Learn the images of a job, in a process of its own."""
    _start(jobs, jobs.collecting(job.id), options)
    return job.describe()


@router.get(
    "/jobs/{job}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow_job(job: TheJob, jobs: TheJobs) -> StreamingResponse:
    """Follow a job by server-sent events: its state at each change, until it has ended."""
    return StreamingResponse(
        jobs.events(job), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


@router.post("/jobs/{job}/keep", response_model=schema.Job, dependencies=CHANGES)
async def keep(job: TheJob, jobs: TheJobs) -> dict[str, Any]:
    """Make what was learnt the newest version of the model."""
    return await _decide(jobs, job, "keep")


@router.post("/jobs/{job}/discard", response_model=schema.Job, dependencies=CHANGES)
async def discard(job: TheJob, jobs: TheJobs) -> dict[str, Any]:
    """Discard what was learnt; the model stays as it was."""
    return await _decide(jobs, job, "discard")


async def _decide(jobs: Jobs, job: Job, decision: str) -> dict[str, Any]:
    jobs.decide(job, decision)
    if job.run is not None:
        await asyncio.wait([job.run])
    if job.error:
        raise ApiError(409, job.error["code"], job.error["message"])
    return job.describe()


@router.post("/models/{model}/rollback", response_model=schema.Model, dependencies=CHANGES)
async def roll_back(served: TheModel) -> dict[str, Any]:
    """Delete the newest version; the one before it is the model again."""
    return await _change(served, lambda: maintenance.roll_back(served.path, _quiet))


@router.post("/models/{model}/forget", response_model=schema.Model, dependencies=CHANGES)
async def forget(served: TheModel, of: schema.ClassRequest) -> dict[str, Any]:
    """Remove a class from all versions."""
    return await _change(served, lambda: maintenance.forget(served.path, of.label, _quiet))


@router.post("/models/{model}/rename", response_model=schema.Model, dependencies=CHANGES)
async def rename(served: TheModel, of: schema.Rename) -> dict[str, Any]:
    """Rename a class in all versions."""
    return await _change(served, lambda: maintenance.rename(served.path, of.label, of.to, _quiet))


@router.get(
    "/models/{model}/onnx",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def as_onnx(request: Request, served: TheModel) -> Response:
    """Download the model as an ONNX file; needs the packages of the extra onnx."""
    await served.current()
    content = await request.app.state.export(served)
    return Response(content, 200, _attachment(served, ".onnx"), "application/octet-stream")


@router.get(
    "/models/{model}/folder",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}}},
)
async def as_folder(served: TheModel) -> StreamingResponse:
    """Download the model's folder as a ZIP file, with all versions."""
    file = await asyncio.to_thread(folder_as_zip, served)
    return StreamingResponse(chunks(file), 200, _attachment(served, ".zip"), "application/zip")


def _attachment(served: Served, suffix: str) -> dict[str, str]:
    stem = served.name.removesuffix(".lmrc")
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in stem)
    return {"Content-Disposition": f'attachment; filename="{safe}{suffix}"'}


def _quiet(line: str) -> None:
    """Print nothing."""


async def _change(served: Served, change: Callable[[], None]) -> dict[str, Any]:
    """Change a model, and return its description when predictions come from the new state."""
    if not store.holds_model(served.path):
        raise ApiError(409, "empty_model", f"{served.name} has not learnt anything yet")
    try:
        await asyncio.to_thread(change)
    except LockedError as error:
        raise ApiError(409, "locked", served.plain(error), retry_after=5) from error
    except (ValueError, OSError) as error:  # ModelFileError, too
        raise ApiError(409, "refused", served.plain(error)) from error
    await asyncio.to_thread(served.refresh)
    return await asyncio.to_thread(_outline, served)


def _label(text: str) -> str:
    try:
        return _class_name.validate_python(text)
    except ValidationError as error:
        raise ApiError(422, "bad_class", error.errors()[0]["msg"]) from error


async def _add(
    job: Job, uploads: list[tuple[str, Upload]], settings: Settings
) -> list[dict[str, Any]]:
    """Add images to a job, after each was decoded once."""
    if len(job.images) + len(uploads) > settings.max_pictures:
        most = settings.max_pictures
        raise ApiError(413, "too_many", f"a task may have {most:,} images at most")
    found = await asyncio.gather(
        *(decode(u.content, CHECKED_SIZE, "RGB", settings.max_pixels) for _, u in uploads),
        return_exceptions=True,
    )
    added: list[dict[str, Any]] = []
    for (label, upload), pixels in zip(uploads, found, strict=True):
        if isinstance(pixels, UnreadableImageError):
            problem = {"code": "unreadable_image", "message": reason(pixels)}
            added.append({"id": None, "name": upload.name, "error": problem})
        elif isinstance(pixels, BaseException):
            raise pixels
        else:
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            image = Image(secrets.token_urlsafe(9), label, upload.name, upload.content, digest)
            job.images[image.id] = image
            added.append({"id": image.id, "name": upload.name, "error": None})
    job.update()
    return added


def _start(jobs: Jobs, job: Job, options: schema.Options) -> None:
    """Start to learn a job."""
    path = job.served.path
    if unfinished.is_there(path):
        raise ApiError(
            409,
            "unfinished",
            "a task of this model was interrupted on the command line: continue it with lmrc learn "
            "--resume, or discard it with --discard",
        )
    chosen = {"backbone": options.backbone, "epochs": options.epochs}
    request = LearnRequest(
        SOURCE,
        {name: value for name, value in chosen.items() if value is not None},
        size=options.size,
        val=options.val,
        keep=None if store.holds_model(path) else KEPT_VERSIONS,
        device=job.served.device,
        method=options.method,
    )
    jobs.start(job, request, keep=options.keep)
