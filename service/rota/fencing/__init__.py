"""Fences for the user's own data: signed tokens that any service checks offline, and transactions of SQLAlchemy.

`rota.fencing.tokens` and `keys` need `pip install 'rota[fencing]'`, `rota.fencing.transactions` needs SQLAlchemy.
"""
