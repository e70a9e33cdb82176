"""Models on Ray Serve: replicas on one or more machines, which only predict.

All replicas read the same folder on a shared file system and switch to its newest version, which
`lmrc serve` or `lmrc learn` writes elsewhere. Needs ``pip install 'ray[serve]'``.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from lmrc.practice.usage import UsageError
from lmrc.serve.app import create_app
from lmrc.serve.settings import Settings

ARGUMENTS = ("path", "token", "token_file", "device", "allow_host", "replicas")
MAX_REQUESTS = 100  # at once, of a replica: they are computed together


def build(args: Mapping[str, Any]) -> Any:
    """Return the application, for ``serve run lmrc.serve.ray_app:build path=…`` or a config file.

    Parameters
    ----------
    args : mapping
        ``path``: the model, or a folder of models. ``token`` or ``token_file``, or the variable
        ``LMRC_TOKEN``: needed, since a cluster can be reached from other machines. ``device``;
        ``allow_host``: names of the server, separated by commas; ``replicas``: their number, or
        "auto", the default: as many as requests need.

    Returns
    -------
    ray.serve.Application
    """
    from ray import serve

    settings = settings_from(args)

    def application() -> FastAPI:
        return create_app(settings)  # on the replica

    replicas = args.get("replicas", "auto")
    deployment = serve.deployment(
        serve.ingress(application)(),
        name="lmrc",
        num_replicas="auto" if replicas == "auto" else int(replicas),
        max_ongoing_requests=MAX_REQUESTS,
    )
    return deployment.bind()


def settings_from(args: Mapping[str, Any]) -> Settings:
    """Return the settings of a replica.

    Raises `UsageError` if an argument is missing or unknown, or if there is no token.
    """
    if unknown := sorted(set(args) - set(ARGUMENTS)):
        raise UsageError(f"there is no argument {unknown[0]!r}, only {', '.join(ARGUMENTS)}")
    if "path" not in args:
        raise UsageError("the argument path is missing: path=MODEL_OR_FOLDER")
    token = str(args.get("token") or os.environ.get("LMRC_TOKEN", ""))
    if file := args.get("token_file"):
        token = Path(file).read_text(encoding="utf-8").strip()
    names = tuple(filter(None, str(args.get("allow_host", "")).split(",")))
    path = Path(args["path"]).absolute()
    settings = Settings(path, host="0.0.0.0", token=token, read_only=True, hosts=names)
    settings = replace(settings, device=str(args.get("device", settings.device)))
    settings.check()
    return settings
