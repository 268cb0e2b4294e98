"""The asyncio shell around `rota.replica`: tasks, futures, timers, calls to stores and peers. It decides nothing."""
