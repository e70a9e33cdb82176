"""``lmrc check``: find mistakes in labelled images before they are learnt."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from lmrc.data.class_names import class_name, similar_names
from lmrc.data.duplicates import PLAIN, Thumbprint, duplicates, thumbprint
from lmrc.data.folders import FEW_IMAGES, folders_of_classes, image_files
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
from lmrc.practice.models import is_calibrated, open_to_predict, outputs_of, unknown_threshold
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
#: Share of a new class's images that are taken for one known class: by a model without unknown
#: scores, and by one with them, where images above the threshold do not count.
LOOKS_KNOWN, LOOKS_KNOWN_SURELY = 0.8, 0.5
LOST = 0.1  # share of known images above that threshold
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
        "They have a single colour, are much smaller than the others, or so long that only the "
        "middle is used. Replace or remove them.",
    ),
    "label": (
        "Probably the wrong label",
        "The most suspicious come first. Move the image to the right class, or leave it if its "
        "label is correct. Found by cross-validation, and for known classes by the model.",
    ),
    "duplicate": (
        "Duplicate images",
        "Remove one. A copy in a test folder makes the accuracy look better than it is.",
    ),
    "name": (
        "Classes with nearly the same name",
        "If they are the same class, give them the same name.",
    ),
    "known": (
        "New classes that look like a known one",
        "If they are the same class, give them the same name.",
    ),
    "drift": (
        "Known classes whose new images look different",
        "The model recognises few of them. Are they in the wrong folder, or has the class changed?",
    ),
    "confused": ("Classes that will be hard to tell apart", "Add images, or merge the classes."),
    "few": (
        "Classes with few images",
        f"Add images: {FEW_IMAGES} or more make a class more reliable. Remove empty folders.",
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
class _Image:
    path: str
    name: str  # relative to the source
    label: str
    part: str  # the sub-folder that it is set aside in; empty for training images
    print: Thumbprint
    size: tuple[int, int]
    plain: bool  # whether it has a single colour


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

    Test and validation images in the source are compared, too. With the model that will learn the
    images, find also new classes that look like a known one, and known classes whose images the
    model does not recognise.
    """
    refuse_inside(out, source, "the report", "choose another folder with --out")
    if source.suffix.lower() == ".npz":
        raise UsageError(f"{source} has arrays: lmrc check is for image files")
    judge = None if model is None else open_to_predict(model, device)
    if judge is not None:
        image_form(judge.input_shape_)  # before the images are read, which may take long
    images, features, findings = _read(source, device)
    train = [image for image in images if not image.part]
    counts = Counter(image.label for image in train)
    known = [] if judge is None else [class_name(str(label)) for label in judge.classes_.tolist()]
    findings += [*_duplicates(images), *_few(counts, known)]
    names = similar_names(sorted({image.label for image in images}), known)
    findings += [Finding("name", (), new, old, 1.0, f"{new!r} and {old!r}") for new, old in names]
    rows = [i for i, image in enumerate(images) if not image.part and counts[image.label] > 1]
    judged = _by_model(train, judge, known) if judge is not None and len(known) > 1 else []
    if len({images[i].label for i in rows}) > 1:
        findings += _label_errors([images[i] for i in rows], features[rows])
    elif len(known) < 2 or not counts.keys() <= {*known}:
        warn("labels are not checked: that needs two classes with two images each")
    seen = {found.files for found in findings if found.kind == "label"}
    findings += [found for found in judged if not (found.kind == "label" and found.files in seen)]
    order = list(KINDS)
    findings.sort(key=lambda found: (order.index(found.kind), -found.score))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "check.csv", encoded(_csv(findings)))
    page = _page(source, len(images), findings, thumbnails)
    write_atomically(out / "report.html", encoded(page))
    say(f"{count(len(images), 'image')} of {count(len(counts), 'class', 'classes')} checked")
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


def _read(source: Path, device: str) -> tuple[list[_Image], NDArray[np.float32], list[Finding]]:
    """Decode every image once: return the readable ones, their features, and what is odd."""
    classes = _files(source)
    encoder, _ = build_encoder(BACKBONE, (3, SIZE, SIZE))
    encoder = encoder.to(pick_device(device)).eval()
    images: list[_Image] = []
    findings = _not_read(source) + _empty(classes)

    def pixels() -> Iterator[Pixels]:
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
            found, size = read
            plain = bool(found.std(axis=(0, 1)).max() < PLAIN)
            images.append(_Image(path, name, label, part, thumbprint(found), size, plain))
            yield found

    readable, features = pixels(), []
    while chunk := list(islice(readable, AT_ONCE)):
        x = torch.from_numpy(np.stack(chunk)).permute(0, 3, 1, 2).contiguous()
        features.append(extract(encoder, x, 1, flip=False, bf16=False).numpy())
    if not images:
        raise ValueError(f"{source} has no image that can be read: give a folder of images")
    usual = float(np.median([min(image.size) for image in images]))
    for image in images:
        if text := _suspicion(image, usual):
            text = f"{image.name}: {text}"
            findings.append(Finding("suspicious", (image.path,), image.label, "", 1.0, text))
    return images, np.concatenate(features), findings


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
        Finding("few", (), label, "", 1.0, f"{Path(part, label)} (no images)")
        for label, part, files in classes
        if not files
    ]


