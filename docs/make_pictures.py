"""Pictures of a page for the docs, taken in Chromium: light and dark, English and Chinese, a phone.

regard look RUN "text" --out page.html --no-open
python docs/make_pictures.py page.html docs/images
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

# name: the choice in the address, width, height, and what is pressed or clicked before the picture is taken
PICTURES: dict[str, tuple[str, int, int, str]] = {
    "overview": ("view=overview&theme=light&language=en", 1440, 900, ""),
    "overview-dark-zh": ("view=overview&theme=dark&language=zh", 1440, 900, ""),
    "head-dark": ("view=head&theme=dark&language=en", 1200, 820, ""),
    "ribbons": ("view=ribbons&theme=light&language=en", 900, 760, ""),
    "text": ("view=text&theme=light&language=en", 1100, 620, ""),
    "steps": ("view=steps&theme=light&language=en", 1200, 900, "#steps-to-softmax"),
    "steps-dark-zh": ("view=steps&theme=dark&language=zh", 1200, 900, "#steps-to-dot"),
    "layers": ("view=layers&theme=light&language=en", 1200, 820, ""),
    "card": ("view=card&theme=light&language=en", 1200, 860, ""),
    "card-zh": ("view=card&theme=light&language=zh", 1200, 860, ""),
    "ablation-dark": ("view=ablation&theme=dark&language=en", 1200, 820, ""),
    "drift": ("view=drift&theme=light&language=en", 1200, 620, ""),
    "phone": ("view=steps&theme=light&language=en", 390, 844, "#steps-to-sum"),
    "phone-dark-zh": ("view=overview&theme=dark&language=zh", 390, 844, ""),
}


def take(browser: Any, url: str, out: Path) -> None:
    """Every picture whose view this page has."""
    for name, (choice, width, height, click) in PICTURES.items():
        tab = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        tab.goto(f"{url}#{choice}")
        view = choice.split("&")[0].removeprefix("view=")
        if tab.locator(f"#tab-{view}").count():
            if click and tab.locator(click).count():
                tab.locator(click).click()
            tab.mouse.move(0, 0)
            tab.wait_for_timeout(400)
            tab.screenshot(path=out / f"{name}.png")
        else:
            print(f"{name}.png: the page has no view {view}")
        tab.close()


def main(page: str, out: str) -> None:
    """Takes the pictures of a page into a folder."""
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
