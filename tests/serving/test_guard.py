"""Keys, other sites' pages, and servers that others can reach."""

import pytest

from tests.serving.conftest import VOICES, Api, error

KEY = "a-key-of-this-test"
PATHS = ("/v1/models", "/v1/audio/voices")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {KEY}", "Bearer", "Bearer schlüssel"])
def test_without_its_key_the_api_is_closed(path: str, header: str | None, api: Api) -> None:
    headers = {"authorization": header.encode()} if header else {}
    answer = api(api_key=KEY).get(path, headers=headers)
    assert error(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", PATHS)
def test_with_its_key_the_api_is_open(path: str, api: Api) -> None:
    assert api(api_key=KEY).get(path, headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_speech_needs_the_key_too(api: Api) -> None:
    client = api(api_key=KEY)
    error(client.post("/v1/audio/speech", json={"input": "Hi"}), 401)
    client.headers["authorization"] = f"bearer {KEY}"
    assert client.post("/v1/audio/speech", json={"input": "Hi"}).status_code == 200


def test_monitors_need_no_key(api: Api) -> None:
    client = api(api_key=KEY)
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 200


def test_a_page_with_a_login_closes_an_api_without_a_key(api: Api) -> None:
    assert "--api-key" in error(api(auth="ann:secret").get("/v1/models"), 403)["message"]
    client = api(auth="ann:secret", api_key=KEY)
    assert client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://elsewhere.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://testserver"}, 200),
        ({"origin": "https://tts.example", "x-forwarded-host": "tts.example"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://testserver"}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], status: int, api: Api) -> None:
    answer = api().get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("settings", [{"share": True}, {"host": "0.0.0.0"}, {"root_path": "/tts"}])
def test_voices_are_saved_on_an_open_server_only_with_a_key(settings: dict[str, object], api: Api) -> None:
    form = {"name": "mine", "consent": "My own."}
    files = {"audio_sample": VOICES[0].audio_path.read_bytes()}
    client = api(**settings)
    assert "--api-key" in error(client.post("/v1/audio/voices", data=form, files=files), 403)["message"]
    error(client.delete("/v1/audio/voices/mine"), 403)
    client = api(**settings, api_key=KEY)
    client.headers["authorization"] = f"Bearer {KEY}"
    assert client.post("/v1/audio/voices", data=form, files=files).status_code == 200


@pytest.mark.parametrize("settings", [{"share": True}, {"host": "0.0.0.0"}, {"root_path": "/tts"}])
def test_an_open_server_without_a_key_tells_nobody_whose_voices_it_keeps(
    settings: dict[str, object], api: Api
) -> None:
    form = {"name": "mine", "consent": "Ann Smith's own.", "ref_text": "What she says."}
    files = {"audio_sample": VOICES[0].audio_path.read_bytes()}
    assert api().post("/v1/audio/voices", data=form, files=files).status_code == 200

    public = api(**settings).get("/v1/audio/voices")
    assert public.json()["voices"][-1] == "mine"
    assert "Ann Smith" not in public.text
    assert "What she says" not in public.text
    for client in (api(), api(**settings, api_key=KEY)):
        client.headers["authorization"] = f"Bearer {KEY}"
        (voice,) = client.get("/v1/audio/voices").json()["uploaded_voices"]
        assert (voice["consent"], voice["ref_text"]) == (form["consent"], form["ref_text"])
