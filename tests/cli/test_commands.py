"""The output of each command, its stream, and its exit code."""

from __future__ import annotations

import asyncio
import json
import re
import ssl

import pytest
import trustme

from tests.cli.conftest import Rota
from tests.client.strange_servers import Serve, answering_404, answering_garbage, listening

pytestmark = pytest.mark.processes


def test_groups_are_listed_as_a_table_as_json_and_by_name(rota: Rota) -> None:
    rota.member("indexers")
    rota("offsets", "set", "--force", "billing", "invoices", "0", "7")

    table = rota("groups", "list").out.splitlines()
    listed = json.loads(rota("groups", "list", "-o", "json").out)
    lines = rota("-o", "ndjson", "groups", "list").out.splitlines()

    assert table[0].split() == ["GROUP-ID", "STATE", "PROTOCOL-TYPE", "GENERATION-ID", "MEMBERS"]
    assert [line.split() for line in table[1:]] == [
        ["billing", "Empty", "-", "0", "0"],
        ["indexers", "Stable", "worker", "1", "1"],
    ]
    assert listed == [json.loads(line) for line in lines]
    assert rota("groups", "list", "-o", "name").out.split() == ["billing", "indexers"]
    assert rota("groups", "list", "--state", "Stable", "-o", "name").out.split() == ["indexers"]
    assert rota("groups", "list", "--state", " stable ,DEAD", "-o", "name").out.split() == ["indexers"]


def test_a_description_has_members_and_the_last_rebalance(rota: Rota) -> None:
    member_id = rota.member("indexers")

    described = rota("groups", "describe", "indexers")

    assert described.exit_code == 0
    assert "Stable, since" in described.out
    assert f"member {member_id} joined; client reason: to work" in described.out
    assert json.loads(rota("groups", "describe", "indexers", "-o", "json").out)["leader_id"] == member_id


def test_watch_prints_every_event_with_its_reason_one_a_line(rota: Rota) -> None:
    member_id = rota.member("indexers")

    past = ("groups", "watch", "indexers", "--after", "0", "-n", "5")
    events = [json.loads(line) for line in rota(*past).out.splitlines()]
    lines = rota(*past, "-o", "table").out.splitlines()

    kinds = ["member_joined", "rebalance_started", "generation_completed", "leader_changed", "assignment_synced"]
    assert [event["kind"] for event in events] == kinds
    assert f"{member_id} joins: to work" in lines[0]
    assert f"rebalance: member {member_id} joined" in lines[1]
    assert f"1 member agrees, {member_id} leads by 'range'" in lines[2]


def test_a_member_is_removed_and_then_the_group_can_be_deleted(rota: Rota) -> None:
    member_id = rota.member("indexers")

    refused = rota("groups", "delete", "--yes", "indexers")
    removed = rota("groups", "remove-member", "--yes", "indexers", member_id, "--reason", "it hangs")
    deleted = rota("groups", "delete", "--yes", "indexers", "--reason", "no longer used")

    assert (refused.exit_code, refused.err) == (5, "rota: it has 1 members (NON_EMPTY_GROUP)\n")
    assert (removed.exit_code, deleted.exit_code) == (0, 0)
    history = rota("groups", "watch", "indexers", "--after", "0", "-n", "8", "-o", "table").out
    assert f"{member_id} removed: it hangs" in history
    assert history.splitlines()[-1].endswith("the group is deleted: deleted on request: no longer used")
    for command in ("describe", "why"):
        gone = rota("groups", command, "indexers")
        name, time = f"rota: Group 'indexers' in namespace '{rota.namespace}'", r"\d{4}-\d\d-\d\d [\d:]{8}"
        end = rf"{name}: no members since {time}: (.*); deleted {time}: (.*) \(GROUP_DELETED\)\n"
        said = re.fullmatch(end, gone.err)
        assert said, gone.err
        assert (gone.exit_code, gone.out) == (6, "")
        assert said.groups() == (f"{member_id} was removed", "deleted on request: no longer used")


def test_a_group_is_made_to_agree_anew(rota: Rota) -> None:
    member_id = rota.member("indexers")

    asked = rota("groups", "rebalance", "indexers", "--step-down", "--reason", "new machines")

    assert (asked.exit_code, asked.err) == (0, "generation 1 of indexers ends\n")
    last = rota("groups", "watch", "indexers", "--after", "0", "-n", "6", "-o", "table").out.splitlines()[-1]
    assert last.endswith(f"rebalance: leader {member_id} was asked to step down: new machines")


