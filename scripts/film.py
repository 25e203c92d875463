"""A movie of training as an animated picture, for a README or a slide: `python scripts/film.py movie.html docs/movie.webp`.

Needs Chromium, playwright and Pillow. Every step is shown once, the last one for longer.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, TOP = 1180, 846, 108  # of the window, and where the picture begins: below the title
SMALLER = 0.7  # than the window
EACH, LAST = 270, 2500  # milliseconds of a step, and of the last


def main(page: Path, out: Path) -> None:
    """Photograph the page step by step."""
    frames = []
    with sync_playwright() as entry:
        browser = entry.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        tab.goto(page.resolve().as_uri())
        tab.keyboard.press("Home")
        for _ in range(int(tab.get_attribute("#slider", "max") or 0) + 1):
            tab.wait_for_timeout(80)
            clip = {"x": 0, "y": TOP, "width": WIDTH, "height": HEIGHT - TOP}
            picture = Image.open(io.BytesIO(tab.screenshot(clip=clip))).convert("RGB")
            frames.append(picture.resize((round(SMALLER * WIDTH), round(SMALLER * (HEIGHT - TOP))), Image.LANCZOS))
            tab.keyboard.press("ArrowRight")
        browser.close()
    times = [EACH] * (len(frames) - 1) + [LAST]
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=72, method=6)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
