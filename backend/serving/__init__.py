"""The OpenAI-compatible speech API, served on the page's port by the page's engine."""
