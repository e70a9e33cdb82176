"""Predictions per second and latency of `lmrc serve`, beside the same network served plainly.

Plainly is FastAPI with one function that reads the upload, runs torch and returns the class: what a
tutorial builds, without batching. Both servers run in processes of their own, one after the other,
and this process generates the load: clients that each send one image, wait for the answer and send
the next. Then versions are switched under load, and every request is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

import lmrc
from lmrc.practice.learn import Request, learn
from lmrc.serve.learner import UploadedImage

CLIENTS = (1, 8, 64)
SWITCHES, SWITCH_REQUESTS, SWITCH_CLIENTS = 20, 10_000, 16
NAMES = ("a", "b", "c", "d")
KINDS = "plain", "lmrc serve"
NETWORKS = (("cnn", 32), ("resnet18", 32), ("efficientnet-lite0", 224))  # and sides of images


def pictures(side: int, n: int) -> list[bytes]:
    """Return photographs' stand-ins: smooth noise in colour, as JPEG files."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def make_model(path: Path, backbone: str, side: int) -> None:
    """Learn four classes in one epoch; how good they are does not matter here."""
    contents = iter(pictures(side, 5 * len(NAMES)))
    images = {n: [UploadedImage(next(contents), n) for _ in range(5)] for n in NAMES}
    settings: dict[str, Any] = {"backbone": backbone, "epochs": 1}
    method = "lmrc+" if "efficientnet" in backbone else "lmrc"
    request = Request("noise", settings, size=None if method == "lmrc+" else side, method=method)
    learn(path, request, images=images, quiet=True, say=lambda line: None)


def plain(path: str, port: int) -> None:
    """Serve the model plainly."""
    from lmrc.data.images import read_image
    from lmrc.practice.models import open_to_predict
    from lmrc.practice.source import image_form

    model, app = open_to_predict(Path(path)), FastAPI()
    form, labels = image_form(model.input_shape_), model.classes_.tolist()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/models/{name}/predict")
    def predict(name: str, image: UploadFile) -> dict[str, Any]:
        scores = model.similarities(read_image(image.file, *form)[None])[0]
        best = int(scores.argmax())
        return {"class": labels[best], "similarity": float(scores[best])}

    uvicorn.run(app, port=port, log_level="warning")


@contextmanager
def server(kind: str, path: Path, port: int) -> Iterator[int]:
    """Run a server until the block ends; yields the number of its process."""
    ours = [sys.executable, "-m", "lmrc", "serve", str(path), "--port", str(port), "-q"]
    other = [sys.executable, __file__, "--plain", str(path), str(port)]
    process = subprocess.Popen(ours if kind == "lmrc serve" else other)
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def request_of(content: bytes, name: str, port: int, query: str = "") -> bytes:
    """Return a request with one image in a form."""
    start = b'--b\r\nContent-Disposition: form-data; name="image"; filename="i.jpg"\r\n\r\n'
    body = start + content + b"\r\n--b--\r\n"
    head = (
        f"POST /v1/models/{name}/predict{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(int(x.split(b":")[1]) for x in lines if x.lower().startswith(b"content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def client(
    port: int, requests: list[bytes], until: float, left: list[int], seconds: list[float]
) -> list[tuple[int, bytes]]:
    """Send requests one after the other, until a time or until none is left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    while time.perf_counter() < until and left[0] > 0:
        left[0] -= 1
        began = time.perf_counter()
        writer.write(requests[left[0] % len(requests)])
        answers.append(await ask(reader))
        seconds.append(time.perf_counter() - began)
    writer.close()
    return answers


class Measured(NamedTuple):
    """What a server does under load."""

    rate: float  # predictions per second
    p99: float  # 99th percentile of the latency, in seconds
    server: (
        float  # CPU seconds of the server for each prediction, which other programs disturb less
    )
    generator: float  # share of one core that it took to send the requests


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process and its threads."""
    try:
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux
        return float("nan")
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, process: int, requests: list[bytes], n: int, duration: float) -> Measured:
    """Measure a server for some seconds."""
    for timed in (False, True):  # first to warm up
        seconds: list[float] = []
        began, used = time.perf_counter(), time.process_time()
        before = cpu_seconds(process)
        until = began + (duration if timed else min(2.0, duration))
        clients = (client(port, requests, until, [10**9], seconds) for _ in range(n))
        answers = [a for part in await asyncio.gather(*clients) for a in part]
        taken, used = time.perf_counter() - began, time.process_time() - used
        if bad := [a for a in answers if a[0] != 200]:
            raise RuntimeError(f"{len(bad)} requests failed, such as {bad[0]}")
    each = (cpu_seconds(process) - before) / len(seconds)
    return Measured(len(seconds) / taken, float(np.percentile(seconds, 99)), each, used / taken)


