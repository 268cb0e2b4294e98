"""Processes beside the user's program: `rota lead`, `rota work` and the sidecar."""
