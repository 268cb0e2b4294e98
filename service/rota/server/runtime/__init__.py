"""The asyncio shell around `rota.core.replica`: tasks, timers, calls to stores and peers. It decides nothing."""
