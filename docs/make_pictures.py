"""Pictures of a page for the docs, taken in Chromium: English and Chinese, light and dark, a phone.

regard look RUN "text" --out page.html --no-open
python docs/make_pictures.py page.html docs/images
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

# name: the choice in the address, width, height, and what is clicked before the picture is taken
SIZES: dict[str, tuple[str, int, int, str]] = {
    "overview": ("view=overview", 1440, 900, ""),
    "head": ("view=head", 1200, 820, ""),
    "ribbons": ("view=ribbons", 900, 760, ""),
    "text": ("view=text&answer=9", 1100, 780, ""),
    "steps": ("view=steps", 1200, 900, "#steps-to-softmax"),
    "layers": ("view=layers", 1200, 820, ""),
    "card": ("view=card", 1200, 1000, ""),
    "ablation": ("view=ablation", 1200, 1150, ""),
    "drift": ("view=drift", 1200, 620, ""),
    "phone": ("view=steps", 390, 844, "#steps-to-sum"),
}
PICTURES: dict[str, tuple[str, int, int, str]] = {
    f"look-{name}{ending}": (f"{choice}&theme={theme}&language={language}", width, height, click)
    for name, (choice, width, height, click) in SIZES.items()
    for ending, theme, language in [("", "light", "en"), ("-zh", "light", "zh"), ("-dark-zh", "dark", "zh")]
    if ending != "-dark-zh" or name == "overview"
}


def take(browser: Any, url: str, out: Path) -> None:
    """Every picture whose view this page has."""
    from PIL import Image

    for name, (choice, width, height, click) in PICTURES.items():
        tab = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        tab.goto(f"{url}#{choice}")
        view = choice.split("&")[0].removeprefix("view=")
        if tab.locator(f"#tab-{view}").count():
            if click and tab.locator(click).count():
                tab.locator(click).click()
            tab.mouse.move(0, 0)
            tab.wait_for_timeout(400)
            # a palette is enough for text and maps, and a third as large; this one keeps colours that are rare
            shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
            picture = shot.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
            picture.save(out / f"{name}.png", optimize=True)
        else:
            print(f"{name}.png: the page has no view {view}")
        tab.close()


def main(page: str, out: str) -> None:
    """Takes the pictures of a page into a folder."""
    from playwright.sync_api import sync_playwright

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        take(browser, Path(page).resolve().as_uri(), folder)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
