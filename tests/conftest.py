"""Fixtures for all tests: real servers, started when the first test of a worker asks for them, and processes."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

# Read when gRPC is loaded. Its handlers of fork() now and then crash the child, which is about to run another program.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pytest
from hypothesis import settings

# A shell that starts a suite in the background has it ignore SIGINT, and so would all programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.processes.server import Server
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.valkey import ValkeyServer

# On a busy machine any example takes longer than Hypothesis's limit of 200 ms now and then.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay until the end: the garbage collector need not walk through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of Spark first: one worker gets all of them and starts Spark once, while the others work."""
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """`rota serve` sets the umask of its process, which is that of the tests when they call it as a function."""
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The Postgres of this worker, for databases that come and go. A test that kills servers makes its own."""
    with PostgresServer(durable=False) as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The DSN of a fresh, empty database, dropped after the test."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn.rpartition("/")[2])


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler in transaction mode in front of this worker's Postgres: `pgbouncer.through(dsn)`."""
    with PgBouncer(postgres_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this worker, on SQLite, for tests that keep to groups or a namespace of their own."""
    directory = tmp_path_factory.mktemp("server")
    processes = Processes(directory)
    server = Server(processes, f"sqlite:///{directory / 'rota.db'}")
    server.start_and_wait()
    yield server
    processes.close()


@pytest.fixture(scope="session")
def _valkey_of_the_session() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def valkey_server(_valkey_of_the_session: ValkeyServer) -> ValkeyServer:
    """The Valkey of this worker, running and empty, whatever the test before did to it."""
    if _valkey_of_the_session.process.running:
        _valkey_of_the_session.flushall()
    else:
        _valkey_of_the_session.start()
    return _valkey_of_the_session


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes, such as `processes.rota("serve")`; they end with the test, and a failure shows their output."""
    started = Processes(tmp_path)
    yield started
    started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the processes of a failed test have printed to its report."""
    report = yield
    started = getattr(item, "funcargs", {}).get("processes")
    if report.failed and isinstance(started, Processes):
        report.sections.extend((f"output of {command}", output) for command, output in started.outputs())
    return report
