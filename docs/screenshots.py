"""Make the screenshots of the pages on `lmrc serve` again: ``python docs/screenshots.py``.

Starts `lmrc serve`, teaches it drawn shapes, and photographs its page in Chromium. Needs the extras
serve and serve-tests.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "images"
COLOURS = ("#c0392b", "#2457b8", "#1b7f4b", "#b7791f", "#6c3483", "#117a8b")
SIDES = {"circle": 60, "triangle": 3, "square": 4, "star": 10, "hexagon": 6}
FIRST, LATER, UNKNOWN = ("circle", "square"), ("triangle", "star"), "cross"


def draw(shape: str, seed: int) -> dict[str, Any]:
    """Return a file with a shape of random colour, place and size, as Playwright takes it."""
    rng = random.Random(f"{shape} {seed}")
    image = Image.new("RGB", (224, 224), rng.choice(("#f4efe6", "#e8f0f2", "#f0f0f0")))
    pen, colour = ImageDraw.Draw(image), rng.choice(COLOURS)
    x, y, size, turn = *(rng.uniform(90, 134) for _ in "xy"), rng.uniform(55, 80), rng.uniform(0, 6)
    if shape == UNKNOWN:
        for step in range(-3, 4):
            pen.line((x - 80, y + 22 * step, x + 80, y + 22 * step), colour, 6)
            pen.line((x + 22 * step, y - 80, x + 22 * step, y + 80), colour, 6)
    else:
        n = SIDES[shape]
        radii = [size * (0.45 if shape == "star" and i % 2 else 1) for i in range(n)]
        turns = [turn + 2 * math.pi * i / n for i in range(n)]
        places = zip(radii, turns, strict=True)
        pen.polygon([(x + r * math.cos(t), y + r * math.sin(t)) for r, t in places], colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"name": f"{shape}-{seed}.png", "mimeType": "image/png", "buffer": file.getvalue()}


def teach(page: Page, shapes: tuple[str, ...], n: int) -> None:
    """Add pictures of classes."""
    page.get_by_role("tab", name="Teach").click()
    while page.locator(".class-card").count() < len(shapes):
        page.get_by_role("button", name="Add a class").click()
    for i, shape in enumerate(shapes):
        card = page.locator(".class-card").nth(i)
        card.get_by_label("Class").fill(shape)
        card.locator("input[type=file]").set_input_files([draw(shape, k) for k in range(n)])
        card.get_by_text(f"{n} pictures", exact=True).wait_for()


def learn(page: Page) -> None:
    """Learn what was added, and keep it."""
    page.get_by_role("button", name="Learn").click()
    page.get_by_role("button", name="Keep").click()
    page.locator("#classify-drop").wait_for()


def save(page: Page, name: str, out: Path) -> None:
    """Write a screenshot of the whole page."""
    page.mouse.move(0, 0)
    page.locator("h1").click()
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    out.mkdir(parents=True, exist_ok=True)
    picture.convert("RGB").save(out / f"{name}.webp", quality=85, method=6)


def photograph(page: Page, out: Path, suffix: str = "") -> None:
    """Make a screenshot of each view; the model knows four shapes by then."""
    page.get_by_role("tab", name="Classify").click()
    asked = [draw(shape, 99) for shape in ("star", "circle", "triangle", UNKNOWN)]
    page.locator("#classify-files").set_input_files(asked)
    page.locator(".prediction .scores").nth(len(asked) - 1).wait_for()
    save(page, f"serve-classify{suffix}", out)
    teach(page, ("hexagon", "square"), 8)
    page.locator(".class-card").nth(0).locator("input[type=file]").set_input_files(
        [draw("hexagon", 2)]
    )
    page.locator("#findings").wait_for()
    save(page, f"serve-teach{suffix}", out)
    page.get_by_role("tab", name="Model").click()
    page.locator("#class-list li").first.wait_for()
    save(page, f"serve-model{suffix}", out)


def main() -> None:
    """Make the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--all", action="store_true", help="dark, and on a phone, too")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "lmrc", "serve", f"{place}/shapes.lmrc", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].split()[0]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                page = browser.new_page(
                    viewport={"width": 800, "height": 500}, color_scheme="light", locale="en-GB"
                )
                page.set_default_timeout(120_000)
                page.goto(address)
                for shapes in (FIRST, LATER):
                    teach(page, shapes, 10)
                    learn(page)
                photograph(page, options.out)
                for suffix, wide, scheme in (("-dark", 800, "dark"), ("-phone", 360, "dark")):
                    if options.all:
                        page.set_viewport_size({"width": wide, "height": 640})
                        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                        page.reload()
                        photograph(page, options.out, suffix)
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
