"""Notification of changes: a URL, a program, a file, the labels of the pod."""
