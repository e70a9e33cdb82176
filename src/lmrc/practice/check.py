"""``lmrc check``: find mistakes in labelled images before they are learnt."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from lmrc.data.duplicates import PLAIN, Thumbprint, duplicates, thumbprint
from lmrc.data.folders import FEW_IMAGES, class_name, folders_of_classes, image_files
from lmrc.data.image_files import ImageFiles, in_workers, progress
from lmrc.data.images import (
    NOT_READ,
    THUMBNAIL,
    ImageFile,
    Pixels,
    UnreadableImageError,
    image_size,
    name_of,
    read_image,
    thumbnail,
    walk_images,
)
from lmrc.evaluation.label_errors import confused_pairs, cross_validate
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.nets.network import build_encoder
from lmrc.practice.learn_output import DIFFERENT
from lmrc.practice.models import open_to_predict, outputs_of
from lmrc.practice.source import image_form, labelled_files, refuse_inside
from lmrc.practice.usage import Say, UsageError, count, percent, warn
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
#: A small image: its shorter side has fewer pixels, and less than a fourth of what is usual there.
SMALL, USUAL = 64, 4
MAX_PAIRS = 3  # that an image is the second of: of frames of a video, all are similar
LONG = 3  # times the shorter side: of such an image only the middle third is seen

#: Kinds of findings, in the order of the page: the title, and what to do.
KINDS = {
    "unreadable": ("Files that cannot be read", "Replace or remove them."),
    "suspicious": (
        "Suspicious images",
        "Of one colour, much smaller than the others, or so long that only the middle is seen: "
        "replace or remove them.",
    ),
    "label": (
        "Probably the wrong label",
        "Judged by the other images, cross-validated, and those of known classes by the model; the "
        "most suspicious first. Move the image, or leave it if it is right.",
    ),
    "duplicate": (
        "Duplicate images",
        "Remove one. A copy in a test folder makes the accuracy look better than it is.",
    ),
    "known": ("New classes that look like a known one", "If they are the same, use one name."),
    "drift": (
        "Known classes whose new images differ",
        "The model recognises few of them. A wrong folder, or has the class changed?",
    ),
    "confused": ("Classes that will be hard to tell apart", "More images help, or merge them."),
    "few": (
        "Classes with few images",
        f"{FEW_IMAGES} or more make a class more reliable. Remove empty folders.",
    ),
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
    names: list[str]  # short, for people: relative to the source
    labels: NDArray[np.str_]
    parts: NDArray[np.str_]  # the sub-folder that it is set aside in; empty for training images
    prints: list[Thumbprint]
    features: NDArray[np.float32]
    findings: list[Finding]  # files that cannot be read, and suspicious ones

    @property
    def train(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.parts == ""
        return found


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

    Test and validation images in the source are compared, too. With the model that shall learn the
    images, it tells whether a new class looks like a known one, and whether images of known classes
    are recognised.
    """
    refuse_inside(out, source, "the report", "choose another folder with --out")
    if source.suffix.lower() == ".npz":
        raise UsageError(f"{source} has arrays: lmrc check is for image files")
    judge = None if model is None else open_to_predict(model, device)
    if judge is not None:
        image_form(judge.input_shape_)  # before the images are read, which may take long
    images = _read(source, device)
    counts = Counter(images.labels[images.train].tolist())
    enough = images.train & np.array([counts[label] > 1 for label in images.labels.tolist()])
    known = [] if judge is None else [class_name(str(label)) for label in judge.classes_.tolist()]
    findings = [*images.findings, *_duplicates(images), *_few(counts, known)]
    judged = _by_model(images, judge, known) if judge is not None and len(known) > 1 else []
    if len({*images.labels[enough].tolist()}) > 1:
        findings += _label_errors(images, enough)
    elif len(known) < 2 or not counts.keys() <= {*known}:
        warn("labels cannot be checked: that takes two classes with two images each")
    seen = {found.files for found in findings if found.kind == "label"}
    findings += [found for found in judged if not (found.kind == "label" and found.files in seen)]
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


def _files(source: Path) -> list[tuple[str, str, Sequence[ImageFile]]]:
    """Return the label, the part (empty for training images) and the files of each class.

    A class may have none.
    """
    if not source.is_dir():
        return [(label, "", names) for label, names in labelled_files(source, ())[0].items()]
    aside = folders_of_classes(source)[1] or ("",)
    read = [image_files(source, (part,), allow_empty=True) for part in aside]
    files = [(label, "", names) for label, names in read[0][0].items()]
    return files + [(label, part, names) for _, held, part in read for label, names in held.items()]


