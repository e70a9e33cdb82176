"""The application (models, jobs and routes, behind the guard), and the server that runs it."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lmrc import __version__
from lmrc.practice.usage import Say, count
from lmrc.serve import job_routes, model_routes, pages
from lmrc.serve.downloads import OnnxExport
from lmrc.serve.errors import add_handlers
from lmrc.serve.guard import Guard
from lmrc.serve.jobs import Jobs
from lmrc.serve.metrics import Measured, Metrics
from lmrc.serve.served import find_models
from lmrc.serve.settings import Settings

VARIABLE = "LMRC_SERVE_SETTINGS"  # passes the settings to worker processes
GRACE = 5  # seconds for requests that are being answered when the server stops
CONNECTIONS = 1000
BACKLOG = 2048


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


class Server(uvicorn.Server):
    """Ends streams of events first on Ctrl-C and SIGTERM, and exits with code 0."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal does not wait for requests."""
        self.force_exit = self.should_exit
        self.should_exit = True
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.jobs.end_streams()


def run(settings: Settings, say: Say) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    app = create_app(settings)  # fails before the port is taken
    listening = _listen(settings.host, settings.port)
    say(_greeting(settings, app, listening.getsockname()[1]))
    options = {
        "log_level": "warning",
        "timeout_graceful_shutdown": GRACE,
        "limit_concurrency": CONNECTIONS,
        "server_header": False,
        "backlog": BACKLOG,
    }
    if settings.workers == 1:
        Server(uvicorn.Config(app, **options)).run([listening])  # type: ignore[arg-type]
    else:
        os.environ[VARIABLE] = settings.to_json()
        factory = "lmrc.serve.app:from_environment"
        uvicorn.run(
            factory,
            factory=True,
            workers=settings.workers,
            fd=listening.fileno(),
            **options,  # type: ignore[arg-type]
        )
    say("stopped")


def _listen(host: str, port: int) -> socket.socket:
    listening = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # With the protocol named, asyncio sets TCP_NODELAY: else each answer waits 40 ms.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        reason = error.strerror or error
        raise OSError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port"
        ) from error
    listening.set_inheritable(True)
    return listening


def _greeting(settings: Settings, app: FastAPI, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = list(app.state.models)
    what = names[0] if len(names) == 1 else count(len(names), "model")
    return f"{what} at http://{host}:{port}  (Ctrl-C stops)"
