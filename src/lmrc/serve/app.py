"""The application: models, jobs and routes, behind the guard."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from lmrc import __version__
from lmrc.serve import job_routes, model_routes, pages
from lmrc.serve.downloads import OnnxExport
from lmrc.serve.errors import add_handlers
from lmrc.serve.guard import Guard
from lmrc.serve.jobs import Jobs
from lmrc.serve.metrics import Measured, Metrics
from lmrc.serve.served import find_models
from lmrc.serve.settings import Settings

VARIABLE = "LMRC_SERVE_SETTINGS"  # passes the settings to worker processes


def create_app(settings: Settings) -> FastAPI:
    """Return the application that serves the models of a path."""
    models, jobs = find_models(settings), Jobs(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await jobs.close()
        for served in models.values():
            served.batcher.close()

    app = FastAPI(
        title="lmrc",
        version=__version__,
        description="Teach class-incremental models, and predict with them.",
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.settings, app.state.models, app.state.jobs = settings, models, jobs
    app.state.metrics, app.state.export = Metrics(models, jobs), OnnxExport()
    for router in (model_routes.root, model_routes.router, job_routes.router, pages.router):
        app.include_router(router)
    add_handlers(app)
    app.add_middleware(Guard, settings=settings, held=lambda: jobs.held)
    app.add_middleware(Measured, metrics=app.state.metrics)
    return app


def from_environment() -> FastAPI:
    """Return the application of a worker process."""
    return create_app(Settings.from_json(os.environ[VARIABLE]))
