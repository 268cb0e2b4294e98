"""The web console: server-rendered pages that show groups live, and guarded actions on them."""
