"""The previous release beside this one."""