def _read_with_size(
    files: ImageFiles, i: int
) -> tuple[Pixels, tuple[int, int]] | UnreadableImageError:
    pixels = files.read(i)
    return pixels if isinstance(pixels, Exception) else (pixels, image_size(files.path(i)))


def _read(source: Path, device: str) -> _Images:
    """Decode every image once: for its features and for what tells duplicates."""
    classes = _files(source)
    encoder, _ = build_encoder(BACKBONE, (3, SIZE, SIZE))
    encoder = encoder.to(pick_device(device)).eval()
    paths, names, labels, parts, prints, sizes, one_colour = [], [], [], [], [], [], []
    features: list[NDArray[np.float32]] = []
    pixels: list[Pixels] = []

    def flush() -> None:
        if pixels:
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
            features.append(extract(encoder, x, 1, flip=False, bf16=False).numpy())
            pixels.clear()

    findings = _not_read(source) + _empty(classes)
    every = ImageFiles([files for _, _, files in classes], (SIZE, SIZE), "RGB")
    of_file = [(label, part) for label, part, files in classes for _ in files]
    decoded = in_workers(partial(_read_with_size, every), len(every))
    for i, read in enumerate(progress(decoded, "reading images", len(every))):
        (label, part), path = of_file[i], name_of(every.path(i))
        name = _short(path, source)
        if isinstance(read, UnreadableImageError):
            text = f"{name}: {str(read).partition(' as an image: ')[2]}"
            findings.append(Finding("unreadable", (path,), label, "", 1.0, text))
            continue
        image, size = read
        paths.append(path)
        names.append(name)
        labels.append(label)
        parts.append(part)
        prints.append(thumbprint(image))
        sizes.append(size)
        one_colour.append(image.std(axis=(0, 1)).max() < PLAIN)
        pixels.append(image)
        if len(pixels) == AT_ONCE:
            flush()
    flush()
    if not paths:
        raise ValueError(f"{source} has no image that can be read: give a folder of images")
    usual = float(np.median(np.min(sizes, axis=1)))
    for path, name, label, size, plain in zip(paths, names, labels, sizes, one_colour, strict=True):
        if text := _suspicion(size, usual, plain):
            findings.append(Finding("suspicious", (path,), label, "", 1.0, f"{name}, {text}"))
    return _Images(
        paths,
        names,
        np.array(labels, dtype=str),
        np.array(parts, dtype=str),
        prints,
        np.concatenate(features),
        findings,
    )


def _not_read(source: Path) -> list[Finding]:
    """Find images of formats that are not read."""
    found = walk_images(source, suffixes=NOT_READ) if source.is_dir() else ()
    return [
        Finding(
            "unreadable",
            (str(source / name),),
            class_name(Path(name).parent.name),
            "",
            1.0,
            f"{name}: {Path(name).suffix.lower()} files are not read, convert it to JPEG or PNG",
        )
        for name in found
    ]


def _empty(classes: list[tuple[str, str, Sequence[ImageFile]]]) -> list[Finding]:
    """Find folders of classes without images."""
    return [
        Finding("few", (), label, "", 1.0, f"{Path(part, label)}, with no images")
        for label, part, files in classes
        if not files
    ]


def _suspicion(size: tuple[int, int], usual: float, plain: bool) -> str:
    """Say what is odd about an image; nothing if all is well."""
    short, long = sorted(size)
    shape = f"{size[1]}×{size[0]} pixels"
    if plain:
        return "which shows a single colour"
    if short < SMALL and USUAL * short < usual:
        return f"of {shape}, where {usual:.0f} on the shorter side are usual"
    return f"of {shape}, of which only the middle is seen" if long > LONG * short else ""


def _short(path: str, source: Path) -> str:
    """Return a path relative to the folder of images, or to that of the CSV file."""
    root = source if source.is_dir() else source.parent
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _duplicates(images: _Images) -> list[Finding]:
    of_second: dict[int, list[Finding]] = defaultdict(list)
    for first, second, kind, similarity in duplicates(images.prints):
        labels = [str(images.labels[i]) for i in (first, second)]
        text = f"{images.names[first]} and {images.names[second]} ({kind})"
        score = similarity / 2
        if labels[0] != labels[1]:
            text += f", of {labels[0]} and of {labels[1]}"
            score += 0.5
        elif images.parts[first] != images.parts[second]:
            score += 0.25
        files = (images.paths[first], images.paths[second])
        other = labels[1] if labels[1] != labels[0] else ""
        of_second[second].append(Finding("duplicate", files, labels[0], other, score, text))
    worst = (sorted(found, key=lambda one: -one.score) for found in of_second.values())
    return [one for found in worst for one in found[:MAX_PAIRS]]


