"""``lmrc check``: find mistakes in labelled images before they are learnt."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from lmrc.data.duplicates import Thumbprint, duplicates, thumbprint
from lmrc.data.folders import FEW_IMAGES, SET_ASIDE
from lmrc.data.image_files import ImageFiles, in_workers
from lmrc.data.images import THUMBNAIL, UnreadableImageError, name_of, read_image, thumbnail
from lmrc.evaluation.label_errors import confused_pairs, cross_validate
from lmrc.nets.network import build_encoder
from lmrc.practice.models import open_to_predict
from lmrc.practice.source import image_form, labelled_files, refuse_inside
from lmrc.practice.usage import Say, count, percent, warn
from lmrc.report import html
from lmrc.report.page import bare_page
from lmrc.report.records import encoded
from lmrc.report.summary import csv_text
from lmrc.store.files import write_atomically
from lmrc.training.device import pick_device
from lmrc.training.features import extract

BACKBONE, SIZE = "efficientnet-lite0", 224
AT_ONCE = 64  # images in memory
LOOKS_KNOWN = 0.8  # share of a new class's images that are taken for one known class
SHOWN = 60  # thumbnails in each section of the page

#: Kinds of findings, in the order of the page: the title, and what to do.
KINDS = {
    "unreadable": ("Files that cannot be read", "Replace or remove them."),
    "label": (
        "Probably the wrong label",
        "Judged by the other images, cross-validated; the most suspicious first. Move the image, "
        "or leave it if it is right.",
    ),
    "duplicate": (
        "Duplicate images",
        "Remove one. A copy in a test folder makes the accuracy look better than it is.",
    ),
    "known": ("New classes that look like a known one", "If they are the same, use one name."),
    "confused": ("Classes that will be hard to tell apart", "More images help, or merge them."),
    "few": ("Classes with few images", f"{FEW_IMAGES} or more make a class more reliable."),
}


@dataclass(frozen=True)
class Finding:
    """Something to look at."""

    kind: str  # one of `KINDS`
    files: tuple[str, ...]  # the images; empty where it is about a class
    label: str  # the class
    other: str  # another class, where there is one
    score: float  # the higher, the worse: from 0 to 1
    text: str  # in words


@dataclass(frozen=True, eq=False)
class _Images:
    paths: list[str]
    labels: NDArray[np.str_]
    held_out: NDArray[np.bool_]
    prints: list[Thumbprint]
    features: NDArray[np.float32]
    unreadable: list[Finding]


def check(
    source: Path,
    out: Path,
    *,
    model: Path | None = None,
    thumbnails: bool = True,
    device: str = "auto",
    say: Say = print,
) -> list[Finding]:
    """Check labelled images; write a page and a CSV file; return what was found, worst first.

    Test images in the source are compared, too. With the model that shall learn the images, it
    tells whether a new class looks like a known one.
    """
    refuse_inside(out, source, "the report", "choose another folder with --out")
    images = _read(source, device)
    findings = [*images.unreadable, *_duplicates(images), *_few(images)]
    train = ~images.held_out
    counts = Counter(images.labels[train].tolist())
    enough = train & np.array([counts[label] >= 2 for label in images.labels.tolist()], dtype=bool)
    if len({*images.labels[enough].tolist()}) > 1:
        findings += _label_errors(images, enough)
    else:
        warn("labels cannot be checked: that takes two classes with two images each")
    if model is not None:
        findings += _known_classes(images, model, device)
    order = list(KINDS)
    findings.sort(key=lambda found: (order.index(found.kind), -found.score))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "check.csv", encoded(_csv(findings)))
    write_atomically(out / "report.html", encoded(_page(source, images, findings, thumbnails)))
    say(f"{count(len(images.paths), 'image')} of {count(len(counts), 'class', 'classes')} checked")
    for kind, (title, _) in KINDS.items():
        of_kind = [found for found in findings if found.kind == kind]
        if of_kind:
            say(f"{title.lower()}: {len(of_kind)}, such as {of_kind[0].text}")
    if not findings:
        say("nothing was found")
    say(f"Report: {out / 'report.html'}")
    return findings


def _read(source: Path, device: str) -> _Images:
    """Decode every image once: for its features and for what tells duplicates."""
    files, held, _ = labelled_files(source, SET_ASIDE)
    encoder, _ = build_encoder(BACKBONE, (3, SIZE, SIZE))
    encoder = encoder.to(pick_device(device)).eval()
    paths, labels, held_out, prints, unreadable = [], [], [], [], []
    features: list[NDArray[np.float32]] = []
    pixels: list[NDArray[np.uint8]] = []

    def flush() -> None:
        if pixels:
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
            features.append(extract(encoder, x, 1, flip=False, bf16=False).numpy())
            pixels.clear()

    named = [
        (label, names, aside)
        for part, aside in ((files, False), (held, True))
        for label, names in part.items()
    ]
    every = ImageFiles([names for _, names, _ in named], (SIZE, SIZE), "RGB")
    of_file = [(label, aside) for label, names, aside in named for _ in names]
    for i, image in enumerate(in_workers(every.read, len(every))):
        (label, aside), name = of_file[i], name_of(every.path(i))
        if isinstance(image, UnreadableImageError):
            unreadable.append(Finding("unreadable", (name,), label, "", 1.0, str(image)))
            continue
        paths.append(name)
        labels.append(label)
        held_out.append(aside)
        prints.append(thumbprint(image))
        pixels.append(image)
        if len(pixels) == AT_ONCE:
            flush()
    flush()
    if not paths:
        raise ValueError(f"{source} has no image that can be read: give a folder of images")
    return _Images(
        paths,
        np.array(labels, dtype=str),
        np.array(held_out, dtype=bool),
        prints,
        np.concatenate(features),
        unreadable,
    )


def _duplicates(images: _Images) -> list[Finding]:
    found = []
    for first, second, kind, similarity in duplicates(images.prints):
        labels = [str(images.labels[i]) for i in (first, second)]
        parts = [bool(images.held_out[i]) for i in (first, second)]
        text = f"{images.paths[first]} and {images.paths[second]} ({kind})"
        score = similarity / 2
        if labels[0] != labels[1]:
            text += f", of {labels[0]} and of {labels[1]}"
            score += 0.5
        elif parts[0] != parts[1]:
            text += ", for training and for testing"
            score += 0.25
        files = (images.paths[first], images.paths[second])
        other = labels[1] if labels[1] != labels[0] else ""
        found.append(Finding("duplicate", files, labels[0], other, score, text))
    return found


def _few(images: _Images) -> list[Finding]:
    counts = Counter(images.labels[~images.held_out].tolist())
    return [
        Finding("few", (), label, "", 1 / n, f"{label}, with {count(n, 'image')}")
        for label, n in counts.items()
        if n < FEW_IMAGES
    ]


def _label_errors(images: _Images, rows: NDArray[np.bool_]) -> list[Finding]:
    labels = images.labels[rows]
    suggested, margin = cross_validate(images.features[rows], labels)
    found = [
        Finding(
            "label",
            (images.paths[i],),
            str(label),
            str(other),
            float(-value),
            f"{images.paths[i]}, labelled {label}, predicted {other}",
        )
        for i, label, other, value in zip(
            np.flatnonzero(rows), labels, suggested, margin, strict=True
        )
        if value < 0
    ]
    return found + [
        Finding("confused", (), label, other, share, f"{label} and {other} ({percent(share)})")
        for label, other, share in confused_pairs(labels, suggested)
    ]


def _known_classes(images: _Images, path: Path, device: str) -> list[Finding]:
    """Find new classes most of whose images the model takes for one known class."""
    model = open_to_predict(path, device)
    form, known = image_form(model.input_shape_), {str(label) for label in model.classes_}
    if len(known) < 2:
        return []  # all images would be taken for the only one
    found = []
    for label in dict.fromkeys(images.labels.tolist()):
        rows = np.flatnonzero((images.labels == label) & ~images.held_out)
        if label in known or not len(rows):
            continue
        X = np.asarray(ImageFiles([[Path(images.paths[i]) for i in rows]], *form))
        (best, n), *_ = Counter(model.predict(X).tolist()).most_common(1)
        share = n / len(rows)
        if share >= LOOKS_KNOWN:
            text = f"{label} looks like {best}: {percent(share)} of its images"
            found.append(Finding("known", (), label, str(best), share, text))
    return found


def _csv(findings: list[Finding]) -> str:
    head = ["kind", "score", "class", "other_class", "file", "other_file"]
    rows = [
        [found.kind, f"{found.score:.3f}", found.label, found.other, *[*found.files, "", ""][:2]]
        for found in findings
    ]
    return csv_text(head, rows)


def _page(source: Path, images: _Images, findings: list[Finding], thumbnails: bool) -> str:
    body = Markup("<h1>{}</h1>\n<p>{}</p>").format(
        f"{count(len(findings), 'finding')} in {source.name}",
        f"{count(len(images.paths), 'image')}. Everything is also in check.csv, beside this page.",
    )
    for kind, (title, advice) in KINDS.items():
        of_kind = [found for found in findings if found.kind == kind]
        if of_kind:
            body += Markup("<h2>{} ({})</h2>\n{}\n").format(title, len(of_kind), html.note(advice))
            body += _listed(of_kind, thumbnails and bool(of_kind[0].files) and kind != "unreadable")
    return bare_page(f"Check of {source.name}", body)


def _listed(findings: list[Finding], thumbnails: bool) -> Markup:
    if not thumbnails:
        return Markup("<ul>{}</ul>").format(
            html.joined(Markup("<li>{}</li>").format(found.text) for found in findings)
        )
    figures = [
        Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(
            html.joined(_shown(file) for file in found.files), found.text
        )
        for found in findings[:SHOWN]
    ]
    left = len(findings) - len(figures)
    more = html.note(f"{left} more are in check.csv.") if left else Markup()
    return Markup('<div class="grid">{}</div>{}').format(html.joined(figures), more)


def _shown(file: str) -> Markup:
    return html.thumbnail(thumbnail(read_image(file, THUMBNAIL))) + " "
