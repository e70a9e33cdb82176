"""How many planted mistakes ``lmrc check`` finds: ``python benchmarks/check.py FOLDER``.

FOLDER holds a sub-folder of images for each class. In copies of it, a share of the labels is
flipped at random, and copies of some images are added: re-encoded, resized, mirrored. Prints a line
of JSON for each seed: of the flipped labels, how many are among the first tenth of the list (a
tenth of the number of images); of the planted copies, how many are found.
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

COPIES = 30


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
            "versions": versions(),
            "hardware": hardware(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