async def switch(port: int, path: Path, requests: list[bytes]) -> tuple[int, int, int]:
    """Ask while versions are switched; return requests, switches, and requests that failed."""
    left, seconds = [SWITCH_REQUESTS], list[float]()
    allowed = [set(NAMES), {*NAMES[:-1], "e"}]

    async def rename() -> int:
        """Rename a class there and back, spread over all the requests."""
        for i in range(SWITCHES):
            target = SWITCH_REQUESTS - (i + 1) * SWITCH_REQUESTS // (SWITCHES + 1)
            while left[0] > target:
                await asyncio.sleep(0.01)
            old, new = (NAMES[-1], "e") if i % 2 == 0 else ("e", NAMES[-1])
            command = [sys.executable, "-m", "lmrc", "rename", str(path), old, new, "-q"]
            if i % 2:  # half of them by the command line, in a process of its own
                process = await asyncio.create_subprocess_exec(*command)
                if await process.wait():
                    raise RuntimeError("rename failed")
                continue
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = json.dumps({"class": old, "to": new}).encode()
            head = (
                f"POST /v1/models/{path.name}/rename HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            status, text = await ask(reader)
            writer.close()
            if status != 200:
                raise RuntimeError(text.decode())
        return SWITCHES

    clients = [client(port, requests, float("inf"), left, seconds) for _ in range(SWITCH_CLIENTS)]
    switches, parts = await asyncio.gather(rename(), asyncio.gather(*clients))
    answers = [a for part in parts for a in part]
    failed = 0
    for status, text in answers:
        best = json.loads(text)["predictions"][0]["best"] if status == 200 else []
        failed += {entry["class"] for entry in best} not in allowed
    return len(answers), switches, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", nargs=2, metavar=("MODEL", "PORT"), help="serve plainly")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--networks", nargs="+", choices=dict(NETWORKS), default=[*dict(NETWORKS)])
    options = parser.parse_args()
    if options.plain:
        plain(options.plain[0], int(options.plain[1]))
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{platform.machine()}, {cores} cores, torch {torch.__version__}{busy}\n")
    columns = ("network", "image", "clients", *(f"{kind}, per s (p99)" for kind in KINDS), "ratio")
    columns += (*(f"{kind}, CPU each" for kind in KINDS), "ratio")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * 2}{' ---: |' * (len(columns) - 2)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, generator = Path(tempfile.mkdtemp()), 0.0
    try:
        for backbone, side in ((n, dict(NETWORKS)[n]) for n in options.networks):
            path = folder / f"{backbone}.lmrc"
            make_model(path, backbone, side)
            requests = [request_of(c, path.name, port) for c in pictures(side, 16)]
            measured: dict[tuple[str, int], list[Measured]] = {}
            for _ in range(options.rounds):
                for kind in KINDS:
                    with server(kind, path, port) as process:
                        for n in CLIENTS:
                            found = asyncio.run(load(port, process, requests, n, options.seconds))
                            measured.setdefault((kind, n), []).append(found)
            for n in CLIENTS:
                best = [max(measured[kind, n]) for kind in KINDS]  # of the rounds
                least = [min(m.server for m in measured[kind, n]) for kind in KINDS]
                generator = max(generator, *(m.generator for m in best))
                cells = [f"{m.rate:,.0f} ({1000 * m.p99:,.0f} ms)" for m in best]
                cells += [f"{best[1].rate / best[0].rate:.1f}"]
                cells += [f"{1000 * each:.1f} ms" for each in least]
                cells += [f"{least[0] / least[1]:.1f}"]
                print(f"| {backbone} | {side} | {n} | {' | '.join(cells)} |", flush=True)
        print(f"\nThe load generator took {generator:.0%} of one core at most.")
        path = folder / f"{options.networks[0]}.lmrc"
        requests = [request_of(c, path.name, port, "?top=4") for c in pictures(32, 16)]
        with server("lmrc serve", path, port):
            asked, switches, failed = asyncio.run(switch(port, path, requests))
        print(f"\n{asked:,} requests of {SWITCH_CLIENTS} clients during {switches} switches: "
              f"{failed} failed")  # fmt: skip
        assert lmrc.load(path).classes_.tolist()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
