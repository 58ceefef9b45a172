"""The API of FATE's own tools: its `flow` command and its pipeline."""