def _suspicion(image: _Image, usual: float) -> str:
    """Say what is odd about an image; nothing if all is well."""
    short, long = sorted(image.size)
    shape = f"{image.size[1]}×{image.size[0]} pixels"
    if image.plain:
        return "it has a single colour"
    if short < SMALL and USUAL * short < usual:
        return f"only {shape}; {usual:.0f} on the shorter side are usual here"
    return f"{shape}, of which only the middle is used" if long > LONG * short else ""


def _short(path: str, source: Path) -> str:
    """Return a path relative to the folder of images, or to that of the CSV file."""
    root = source if source.is_dir() else source.parent
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _duplicates(images: list[_Image]) -> list[Finding]:
    of_second: dict[int, list[Finding]] = defaultdict(list)
    for first, second, kind, similarity in duplicates([image.print for image in images]):
        one, two = images[first], images[second]
        text = f"{one.name} and {two.name} ({kind})"
        score = similarity / 2
        if one.label != two.label:
            text += f", labelled {one.label} and {two.label}"
            score += 0.5
        elif one.part != two.part:
            score += 0.25
        other = two.label if two.label != one.label else ""
        found = Finding("duplicate", (one.path, two.path), one.label, other, score, text)
        of_second[second].append(found)
    worst = (sorted(found, key=lambda one: -one.score) for found in of_second.values())
    return [one for found in worst for one in found[:MAX_PAIRS]]


def _few(counts: Counter[str], known: list[str]) -> list[Finding]:
    return [
        Finding("few", (), label, "", 1 / n, f"{label} ({count(n, 'image')})")
        for label, n in counts.items()
        if n < FEW_IMAGES and label not in known
    ]


def _label_errors(images: list[_Image], features: NDArray[np.float32]) -> list[Finding]:
    labels = np.array([image.label for image in images])
    suggested, margin = cross_validate(features, labels)
    found = [
        _label_error(image, str(other), float(-value))
        for image, other, value in zip(images, suggested, margin, strict=True)
        if value < 0
    ]
    return found + [
        Finding("confused", (), label, other, share, f"{label} and {other} ({percent(share)})")
        for label, other, share in confused_pairs(labels, suggested)
    ]


def _label_error(image: _Image, other: str, score: float) -> Finding:
    text = f"{image.name}: labelled {image.label}, looks like {other}"
    return Finding("label", (image.path,), image.label, other, score, text)


def _by_model(images: list[_Image], model: LMRCClassifier, known: list[str]) -> list[Finding]:
    """Find new classes that look like a known one, and images of known ones that do not.

    `known` are the names of two classes or more: all images would be taken for a single one.
    """
    form, found = image_form(model.input_shape_), []
    enough, threshold = LOOKS_KNOWN, math.inf
    if is_calibrated(model):
        enough, threshold = LOOKS_KNOWN_SURELY, unknown_threshold(model, LOST)
    of_class: dict[str, list[_Image]] = defaultdict(list)
    for image in images:
        of_class[image.label].append(image)
    for label, own in of_class.items():
        X = np.asarray(ImageFiles([[Path(image.path) for image in own]], *form))
        scores, probabilities, unknown = outputs_of(model, X)
        predicted = [known[i] for i in scores.argmax(axis=1).tolist()]
        (best, n), *_ = Counter(predicted).most_common(1)
        share = n / len(own)
        if label not in known:
            if unknown is not None:
                share = float(np.mean((np.array(predicted) == best) & (unknown <= threshold)))
            if share >= enough:
                text = f"{label} looks like {best} ({percent(share)} of its images)"
                found.append(Finding("known", (), label, best, share, text))
            continue
        recognised = predicted.count(label) / len(own)
        if recognised < DIFFERENT:
            text = f"{label} ({percent(recognised)} of its images are recognised"
            text += f", {percent(share)} taken for {best})" if best != label else ")"
            found.append(Finding("drift", (), label, best, 1 - recognised, text))
            continue
        sure = scores if probabilities is None else probabilities
        margins = sure.max(axis=1) - sure[:, known.index(label)]
        found += [
            _label_error(image, other, float(np.clip(margin, 0, 1)))
            for image, other, margin in zip(own, predicted, margins, strict=True)
            if other != label
        ]
    return found


def _csv(findings: list[Finding]) -> str:
    head = ["kind", "score", "class", "other_class", "file", "other_file", "text"]
    rows = [
        [f.kind, f"{f.score:.3f}", f.label, f.other, *[*f.files, "", ""][:2], f.text]
        for f in findings
    ]
    return csv_text(head, rows)


def _page(source: Path, n: int, findings: list[Finding], thumbnails: bool) -> str:
    place = source.absolute().name
    body = Markup("<h1>{}</h1>\n<p>{}</p>").format(
        f"{count(len(findings), 'finding') if findings else 'Nothing was found'} in {place}",
        f"{count(n, 'image')} checked. The findings are also in check.csv, next to this page.",
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
