"""Schemas of requests and responses, for validation and the OpenAPI description."""

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Label = str | int | float | bool


def check_label(text: str) -> str:
    """Return the normalised name of a class; raise a ValueError if it is invalid."""
    text = unicodedata.normalize("NFC", text.strip())
    if not text:
        raise ValueError("the name of a class is empty")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
        raise ValueError("the name of a class has control characters")
    return text


ClassName = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(check_label)]


class Problem(BaseModel):
    """A code for programs and a message for people."""

    code: str
    message: str


class Error(BaseModel):
    """The body of every error."""

    error: Problem


class Scored(BaseModel):
    """A candidate class of an image."""

    label: Label = Field(alias="class")
    similarity: float
    probability: float | None
    head: int


class Prediction(BaseModel):
    """The best classes of an image; `class` is null if it is unknown."""

    name: str
    label: Label | None = Field(alias="class")
    known: bool
    best: list[Scored]
    error: Problem | None


class Predictions(BaseModel):
    """The predictions of one version of a model."""

    model: str
    version: int
    predictions: list[Prediction]


class Input(BaseModel):
    """The size and channels of a model's images."""

    height: int
    width: int
    channels: int


class Version(BaseModel):
    """A stored version."""

    model_config = ConfigDict(extra="allow")
    version: int
    saved: str
    classes: int


class ClassOf(BaseModel):
    """A class and its head."""

    name: Label
    head: int


class Model(BaseModel):
    """A model."""

    name: str
    empty: bool
    version: int
    problem: str
    classes: list[ClassOf] = []
    versions: list[Version] = []
    input: Input | None = None
    backbone: str | None = None
    parameters: int = 0
    bytes: int = 0
    bytes_of_all_versions: int = 0
    exemplars: int = 0
    earlier_versions_with_exemplars: int = 0
    unfinished: bool = False
    busy: bool = False


class Models(BaseModel):
    """The models of a server."""

    models: list[Model]
    read_only: bool


class Options(BaseModel):
    """How to learn a task; `method`, `backbone` and `size` are for the first task only."""

    model_config = ConfigDict(extra="forbid")
    val: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="Share of each class to hold out for validation. By default a fifth; none with "
        "a frozen backbone, whose accuracy is measured by leave-one-out.",
    )
    keep: bool = Field(False, description="Keep the result without waiting for a decision.")
    method: Literal["lmrc", "lmrc+"] | None = None
    backbone: Literal["auto", "mlp", "cnn", "resnet18", "efficientnet-lite0"] | None = None
    size: int | None = Field(None, ge=8, le=512)
    epochs: int | None = Field(None, ge=1, le=1000)


class MovedImages(BaseModel):
    """Ids of images of a job, and their new class; null removes them."""

    model_config = ConfigDict(extra="forbid")
    images: list[str] = Field(max_length=100_000)
    label: ClassName | None = Field(alias="class")


class ClassRequest(BaseModel):
    """Names a class."""

    model_config = ConfigDict(extra="forbid")
    label: str = Field(alias="class", min_length=1, max_length=500)


class Rename(ClassRequest):
    """Names a class and its new name."""

    to: ClassName


class Progress(BaseModel):
    """Epochs done and in total."""

    done: int
    total: int
    seconds_left: float | None


class Job(BaseModel):
    """A task; `images` counts the collected images of each class."""

    id: str
    model: str
    state: Literal["collecting", "learning", "waiting", "kept", "discarded", "failed", "cancelled"]
    stage: str
    created: str
    images: dict[str, int]
    n_images: int
    progress: Progress
    result: dict[str, Any] | None
    warnings: list[str]
    error: Problem | None


class JobList(BaseModel):
    """All jobs that the server remembers."""

    jobs: list[Job]


class Added(BaseModel):
    """An image that was added to a job, or why it was not."""

    id: str | None
    name: str
    error: Problem | None


class Finding(BaseModel):
    """A problem that may make the model inaccurate."""

    code: str
    message: str
    images: list[str]


class AddedImages(BaseModel):
    """The images of a request, added or refused, and problems among all images of the job."""

    added: list[Added]
    findings: list[Finding]
    job: Job


class Health(BaseModel):
    """The server runs."""

    status: Literal["ok"]
