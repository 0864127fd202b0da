"""Clips of voices that a request names by URL: from hosts that are allowed, and soon or not at all."""

import asyncio
from collections.abc import Sequence

import httpx

from backend.contract import InvalidRequest
from backend.reference_audio import MAX_FILE_BYTES

# For the whole clip, however slowly it comes.
FETCH_TIMEOUT_S = 10.0


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


class RemoteClips:
    def __init__(self, allowed_hosts: Sequence[str]) -> None:
        self._allowed_hosts = frozenset(allowed_hosts)

    async def fetch(self, url: str) -> bytes:
        """The file at `url`, or a little more than the reader of clips takes. Raises InvalidRequest."""
        try:
            host = httpx.URL(url).host.lower()
        except (httpx.InvalidURL, UnicodeError) as error:  # the second for a host such as xn--
            raise _refusal("The clip's URL is not a valid one.") from error
        if host not in self._allowed_hosts:
            raise _refusal("This server fetches no clips from there; send the clip itself, as a data URL.")
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await _read(url)
        except TimeoutError as error:
            raise _refusal(
                f"The clip did not arrive within {FETCH_TIMEOUT_S:.0f} s; send it as a data URL."
            ) from error
        except httpx.HTTPError as error:
            raise _refusal("The clip could not be fetched from its URL.") from error


async def _read(url: str) -> bytes:
    # No redirects: they could lead to a host that is not allowed. Nothing packed: a small file could
    # unpack to a huge one.
    async with (
        httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, follow_redirects=False) as client,
        client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            raise _refusal(f"The clip's host answered with status {answer.status_code}.")
        data = bytearray()
        async for piece in answer.aiter_raw():
            data += piece
            if len(data) > MAX_FILE_BYTES:
                break  # the reader of the clip refuses it
    return bytes(data)


def _refusal(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, "reference")
