"""Facts about Kafka's behaviour, run against our core."""
