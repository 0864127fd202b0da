"""Someone at the page: what they press and what they hear."""

import base64
import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import BrowserContext, Frame, Page, expect


class Visitor:
    """The page may be in a frame of another one."""

    def __init__(self, page: Page, frame: Frame | None = None) -> None:
        self.page = page
        self.frame = frame or page.main_frame
        self.speak_button = self.frame.locator("#speak-button")
        self.stop_button = self.frame.locator("#stop-button")
        self.status = self.frame.locator('#run-panel [data-field="status"]')

    @classmethod
    def arriving(cls, context: BrowserContext, url: str) -> "Visitor":
        """Opens the page and waits until it can speak."""
        page = context.new_page()
        page.goto(url)
        visitor = cls(page)
        visitor.wait_until_ready()
        return visitor

    def wait_until_ready(self) -> None:
        expect(self.speak_button).to_be_enabled(timeout=20_000)

    def type(self, text: str) -> None:
        self.frame.locator("#speech-text textarea").fill(text)

    def speak(self) -> float:
        """Presses Speak and returns at once, with the browser's time of the click in ms."""
        expect(self.speak_button).to_be_enabled()
        self.frame.evaluate(
            """() => document.querySelector('#speak-button').addEventListener('click', () => {
              audioTap.reset();
              audioTap.clickedAt = Date.now();
            }, { once: true, capture: true })"""
        )
        self.speak_button.click()
        clicked_at: float = self.frame.evaluate("audioTap.clickedAt")
        return clicked_at

    def listen(self, timeout_s: float = 15) -> NDArray[np.int16]:
        """Presses Speak and waits for the end; see `heard`."""
        self.speak()
        self.wait_until_done(timeout_s)
        return self.heard()

    def wait_until_done(self, timeout_s: float = 15) -> None:
        expect(self.status).to_have_text("Done", timeout=1000 * timeout_s)
        expect(self.speak_button).to_be_enabled()

    def wait_for_sound(self) -> None:
        self.frame.wait_for_function("audioTap.audible()")

    def heard(self) -> NDArray[np.int16]:
        """What was rendered since Speak was pressed, from the first sound to the last."""
        rendered = np.frombuffer(base64.b64decode(self.frame.evaluate("audioTap.dump()")), np.float32)
        sounding = np.flatnonzero(rendered)
        if not len(sounding):
            return np.zeros(0, np.int16)
        return np.round(rendered[sounding[0] : sounding[-1] + 1] * 32768).astype(np.int16)

    def figure(self, name: str) -> str:
        return self.frame.locator(f'#run-panel [data-field="{name}"]').inner_text()

    def downloaded_wav(self) -> NDArray[np.int16]:
        """The samples of the file behind the finished clip's download button."""
        with self.page.expect_download() as download:
            self.frame.locator(
                "#finished-clip a[download], #finished-clip [aria-label=Download]"
            ).first.click()
        with wave.open(io.BytesIO(Path(download.value.path()).read_bytes())) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def gaps(samples: NDArray[np.int16]) -> int:
    """Stretches of silence inside `samples`; the fake engine's noise has no sample of zero."""
    silent = samples == 0
    return int(np.count_nonzero(silent[1:] & ~silent[:-1]))
