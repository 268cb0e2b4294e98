"""Rota: Kafka's group protocol for processes that know nothing of Kafka."""
