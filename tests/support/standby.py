"""A hot standby of a real Postgres, which can be lost, come back, and take the place of its primary."""

from __future__ import annotations

from pathlib import Path

from tests.support.directories import server_user
from tests.support.postgres import PostgresServer, binary, environment_of, run_program


class PhysicalCopy(PostgresServer):
    """A copy of `primary`, which must run when this starts for the first time, as a server of its own."""

    OPTIONS: tuple[str, ...] = ()

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(durable=False)
        self._primary = primary

    def start(self) -> None:
        if not self.data_directory.exists():
            source = f"{self._primary.dsn()}?application_name={NAME}"
            options: list[str | Path] = ["-D", self.data_directory, "-d", source, "--checkpoint=fast", *self.OPTIONS]
            run_program([binary("pg_basebackup"), *options], environment_of(self._directory), user=server_user())
        super().start()


class Standby(PhysicalCopy):
    """Streams from `primary`."""

    OPTIONS = ("-R",)

    def become_synchronous(self) -> None:
        """From here on each commit of the primary waits for this standby."""
        self._primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
        self._primary.execute("SELECT pg_reload_conf()")

    def states(self) -> str:
        """How the primary sees its standbys: `streaming|sync`, one a line."""
        return self._primary.execute("SELECT state, sync_state FROM pg_stat_replication")

    def take_over(self) -> None:
        """Be the primary, at the primary's port. That one must be dead, and stays so."""
        self.stop()
        self.port = self._primary.port
        self._settings |= {"port": str(self.port), "synchronous_standby_names": ""}
        self.start()
        self.execute("SELECT pg_promote()")


NAME = "standby"
