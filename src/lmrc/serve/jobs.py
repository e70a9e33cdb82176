"""Tasks that clients let the server learn, each in a process of its own."""

import asyncio
import contextlib
import json
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from lmrc.data.duplicates import Thumbprint
from lmrc.lock import LockedError
from lmrc.practice.learn import Request
from lmrc.serve.errors import ApiError
from lmrc.serve.served import Served
from lmrc.serve.settings import Settings
from lmrc.store import folder as store

COLLECTING, LEARNING, WAITING = "collecting", "learning", "waiting"
KEPT, DISCARDED, FAILED, CANCELLED = "kept", "discarded", "failed", "cancelled"
ENDED = (KEPT, DISCARDED, FAILED, CANCELLED)
MAX_JOBS = 100  # that are remembered
IDLE_SECONDS = 1800.0  # after which collected images are dropped
ALIVE_SECONDS = 15.0  # between keep-alive comments of a stream of events
_LINE = 2**20  # bytes of a line of the learner


@dataclass(eq=False)
class Image:
    """An image of a task, in memory."""

    id: str
    label: str
    name: str
    content: bytes
    thumbprint: Thumbprint


@dataclass(eq=False)
class Job:
    """A task: its images are collected, it is learnt, and the result is kept or discarded."""

    id: str
    served: Served  # the model that learns it
    #: Collected images by id; empty as soon as the learner has them.
    images: dict[str, Image] = field(default_factory=dict)
    #: "collecting", "learning", "waiting" (for the decision), "kept", "discarded", "failed" or
    #: "cancelled".
    state: str = COLLECTING
    stage: str = ""  # what the learner is doing
    #: Epochs.
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    n_images: int = 0
    note: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    error: dict[str, str] | None = None
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    touched: float = field(default_factory=monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    run: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether a process learns it, or holds the result."""
        return self.state in (LEARNING, WAITING)

    def check_collects(self) -> None:
        """Raise an ApiError if the job is being learnt or has ended."""
        if self.state != COLLECTING:
            raise ApiError(409, "not_collecting", f"the job is {self.state}: create a new one")

    def update(self, **values: Any) -> None:
        """Change attributes, and notify the streams of events."""
        for name, value in values.items():
            setattr(self, name, value)
        self.touched = monotonic()
        self.changed.set()
        self.changed = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """Return the job as JSON values."""
        return {
            "id": self.id,
            "model": self.served.name,
            "state": self.state,
            "stage": self.stage,
            "created": self.created,
            "images": dict(Counter(image.label for image in self.images.values())),
            "n_images": len(self.images) or self.n_images,
            "progress": {
                "done": self.done,
                "total": self.total,
                "seconds_left": self.seconds_left,
            },
            "result": self.note or None,
            "warnings": self.warnings,
            "error": self.error,
        }


class Jobs:
    """All jobs of a server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.closing = False
        self.command = (sys.executable, "-m", "lmrc.serve.learner")
        self._jobs: dict[str, Job] = {}
        self._spare: asyncio.Task[Process] | None = None

    def __iter__(self) -> Any:
        return iter(self._jobs.values())

    @property
    def held(self) -> int:
        """Bytes of the images that are held."""
        return sum(len(i.content) for job in self for i in job.images.values())

    def create(self, served: Served) -> Job:
        """Create a job, which collects images."""
        self._drop_old()
        if self._spare is None:  # to be ready when there are images
            self._spare = asyncio.create_task(self._start_process())
        job = Job(secrets.token_urlsafe(9), served)
        self._jobs[job.id] = job
        return job

    def get(self, job_id: str) -> Job:
        """Return a job by its id."""
        self._drop_old()
        try:
            return self._jobs[job_id]
        except KeyError:
            raise ApiError(
                404, "no_job", "there is no such job; it may have been dropped"
            ) from None

    def _drop_old(self) -> None:
        for job in list(self._jobs.values()):
            if job.state == COLLECTING and monotonic() - job.touched > IDLE_SECONDS:
                del self._jobs[job.id]
        ended = [job for job in self._jobs.values() if not job.is_active]
        for job in ended[: max(0, len(self._jobs) - MAX_JOBS)]:
            del self._jobs[job.id]

    def start(self, job: Job, request: Request, *, keep: bool) -> None:
        """Start to learn a job's images; the server no longer keeps them."""
        if not job.images:
            raise ApiError(422, "no_images", "the job has no images")
        self.check_decided()
        for other in self:
            if other.is_active:
                same = "this model" if other.served is job.served else "another model"
                raise ApiError(409, "busy", f"a task of {same} is being learnt", retry_after=5)
        if holder := store.changing(job.served.path):
            raise ApiError(409, "locked", f"the model is being changed by {holder}", retry_after=5)
        images = list(job.images.values())
        job.images = {}
        job.update(state=LEARNING, stage="starting", n_images=len(images))
        job.run = asyncio.create_task(self._learn(job, images, request, keep))

    async def _learn(self, job: Job, images: list[Image], request: Request, keep: bool) -> None:
        try:
            async with asyncio.timeout(self.settings.learn_seconds) as limit:
                process = job.process = await self._learner()
                if job.is_active:  # else it was cancelled while the process started
                    await _send(process, job.served.path, images, request, keep)
                    await self._follow(job, process, limit)
        except TimeoutError:
            late = job.state == WAITING
            text = "no decision came in time" if late else "learning took too long"
            job.update(state=DISCARDED if late else FAILED, error=_error("timeout", text))
        except Exception as error:
            if job.is_active:
                job.update(state=FAILED, error=_error("failed", job.served.plain(error)))
        finally:
            await _end(job)

    async def _learner(self) -> Process:
        """Return the spare process, or a new one."""
        spare, self._spare = self._spare, None
        process = await spare if spare is not None else None
        return process if process and process.returncode is None else await self._start_process()

    async def _start_process(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *self.command, stdin=PIPE, stdout=PIPE, limit=_LINE
        )

    async def _follow(self, job: Job, process: Process, limit: asyncio.Timeout) -> None:
        """Update the job by the learner's messages, until the process ends."""
        assert process.stdout is not None
        loop, before = asyncio.get_running_loop(), store.fingerprint(job.served.path)
        async for line in process.stdout:
            told = json.loads(line)
            if "warning" in told:
                job.update(warnings=[*job.warnings, job.served.plain(told["warning"])][-20:])
            elif "error" in told:
                kind = "locked" if told["kind"] == LockedError.__name__ else "failed"
                job.update(state=FAILED, error=_error(kind, job.served.plain(told["error"])))
            elif told.get("stage") == "waiting":
                job.update(state=WAITING, stage="waiting", note=told["note"], seconds_left=None)
                limit.reschedule(loop.time() + self.settings.decision_seconds)
            elif told.get("stage") == "done" and job.state != DISCARDED:
                await asyncio.to_thread(job.served.refresh)
                job.update(state=KEPT, stage="")
            elif told.get("stage") == "discarded":
                job.update(state=DISCARDED, stage="")
            elif "stage" in told:
                job.update(**told)
        await process.wait()
        if job.state in ENDED:
            return
        await asyncio.to_thread(job.served.refresh)
        if job.stage == "writing" and store.fingerprint(job.served.path) != before:
            job.update(state=KEPT, stage="")  # it died when the version was written
        else:
            text = "the learning process ended unexpectedly"
            job.update(state=FAILED, error=_error("learner_died", text))

    def check_decided(self, served: Served | None = None) -> None:
        """Raise an ApiError if a result, of one model or of any, waits for Keep or Discard."""
        for job in self:
            if job.state == WAITING and served in (None, job.served):
                name = job.served.name
                text = f"a result of {name} is waiting in Teach: keep or discard it first"
                raise ApiError(409, "busy", text, retry_after=5)

    def decide(self, job: Job, decision: str) -> None:
        """Keep or discard what was learnt."""
        if job.state != WAITING or job.process is None or job.process.stdin is None:
            raise ApiError(409, "not_waiting", f"the job is {job.state}: there is nothing to keep")
        job.process.stdin.write(f"{decision}\n".encode())
        job.update(state=LEARNING, stage="writing" if decision == "keep" else "discarding")

    async def cancel(self, job: Job) -> None:
        """Stop a job and drop its images; the model does not change."""
        if job.stage == "writing":
            raise ApiError(409, "writing", "the new version is being written", retry_after=1)
        job.images = {}
        if job.state == COLLECTING:
            job.update(state=CANCELLED)
        elif job.is_active:
            job.update(state=CANCELLED, stage="")
            if job.process is not None:
                _kill(job.process)
            if job.run is not None:
                await asyncio.wait([job.run])

    async def events(self, job: Job) -> AsyncIterator[str]:
        """Yield the state of a job at each change, as server-sent events, until it has ended."""
        while not self.closing:
            changed = job.changed
            yield f"event: job\ndata: {json.dumps(job.describe())}\n\n"
            if job.state in ENDED:
                return
            while not changed.is_set():
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield ": alive\n\n"

    def end_streams(self) -> None:
        """End all streams of events."""
        self.closing = True
        for job in self:
            job.update()

    async def close(self) -> None:
        """End all learning processes."""
        self.end_streams()
        for job in list(self):
            with contextlib.suppress(ApiError):
                await self.cancel(job)
            if job.run is not None:
                await asyncio.wait([job.run], timeout=10)
        if self._spare is not None:
            spare = await self._spare
            _kill(spare)
            await spare.wait()


def _error(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


async def _send(
    process: Process, path: Path, images: list[Image], request: Request, keep: bool
) -> None:
    """Pass a task to the process that learns it."""
    listed = [{"label": i.label, "name": i.name, "bytes": len(i.content)} for i in images]
    head = {"path": str(path), "request": asdict(request), "images": listed, "keep": keep}
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it has died, which is noticed next
        process.stdin.write(json.dumps(head).encode() + b"\n")
        while images:
            process.stdin.write(images.pop(0).content)
            await process.stdin.drain()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)  # files are written atomically


async def _end(job: Job) -> None:
    """End the process of a job, and remove files that a killed one left."""
    if job.process is None:
        return
    _kill(job.process)
    await job.process.wait()
    job.process = None
    if job.state != KEPT:
        with contextlib.suppress(Exception):
            await asyncio.to_thread(_tidy, job.served.path)


def _tidy(path: Path) -> None:
    with store.writing(path):
        pass
