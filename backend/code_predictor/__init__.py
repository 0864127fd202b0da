"""The code predictor: from a talker's hidden state and its first code to the frame's other 15 codes.

Imports PyTorch, and Triton or numba where they are used; neither vLLM nor vLLM-Omni.
"""

from backend.code_predictor.controls import Controls
from backend.code_predictor.predictor import CodePredictor, FrameResult
from backend.code_predictor.shape import PredictorShape
from backend.code_predictor.weights import PredictorWeights

__all__ = ["CodePredictor", "Controls", "FrameResult", "PredictorShape", "PredictorWeights"]
