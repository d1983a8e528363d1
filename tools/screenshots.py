"""Pictures of the demo's page for the docs: `make screenshots` after `make demo`."""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parent.parent
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
SHOTS = {"play.png": ("light", 1180, 1000), "play-phone.png": ("dark", 390, 1000)}


def shoot(page: Path, target: Path, scheme: str, width: int, height: int) -> None:
    """The top of the page, with a head chosen."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ARGUMENTS:
        options.add_argument(argument)
    if scheme == "dark":
        options.add_argument("--blink-settings=preferredColorScheme=0")
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.resolve().as_uri())
        browser.execute_script('document.querySelector(\'#p-map button[data-site="3"][data-head="9"]\').click()')
        taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        target.write_bytes(base64.b64decode(taken["data"]))
    finally:
        browser.quit()


if __name__ == "__main__":
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out/index.html")
    for name, (scheme, width, height) in SHOTS.items():
        shoot(page, ROOT / "docs" / "assets" / name, scheme, width, height)
