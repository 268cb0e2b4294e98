"""Rota behind other libraries' interfaces, against those libraries."""
