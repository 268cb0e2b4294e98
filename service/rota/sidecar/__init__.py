"""One member beside a program in any language: it asks over HTTP on loopback, or hooks notify it. `rota sidecar`.

`seat.py` holds the membership, `news.py` what changes in it, `app.py` answers questions, `hooks/` tells others, and
`serve.py` puts them together. Every answer carries its own expiry, and none is given beyond it.
"""
