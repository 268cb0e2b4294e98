"""One member for a program in any language, which polls over HTTP on loopback or is notified by hooks: `rota sidecar`.

`membership.py` has the member, `status.py` its status and changes, `app.py` the API, `hooks.py` the notifications, and
`serve.py` combines them. Every answer has an expiry, and is never returned after it.
"""
