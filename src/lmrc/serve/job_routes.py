"""The API of jobs: collect images of a task, learn it, follow it, keep or discard the result."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter, ValidationError

from lmrc.data.class_names import similar_names
from lmrc.data.duplicates import copies, duplicates, thumbprint
from lmrc.data.folders import FEW_IMAGES
from lmrc.practice.learn import Request as LearnRequest
from lmrc.practice.usage import count
from lmrc.serve import schema
from lmrc.serve.errors import ApiError
from lmrc.serve.jobs import Image, Job, Jobs
from lmrc.serve.served import Served
from lmrc.serve.settings import Settings
from lmrc.serve.shared import (
    CHANGES,
    ERRORS,
    IMAGES,
    ONLY_FORM,
    TheJob,
    TheJobs,
    TheModel,
    TheSettings,
)
from lmrc.serve.uploads import Upload, decode, read_uploads
from lmrc.store import folder as store
from lmrc.store import unfinished

CHECKED_SIZE = 224, 224  # to which arriving images are decoded, to check them
MAX_COMPARED = 1000  # images, each with each, whenever some are added
KEPT_VERSIONS = 5  # of a model that the server creates
SOURCE = "images sent to lmrc serve"

router = APIRouter(prefix="/v1", responses=ERRORS)
_class_name = TypeAdapter(schema.ClassName)


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
    """Stop a job and drop its images; the model does not change."""
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
    settings: TheSettings,
    label: Annotated[schema.ClassName, Query(description="The class of the images.")],
) -> dict[str, Any]:
    """Add images of a class to a job; they stay in memory until it is learnt."""
    job.check_collects()
    uploads = await read_uploads(request, settings)
    return await _report(await _add(job, [(label, u) for u in uploads], settings), job)


@router.patch("/jobs/{job}/images", response_model=schema.AddedImages, dependencies=CHANGES)
async def move_images(job: TheJob, moved: schema.MovedImages) -> dict[str, Any]:
    """Move images of a job to another class, or remove them; unknown ids are ignored."""
    job.check_collects()
    for image in job.images.keys() & set(moved.images):
        if moved.label is None:
            del job.images[image]
        else:
            job.images[image].label = moved.label
    job.update()
    return await _report([], job)


def _findings(images: Sequence[Image], served: Served) -> list[dict[str, Any]]:
    """Return findings: a code, a message, and the ids of the images concerned.

    Similar images are reported only if their classes differ: frames of a webcam are always similar.
    """
    found = []
    prints = [image.thumbprint for image in images]
    for rows in copies(one.digest for one in prints):
        labels, ids = sorted({images[i].label for i in rows}), [images[i].id for i in rows]
        if len(labels) > 1:
            text = f"the same image is in {' and in '.join(labels)}: keep it in one of them only"
            found.append(_finding("two_classes", text, ids))
        else:
            text = f"{labels[0]} has {len(rows)} copies of the same image: keep one"
            found.append(_finding("duplicate", text, ids[1:]))
    for first, second, kind, _ in duplicates(prints) if len(images) <= MAX_COMPARED else ():
        one, other = images[first], images[second]
        if kind != "same pixels" and one.label != other.label:
            text = (
                f"{one.name} of {one.label} and {other.name} of {other.label} are nearly the same"
            )
            found.append(_finding("two_classes", text, [one.id, other.id]))
    counts = Counter(image.label for image in images)
    for label, other in similar_names(counts, served.known_classes()):
        text = f"{label} has nearly the same name as {other}"
        advice = "if they are the same class, give them the same name"
        found.append(_finding("name", f"{text}: {advice}", []))
    for label, n in counts.items():
        if n < FEW_IMAGES:
            found.append(_finding("few", f"{label} has only {count(n, 'image')}: add some", []))
    return found


def _finding(code: str, message: str, images: list[str]) -> dict[str, Any]:
    return {"code": code, "message": message, "images": images}


async def _report(added: list[dict[str, Any]], job: Job) -> dict[str, Any]:
    found = await asyncio.to_thread(_findings, list(job.images.values()), job.served)
    return {"added": added, "findings": found, "job": job.describe()}


@router.post("/jobs/{job}/learn", status_code=202, response_model=schema.Job, dependencies=CHANGES)
async def learn_job(job: TheJob, jobs: TheJobs, options: schema.Options) -> dict[str, Any]:
    """Learn the images of a job, in a process of its own."""
    job.check_collects()
    _start(jobs, job, options)
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
    """Discard what was learnt; the model does not change."""
    return await _decide(jobs, job, "discard")


async def _decide(jobs: Jobs, job: Job, decision: str) -> dict[str, Any]:
    jobs.decide(job, decision)
    if job.run is not None:
        await asyncio.wait([job.run])
    if job.error:
        raise ApiError(409, job.error["code"], job.error["message"])
    return job.describe()


def _label(text: str) -> str:
    try:
        return _class_name.validate_python(text)
    except ValidationError as error:
        raise ApiError(422, "bad_class", error.errors()[0]["msg"]) from error


async def _add(
    job: Job, uploads: list[tuple[str, Upload]], settings: Settings
) -> list[dict[str, Any]]:
    """Add images to a job, if they can be decoded."""
    if len(job.images) + len(uploads) > settings.max_pictures:
        most = settings.max_pictures
        raise ApiError(413, "too_many", f"a task may have {most:,} images at most")
    found = await decode([u for _, u in uploads], CHECKED_SIZE, "RGB", settings.max_pixels)
    job.check_collects()  # it may have been cancelled meanwhile
    added: list[dict[str, Any]] = []
    for (label, upload), pixels in zip(uploads, found, strict=True):
        if isinstance(pixels, dict):
            added.append({"id": None, "name": upload.name, "error": pixels})
        else:
            seen = thumbprint(pixels)
            image = Image(secrets.token_urlsafe(9), label, upload.name, upload.content, seen)
            job.images[image.id] = image
            added.append({"id": image.id, "name": upload.name, "error": None})
    job.update()
    return added


def _start(jobs: Jobs, job: Job, options: schema.Options) -> None:
    """Start to learn a job."""
    path = job.served.path
    if unfinished.has_progress(path):
        raise ApiError(
            409,
            "unfinished",
            "lmrc learn was interrupted for this model: continue it on the command line with "
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
