"""How messages look as JSON, and which status an error has on each transport. Light: the SDK imports it too."""
