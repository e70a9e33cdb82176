"""How many planted mistakes ``lmrc check`` finds: ``python benchmarks/check.py FOLDER``.

FOLDER holds a sub-folder of images for each class. In copies of it, a share of the labels is
flipped at random, and copies of some images are added: re-encoded, resized, mirrored. Prints a line
of JSON for each seed: of the flipped labels, how many are among the first tenth of the list (a
tenth of the number of images); of the planted copies, how many are found.

Then models learn ten images of two classes, and of half of the classes, and check other images with
``--model``: of the other classes, and of the known ones under another name. The line says how many
of both are reported as looking like a known class.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path

from PIL import Image, ImageOps

from lmrc.experiments.environment import hardware, versions
from lmrc.practice.check import check
from lmrc.practice.learn import Request, learn

COPIES = 30
EACH = 10  # images of a class that a model learns, and as many that are checked


def plant(folder: Path, out: Path, share: float, seed: int) -> tuple[set[str], list[set[str]]]:
    """Copy a folder with mistakes; return the files with flipped labels, and pairs of copies."""
    rng = random.Random(seed)
    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    labels = sorted({path.parent.name for path in files})
    flipped = set(rng.sample(range(len(files)), round(share * len(files))))
    wrong, kept = set(), []
    for i, path in enumerate(files):
        label = path.parent.name
        if i in flipped:
            label = rng.choice([other for other in labels if other != label])
        place = out / label / f"{path.parent.name}-{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        (wrong.add(str(place)) if i in flipped else kept.append(place))
    pairs = []
    for n, path in enumerate(rng.sample(kept, min(COPIES, len(kept)))):
        with Image.open(path) as file:
            image = file.convert("RGB")
        copy = path.with_name(f"copy-{path.stem}.jpg")
        if n % 3 == 0:
            image.save(copy, quality=60)
        elif n % 3 == 1:
            image.resize((image.width * 2 // 3, image.height * 2 // 3)).save(copy)
        else:
            ImageOps.mirror(image).save(copy)
        pairs.append({str(path), str(copy)})
    return wrong, pairs


def new_classes(folder: Path, place: Path, n_known: int, seed: int) -> dict[str, int]:
    """Count which classes look like known ones to a model."""
    rng = random.Random(seed)
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
    known = rng.sample(labels, n_known)
    for label in labels:
        files = sorted((folder / label).iterdir())
        rng.shuffle(files)
        each = min(EACH, len(files) // 2)
        first, second = files[:each], files[each : 2 * each]
        renamed = f"{label} again" if label in known else label
        for root, name, taken in (("known", label, first), ("new", renamed, second)):
            if root == "new" or label in known:
                (place / root / name).mkdir(parents=True)
                for file in taken:
                    shutil.copy(file, place / root / name)
    model, quiet = place / "model", lambda line: None
    learn(model, Request(str(place / "known")), say=quiet, quiet=True)
    found = check(place / "new", place / "out", model=model, thumbnails=False, say=quiet)
    told = [one.label for one in found if one.kind == "known"]
    of_known = sum(label.endswith(" again") for label in told)
    return {
        "renamed": n_known,
        "renamed_told": of_known,
        "others": len(labels) - n_known,
        "others_told": len(told) - of_known,
    }


def main() -> None:
    """Print one line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.05, help="of labels to flip")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as place:
            planted = Path(place, "planted")
            wrong, pairs = plant(given.folder, planted, given.share, seed)
            found = check(planted, Path(place, "out"), thumbnails=False, say=lambda line: None)
            n = sum(1 for _ in planted.glob("*/*"))
            classes = sum(path.is_dir() for path in given.folder.iterdir())
            looked_like = {
                k: new_classes(given.folder, Path(place, str(k)), k, seed)
                for k in (2, classes // 2)
                if 1 < k < classes
            }
        labels = [one.files[0] for one in found if one.kind == "label"][: n // 10]
        copies = [{*one.files} for one in found if one.kind == "duplicate"]
        line = {
            "seed": seed,
            "images": n,
            "flipped": len(wrong),
            "flipped_found_in_first_tenth": len(wrong & {*labels}),
            "copies": len(pairs),
            "copies_found": sum(pair in copies for pair in pairs),
            "duplicates_in_all": len(copies),
            "look_like_known": looked_like,
            "versions": versions(),
            "hardware": hardware(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
