"""Measures the code predictor and the whole engine: `python -m backend.benchmark --help`."""