def test_the_rule_of_a_quarantine_is_set_and_units_are_released(rota: Rota) -> None:
    rota.member("indexers")

    before = rota("groups", "quarantine", "indexers")
    set_to = rota("groups", "quarantine", "indexers", "--after", "3", "--release-after", "1h")
    after = rota("groups", "quarantine", "indexers")
    released = rota("groups", "release", "indexers", "docs/3")

    assert (before.exit_code, before.out, before.err) == (0, "", "group indexers has no quarantine\n")
    assert set_to.err.endswith("after 3 holders in a row failed with it, for 3600 s; at most 1 at once\n")
    assert after.err == "no unit is quarantined\n"
    assert (released.exit_code != 0, "docs/3 is not quarantined" in released.err) == (True, True)


def test_a_member_may_leave_only_after_the_freeze(rota: Rota) -> None:
    member_id = rota.member("indexers")

    frozen = rota("groups", "freeze", "indexers", "--for", "20m", "--reason", "a deploy")
    why = rota("groups", "why", "indexers").out
    refused = rota("groups", "drain", "indexers", member_id)
    unfrozen = rota("groups", "unfreeze", "indexers")
    granted = rota("groups", "drain", "indexers", member_id, "--wait", "1")

    assert (frozen.exit_code, frozen.err) == (0, "group indexers is frozen; the freeze ends in 20m\n")
    assert "(a deploy): newcomers, changes of topics and higher priorities wait." in why
    assert (refused.exit_code, "frozen for" in refused.err) == (69, True)
    assert (unfrozen.exit_code, granted.exit_code) == (0, 0)
    assert granted.err.startswith(f"{member_id} may leave indexers: the permission ends in ")
    assert rota("groups", "freeze", "indexers", "--for", "soon").exit_code == 2


def test_offsets_are_set_listed_and_deleted(rota: Rota) -> None:
    rota("offsets", "set", "--force", "billing", "invoices", "0", "7", "--metadata", "by hand")
    rota("offsets", "set", "--force", "billing", "invoices", "1", "9")
    rota("offsets", "set", "--force", "billing", "orders", "0", "1")

    deleted = rota("offsets", "delete", "--yes", "billing", "invoices", "1", "2")
    listed = rota("offsets", "list", "billing", "--topic", "invoices").out.splitlines()

    assert deleted.exit_code == 0
    assert listed[0].split() == ["TOPIC", "PARTITION", "OFFSET", "COMMITTED", "EXPIRES", "METADATA"]
    assert [line.split()[:3] for line in listed[1:]] == [["invoices", "0", "7"]]
    assert listed[1].endswith("by hand")
    assert rota("offsets", "list", "billing", "-o", "name").out.split() == ["invoices/0", "orders/0"]


ADMINISTERED = {
    "offsets set workers words 0 1": (5, "it has 1 members, and an administrator sets offsets only while it has none"),
    "offsets set empty words 3 1": (2, "topic words has 3 partitions, 0 to 2"),
    "offsets set --force empty words 3 1": (2, "topic words has 3 partitions, 0 to 2"),
    "offsets set empty wrods 0 1": (3, "topic wrods is not registered in namespace"),
    "offsets delete --yes workers words 0": (5, "The group has members"),
    "offsets delete --yes readers words 0": (5, "words/0: The group is subscribed to the topic"),
    "groups remove-member --yes nobody x": (3, "No such group"),
    "groups remove-member --yes workers x": (3, "No such member"),
    "groups drain workers x": (3, "No such member"),
    "groups delete --yes workers": (5, "it has 1 members"),
    "groups rebalance empty": (2, "the group has no members"),
    "groups quarantine empty --after 3": (2, "the group has had no generation yet"),
}


@pytest.mark.parametrize("words", ADMINISTERED)
def test_a_rejected_administrator_reads_what_is_the_case(rota: Rota, words: str) -> None:
    rota("topics", "put", "words", "--partitions", "3")
    rota("offsets", "set", "empty", "words", "0", "1")
    rota.member("workers")
    rota.member("readers", reads="words")
    exit_code, says = ADMINISTERED[words]

    refused = rota(*words.split())

    assert (refused.exit_code, refused.out) == (exit_code, "")
    assert says in refused.err


