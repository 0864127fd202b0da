"""What a request wants of the code predictor, as it travels to the talker's process.

The application imports this before anything slow, so PyTorch comes in only where codes are predicted.
"""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from backend.contract import Mode, SpeechRequest

if TYPE_CHECKING:
    from backend.code_predictor import Controls

_KEY = "code_predictor"


@dataclass(frozen=True)
class PredictorRequest:
    """None in a sent request means the stage configuration's value. `run` names it in reports."""

    run: str = ""
    seed: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    graph: bool = True

    @classmethod
    def of(cls, request: SpeechRequest, run: str, seed: int, default: Mode) -> "PredictorRequest":
        """`default` is the mode of a request that names none."""
        return cls(
            run=run,
            seed=seed,
            temperature=request.predictor_temperature,
            top_k=request.predictor_top_k,
            graph=(request.mode or default) is Mode.GRAPH,
        )

    def write(self, info: dict[str, list[Any]]) -> None:
        """Into a prompt's additional information, where every value is a list."""
        info[_KEY] = [asdict(self)]

    @classmethod
    def read(cls, info: dict[str, Any], defaults: "PredictorRequest") -> "PredictorRequest":
        """From what arrived; with `defaults` where the request is silent, or was made by somebody else."""
        values = (info.get(_KEY) or [{}])[0]
        return replace(defaults, **{name: value for name, value in values.items() if value is not None})

    def controls(self, frame: int) -> "Controls":
        from backend.code_predictor import Controls

        assert self.temperature is not None
        assert self.top_k is not None
        assert self.top_p is not None
        return Controls(self.seed, frame, self.temperature, self.top_k, self.top_p, self.graph)
