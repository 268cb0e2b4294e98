"""The asyncio shell around the pure core: commit order, parked calls, timers, ownership, loading."""
