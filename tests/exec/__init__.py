"""Commands that run only while a group grants it: real processes, which are killed, stopped and cut off."""
