"""The app's settings, each from its flag, else its TTS_ environment variable, else its default.

Imports neither torch nor vLLM nor Gradio, so that --help answers at once.
"""

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliToggleFlag, NoDecode, SettingsConfigDict, SettingsError

from backend.stage_config import find_stage_config, profile_names

ENV_PREFIX = "TTS_"
GPU_MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
EXIT_USAGE = 2
# Of Gradio, which looks for a free one from here on.
FIRST_PORT = 7860
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def _listed(value: Any) -> Any:
    return [entry.strip() for entry in value.split(",")] if isinstance(value, str) else value


def _user_and_password(login: str) -> str:
    user, _, password = login.partition(":")
    if not user or not password:
        raise ValueError("user:password")
    return login


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _host_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+", value):
        raise ValueError("the name of a host, such as media.example.org")
    return value.lower()


def _api_key(value: str) -> str:
    if not re.fullmatch(r"[!-~]{8,200}", value):
        raise ValueError("8 to 200 printable ASCII characters without spaces")
    return value


def _root_path(value: str) -> str:
    if not value.startswith(("/", "http://", "https://")):
        raise ValueError("a path that starts with /, or a whole URL")
    return value.rstrip("/")


def _known_stage_config(value: str) -> str:
    if find_stage_config(value) is None:
        raise ValueError(f"an existing file or one of {', '.join(profile_names())}")
    return value


Login = Annotated[str, AfterValidator(_user_and_password)]
HostName = Annotated[str, AfterValidator(_host_name)]
# Never in a terminal or a log.
SECRETS = ("auth", "api_key")


class Settings(BaseSettings):
    """Text to speech in the browser: Qwen3-TTS on vLLM-Omni, streamed."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        cli_prog_name="python app.py",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_parse_none_str="none",
        cli_show_env_vars=True,
        cli_exit_on_error=False,
    )

    model: str | None = Field(
        None,
        description="Hub id or folder of a checkpoint of Qwen3-TTS 12 Hz or Audio8 TTS; "
        f"none is {GPU_MODEL} on a GPU and the bundled checkpoint on a CPU.",
    )
    stage_config: Annotated[str, AfterValidator(_known_stage_config)] | None = Field(
        None,
        description=f"Stage configuration: a YAML file, or a profile ({', '.join(profile_names())}); "
        "none is the model's own for the device: gpu or cpu for Qwen3-TTS.",
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto", description="Where the engine runs; auto takes an NVIDIA GPU where there is one."
    )
    host: str | None = Field(
        None, description="Address to listen on; none is GRADIO_SERVER_NAME or 127.0.0.1, 0.0.0.0 is all."
    )
    port: int | None = Field(
        None, ge=1, le=65535, description=f"Port to listen on; none is the first free one from {FIRST_PORT}."
    )
    share: CliToggleFlag[bool] = Field(
        False, description="Also open a public link through Gradio's tunnel. (default: off)"
    )
    auth: Annotated[list[Login], BeforeValidator(_listed), NoDecode] | None = Field(
        None,
        repr=False,
        description="Login the page asks for, as user:password; for more, repeat it or separate with commas.",
    )
    api_key: Annotated[str, AfterValidator(_api_key)] | None = Field(
        None, repr=False, description="Key that the HTTP API asks for, as a bearer token; none asks for none."
    )
    saved_voices: Path | None = Field(
        None,
        description="Folder of the voices saved through the HTTP API; "
        "none is qwen3-tts-demo/voices in your data folder.",
    )
    allowed_media_domains: Annotated[list[HostName], BeforeValidator(_listed), NoDecode] | None = Field(
        None,
        description="Host that ref_audio of the HTTP API may name in a URL; for more, repeat it or separate "
        "with commas. None allows none.",
    )
    root_path: Annotated[str, AfterValidator(_root_path)] | None = Field(
        None, description="Path the page is served under behind a reverse proxy, such as /tts."
    )
    concurrency_limit: int | None = Field(
        None, ge=1, description="Requests served at once; none is as many as the stage configuration holds."
    )
    queue_size: int = Field(32, ge=0, description="Requests that may wait; further ones are refused.")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="Least serious messages to log."
    )

    @property
    def open_to_others(self) -> bool:
        """Whether more than this machine can reach the app, as far as the settings tell."""
        # A root path is for a reverse proxy, which others reach; Gradio's variable sets one, too.
        behind_proxy = self.root_path is not None or bool(os.environ.get("GRADIO_ROOT_PATH"))
        return self.share or behind_proxy or self._address not in THIS_MACHINE

    @property
    def url(self) -> str:
        """Where this machine reaches the app, as far as the settings tell: with no port, the first choice."""
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._address, self._address)
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port or FIRST_PORT}"

    @property
    def _address(self) -> str:
        return self.host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"

    @property
    def logins(self) -> list[tuple[str, str]] | None:
        """`auth` as Gradio's launch takes it."""
        if not self.auth:
            return None
        return [(user, password) for user, _, password in (login.partition(":") for login in self.auth)]


def load_settings(argv: Sequence[str] | None = None) -> Settings:
    """Settings from `argv` (None: the process's own) and the environment.

    Exits with status 2 and one sentence on a bad value, with 0 after --help.
    """
    try:
        return CliApp.run(Settings, cli_args=list(sys.argv[1:] if argv is None else argv))
    except ValidationError as error:
        message = _sentence(error)
    except SettingsError as error:
        message = _usage_sentence(str(error))
    print(f"{message} See python app.py --help.", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0])
    limits = first.get("ctx", {})
    match first["type"]:
        case "literal_error":
            allowed = limits["expected"].replace("'", "")
        case "bool_parsing" | "bool_type":
            allowed = "true or false"
        case "value_error":
            allowed = str(limits["error"])
        case _:
            allowed = _number_range(name)
    given = "" if name in SECRETS else f", not {first['input']!r}"
    return f"{_flag(name)} (or {ENV_PREFIX}{name.upper()}) must be {allowed}{given}."


def _number_range(name: str) -> str:
    bounds = {type(part).__name__: part for part in Settings.model_fields[name].metadata}
    least, most = bounds["Ge"].ge, bounds.get("Le")
    return f"a whole number from {least} to {most.le}" if most else f"a whole number of at least {least}"


def _usage_sentence(message: str) -> str:
    problem = message.rpartition("error parsing CLI: ")[2]
    flags = [_flag(name) for name in Settings.model_fields]
    # Not what follows "=": it may be a password.
    unknown = problem.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
    if not unknown:
        return f"{problem.removeprefix('argument ')}."
    guess = get_close_matches(unknown, flags, n=1)
    hint = f"did you mean {guess[0]}?" if guess else f"the flags are {', '.join(flags)}."
    return f"{unknown} is not a known flag; {hint}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
