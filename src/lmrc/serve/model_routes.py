"""The API of models: predict, classes, versions, downloads; health and metrics."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from lmrc.lock import LockedError
from lmrc.methods.calibrated import UNKNOWN_SHARE
from lmrc.practice import maintenance
from lmrc.practice.info import describe, history
from lmrc.practice.usage import printer
from lmrc.serve import schema
from lmrc.serve.downloads import chunks, folder_as_zip
from lmrc.serve.errors import ApiError
from lmrc.serve.jobs import Jobs
from lmrc.serve.served import Loaded, Served
from lmrc.serve.shared import CHANGES, ERRORS, IMAGES, TheJobs, TheModel, TheSettings
from lmrc.serve.uploads import decode, read_uploads
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.folder import ModelFileError

router = APIRouter(prefix="/v1", responses=ERRORS)
root = APIRouter()


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
    pixels = await decode(uploads, loaded.size, loaded.mode, settings.max_pixels)
    good = [found for found in pixels if isinstance(found, np.ndarray)]
    outputs = iter(await served.batcher.outputs(loaded, good))
    predictions = [
        {"name": upload.name, "class": None, "known": False, "best": [], "error": found}
        if isinstance(found, dict)
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
    outputs: tuple[Any, Any, Any],
    top: int,
    reject_below: float | None,
    unknown_share: float,
) -> dict[str, Any]:
    scores, probabilities, unknown = outputs
    best = loaded.classes.best(scores, probabilities, top)
    known = True
    if reject_below is not None:
        known = best[0].similarity >= reject_below
    elif unknown is not None and unknown_share:
        known = bool(unknown <= loaded.unknown_threshold(unknown_share))
    label = best[0].label if known else None
    plain = [scored.plain() for scored in best]
    return {"name": name, "class": label, "known": known, "best": plain, "error": None}


@router.post("/models/{model}/rollback", response_model=schema.Model, dependencies=CHANGES)
async def roll_back(served: TheModel, jobs: TheJobs) -> dict[str, Any]:
    """Delete the newest version; the one before it is the model again."""
    return await _change(served, jobs, maintenance.roll_back)


@router.post("/models/{model}/forget", response_model=schema.Model, dependencies=CHANGES)
async def forget(served: TheModel, jobs: TheJobs, of: schema.ClassRequest) -> dict[str, Any]:
    """Remove a class from all versions."""
    return await _change(served, jobs, maintenance.forget, of.label)


@router.post("/models/{model}/rename", response_model=schema.Model, dependencies=CHANGES)
async def rename(served: TheModel, jobs: TheJobs, of: schema.Rename) -> dict[str, Any]:
    """Rename a class in all versions."""
    return await _change(served, jobs, maintenance.rename, of.label, of.to)


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


async def _change(
    served: Served, jobs: Jobs, change: Callable[..., None], *names: str
) -> dict[str, Any]:
    """Change a model, and return its description when predictions come from the new state."""
    if not store.holds_model(served.path):
        raise ApiError(409, "empty_model", f"{served.name} has not learnt anything yet")
    jobs.check_decided(served)
    try:
        await asyncio.to_thread(change, served.path, *names, printer(quiet=True))
    except LockedError as error:
        raise ApiError(409, "locked", served.plain(error), retry_after=5) from error
    except (ValueError, OSError) as error:  # ModelFileError, too
        raise ApiError(409, "refused", served.plain(error)) from error
    await asyncio.to_thread(served.refresh)
    return await asyncio.to_thread(_outline, served)
