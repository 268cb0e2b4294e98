"""The sidecar: real processes asked over HTTP, and its parts by themselves."""