def test_topics_are_put_shown_listed_and_deleted(rota: Rota) -> None:
    put = rota("topics", "put", "words", "--partitions", "12", "-a", "owner=search", "-o", "json")
    shrunk = rota("topics", "put", "words", "--partitions", "3")
    table = rota("topics", "list").out.splitlines()
    deleted = rota("topics", "delete", "--yes", "words")
    gone = rota("topics", "get", "words")

    assert json.loads(put.out) == {"topic": "words", "partitions": 12, "attributes": {"owner": "search"}}
    assert (shrunk.exit_code, table[1].split()) == (2, ["words", "12", "owner=search"])
    assert (deleted.exit_code, deleted.out, deleted.err) == (
        0,
        "",
        "topic words is deleted; groups that had progress in it: 0\n",
    )
    assert (gone.exit_code, gone.out, gone.err) == (
        3,
        "",
        f"rota: No such topic 'words' in namespace '{rota.namespace}' (UNKNOWN_TOPIC)\n",
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("groups", "list", "--state", "Foo"), 2, "unknown state 'Foo'; known are CompletingRebalance, Dead, Empty"),
        (("groups", "list", "--state", "Stabel"), 2, "unknown state 'Stabel'; did you mean 'Stable'?"),
        (("groups", "describe", "nobody"), 3, "No such group 'nobody' in namespace '"),
        (("topics", "put", "t", "-p", "1", "-a", "x"), 2, "--attribute must be NAME=VALUE"),
        (("serve", "--http", "nowhere"), 2, "--http (ROTA_HTTP): must be HOST:PORT"),
        *(
            pytest.param(*row, marks=pytest.mark.thorough)
            for row in (
                (("serve", "--grpc", "nowhere"), 2, "--grpc (ROTA_GRPC): must be HOST:PORT"),
                (
                    ("serve", "--redis", "http://me:secret@x"),
                    2,
                    "--redis (ROTA_REDIS): must be redis://…, rediss://… (TLS) or unix://…",
                ),
                (
                    ("serve", "--workers", "2", "--http", "127.0.0.1:0"),
                    1,
                    "more than one worker needs a store in Postgres",
                ),
                (
                    ("serve", "--store", "mysql://user:secret@x/y", "--http", "127.0.0.1:0"),
                    1,
                    "not mysql://…",
                ),
            )
        ),
        (("db", "verify", "--store", "sqlite:////nowhere/rota.db"), 1, "there is no store at /nowhere/rota.db"),
    ],
)
def test_every_failure_is_one_clear_line_and_an_exit_code(
    rota: Rota, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    failed = rota.as_process(*arguments) if arguments[0] == "serve" else rota(*arguments)

    lines = [line for line in failed.err.splitlines() if not line.startswith("{")]
    assert (failed.exit_code, failed.out, len(lines)) == (exit_code, "", 1), failed
    assert lines[0].startswith("rota: ")
    assert says in lines[0]
    assert "secret" not in failed.err


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (answering_404, "HTTP status 404 from http://127.0.0.1:{port} without an error code of Rota's"),
        (answering_garbage, "http://127.0.0.1:{port} gives no answer that can be read"),
    ],
)
async def test_another_program_at_the_address_is_reported_as_such(rota: Rota, serve: Serve, says: str) -> None:
    async with listening(serve) as port:
        url = f"http://127.0.0.1:{port}"
        failed = await asyncio.to_thread(rota, "groups", "describe", "g", "--url", url)

    question = "is this a Rota server, or a proxy in front of it?"
    assert (failed.exit_code, failed.err) == (69, f"rota: {says.format(port=port)}; {question}\n")


async def test_a_server_whose_certificate_is_not_trusted_is_there(rota: Rota) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with listening(answering_404, context) as port:
        failed = await asyncio.to_thread(rota, "groups", "list", "--url", f"https://127.0.0.1:{port}")

    assert (failed.exit_code, failed.err.count("\n")) == (69, 1)
    assert "certificate verify failed" in failed.err
    assert "starts one" not in failed.err


def test_options_win_over_the_environment(rota: Rota) -> None:
    rota("topics", "put", "words", "-p", "1")

    assert rota("topics", "list", "-o", "name", "--namespace", "elsewhere").out == ""
    assert rota("--namespace", "elsewhere", "topics", "list", "-o", "name").out == ""
    assert rota("topics", "list", "-o", "name", "--url", rota.url, ROTA_URL="http://127.0.0.1:1").out == "words\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("work", "g", "--", "true"), "one of --topic TOPIC, --topic-regex REGEX and --connector NAME"),
        (("work", "g", "--topic", "t", "--topic-regex", "t.*", "--", "true"), "one of --topic TOPIC, --topic-regex"),
        (("work", "g", "--topic-regex", "(", "--", "true"), "is no regular expression of RE2: missing )"),
        (("work", "g", "--topic", "t", "--except", "u", "--", "true"), "--except goes with --topic-regex"),
        (("work", "g", "--topic-regex", "t.*", "--except", "u/", "--", "true"), "topic must be 1 to 249 of"),
        (("sidecar", "--lead", "g", "--except", "u"), "--lead does not go with --topic"),
        (("sidecar", "--work", "g"), "one of --topic TOPIC, --topic-regex REGEX and --connector NAME"),
        (("sidecar", "--lead", "g", "--topic-regex", "t.*"), "--lead does not go with --topic"),
        (("sidecar", "--work", "g", "--topic-regex", "a(?!b)"), "is no regular expression of RE2: invalid perl"),
    ],
)
def test_a_worker_needs_names_or_one_good_expression(rota: Rota, given: tuple[str, ...], says: str) -> None:
    refused = rota(*given)

    assert refused.exit_code == 2
    assert says in refused.err
