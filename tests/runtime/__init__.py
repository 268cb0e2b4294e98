"""The asyncio shell around the core, on the store's twin in memory."""
