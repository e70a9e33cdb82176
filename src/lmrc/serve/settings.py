"""Settings of a server."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lmrc.practice.usage import UsageError

MEGA = 10**6


@dataclass(frozen=True)
class Settings:
    """What `lmrc serve` was started with."""

    path: Path  # a model, or a folder of models
    #: Where to listen.
    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""  # needed for everything but health; empty: none, on loopback only
    workers: int = 1  # processes; more than one only if `read_only`
    read_only: bool = False  # predict only
    device: str = "auto"  # device to compute on
    hosts: tuple[str, ...] = ()  # more host names that requests may be addressed to
    #: Limits: bytes of a request, pixels of an image, images of a request or of a task.
    max_upload: int = 64 * MEGA
    max_pixels: int = 25 * MEGA
    max_pictures: int = 5000
    max_memory: int = 1000 * MEGA  # bytes of all images that are held or being received
    #: Images that wait for a prediction, and those computed at once.
    max_queue: int = 1024
    max_batch: int = 64
    #: Time to receive a request, to learn a task, and to decide whether to keep it.
    request_seconds: float = 60.0
    learn_seconds: float = 4 * 3600.0
    decision_seconds: float = 3600.0

    def check(self) -> None:
        """Raise a UsageError for settings that are unsafe or do not work together."""
        if not self.token and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} can be reached from other machines: give a token, for example "
                "--token-file FILE or the variable LMRC_TOKEN"
            )
        if self.token and (len(self.token) < 16 or not self.token.isascii()):
            raise UsageError("the token needs at least 16 characters, all of them ASCII")
        if self.workers > 1 and not self.read_only:
            raise UsageError(
                "--workers needs --read-only: one process learns, several may predict from the "
                "same folder"
            )

    def to_json(self) -> str:
        """Return the settings as text, for worker processes."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings from `to_json`."""
        content = json.loads(text)
        return cls(**{**content, "path": Path(content["path"]), "hosts": tuple(content["hosts"])})


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
