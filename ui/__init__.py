"""The Gradio page: text in, speech played while it is being made."""
