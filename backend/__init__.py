"""The speech engine: vLLM-Omni in process, and everything around it that knows nothing of a page."""
