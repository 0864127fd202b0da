"""The models of vLLM-Omni that this app speaks with, one `ModelFamily` each; docs/adding-a-model.md."""