def _few(counts: Counter[str], known: list[str]) -> list[Finding]:
    return [
        Finding("few", (), label, "", 1 / n, f"{label}, with {count(n, 'image')}")
        for label, n in counts.items()
        if n < FEW_IMAGES and label not in known
    ]


def _label_errors(images: _Images, rows: NDArray[np.bool_]) -> list[Finding]:
    labels = images.labels[rows]
    suggested, margin = cross_validate(images.features[rows], labels)
    found = [
        _label_error(images, int(i), str(other), float(-value))
        for i, other, value in zip(np.flatnonzero(rows), suggested, margin, strict=True)
        if value < 0
    ]
    return found + [
        Finding("confused", (), label, other, share, f"{label} and {other} ({percent(share)})")
        for label, other, share in confused_pairs(labels, suggested)
    ]


def _label_error(images: _Images, i: int, other: str, score: float) -> Finding:
    label = str(images.labels[i])
    text = f"{images.names[i]}, labelled {label}, predicted {other}"
    return Finding("label", (images.paths[i],), label, other, score, text)


def _by_model(images: _Images, model: LMRCClassifier, known: list[str]) -> list[Finding]:
    """Find new classes that look like a known one, and images of known ones that do not.

    `known` are the names of two classes or more: all images would be taken for a single one.
    """
    form, found = image_form(model.input_shape_), []
    for label in dict.fromkeys(images.labels[images.train].tolist()):
        rows = np.flatnonzero((images.labels == label) & images.train)
        X = np.asarray(ImageFiles([[Path(images.paths[i]) for i in rows]], *form))
        scores, probabilities, _ = outputs_of(model, X)
        predicted = [known[i] for i in scores.argmax(axis=1).tolist()]
        (best, n), *_ = Counter(predicted).most_common(1)
        share = n / len(rows)
        if label not in known:
            if share >= LOOKS_KNOWN:
                text = f"{label} looks like {best}: {percent(share)} of its images"
                found.append(Finding("known", (), label, best, share, text))
            continue
        recognised = predicted.count(label) / len(rows)
        if recognised < DIFFERENT:
            text = f"{label}, {percent(recognised)} of whose images are recognised"
            text += f", and {percent(share)} taken for {best}" if best != label else ""
            found.append(Finding("drift", (), label, best, 1 - recognised, text))
            continue
        sure = scores if probabilities is None else probabilities
        margins = sure.max(axis=1) - sure[:, known.index(label)]
        found += [
            _label_error(images, int(i), other, float(np.clip(margin, 0, 1)))
            for i, other, margin in zip(rows, predicted, margins, strict=True)
            if other != label
        ]
    return found


def _csv(findings: list[Finding]) -> str:
    head = ["kind", "score", "class", "other_class", "file", "other_file"]
    rows = [
        [found.kind, f"{found.score:.3f}", found.label, found.other, *[*found.files, "", ""][:2]]
        for found in findings
    ]
    return csv_text(head, rows)


def _page(source: Path, images: _Images, findings: list[Finding], thumbnails: bool) -> str:
    place = source.absolute().name
    body = Markup("<h1>{}</h1>\n<p>{}</p>").format(
        f"{count(len(findings), 'finding')} in {place}",
        f"{count(len(images.paths), 'image')}. Everything is also in check.csv, beside this page.",
    )
    for kind, (title, advice) in KINDS.items():
        of_kind = [found for found in findings if found.kind == kind]
        if of_kind:
            body += Markup("<h2>{} ({})</h2>\n{}\n").format(title, len(of_kind), html.note(advice))
            body += _listed(of_kind, thumbnails and bool(of_kind[0].files) and kind != "unreadable")
    return bare_page(f"Check of {place}", body)


def _listed(findings: list[Finding], thumbnails: bool) -> Markup:
    if not thumbnails:
        return Markup("<ul>{}</ul>").format(
            html.joined(Markup("<li>{}</li>").format(found.text) for found in findings)
        )
    figures = [
        Markup('<figure>{}<figcaption title="{}">{}</figcaption></figure>').format(
            html.joined(_shown(file) for file in found.files),
            "\n".join(found.files),
            html.breakable(found.text),
        )
        for found in findings[:SHOWN]
    ]
    left = len(findings) - len(figures)
    more = html.note(f"{left} more are in check.csv.") if left else Markup()
    return Markup('<div class="thumbnails{}">{}</div>{}').format(
        " pairs" if len(findings[0].files) > 1 else "", html.joined(figures), more
    )


def _shown(file: str) -> Markup:
    return html.thumbnail(thumbnail(read_image(file, THUMBNAIL))) + " "
