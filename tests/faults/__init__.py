"""A cluster of real processes under load while its parts are killed, paused and cut off from each other."""
