"""Commands that return the data of a page, for scripts."""

from __future__ import annotations

from shlex import quote
from urllib.parse import quote as segment


def commands_of(base_url: str, namespace: str, group_id: str) -> list[tuple[str, str]]:
    """Return each command with its name."""
    where = "" if namespace == "default" else f" --namespace {quote(namespace)}"
    url = f"{base_url}/v1/namespaces/{segment(namespace, safe='')}/groups/{segment(group_id, safe='')}"
    group = quote(group_id)
    rota = f"rota --url {quote(base_url)}{where} groups"
    return [
        ("why, in words", f"{rota} why {group}"),
        ("describe", f"{rota} describe {group}"),
        ("follow", f"{rota} watch {group}"),
        ("describe, with curl", f"curl -s {quote(url)}"),
        ("follow, with curl", f"curl -sN {quote(url + '/events')}"),
        ("wait for another leader", f"curl -s {quote(url + '/leader?wait_ms=30000')}"),
    ]


def action_commands(base_url: str, namespace: str, group_id: str, action: str, member_id: str) -> list[tuple[str, str]]:
    """Return the command that has the effect of a form."""
    where = "" if namespace == "default" else f" --namespace {quote(namespace)}"
    url = f"{base_url}/v1/namespaces/{segment(namespace, safe='')}/groups/{segment(group_id, safe='')}"
    rota = f"rota --url {quote(base_url)}{where} groups"
    json = "-H 'content-type: application/json'"
    group = quote(group_id)
    match action:
        case "evict":
            member = quote(f"{url}/members/{segment(member_id, safe='')}")
            return [
                ("CLI", f"{rota} remove-member {group} {quote(member_id)} --reason WHY"),
                ("curl", f"curl -X DELETE {member}"),
            ]
        case "delete":
            return [("CLI", f"{rota} delete {group} --reason WHY"), ("curl", f"curl -X DELETE {quote(url)}")]
        case "freeze":
            body = '{"for_ms": 1200000}'
            return [
                ("CLI", f"{rota} freeze {group} --for 20m --reason WHY"),
                ("curl", f"curl -X POST {json} -d '{body}' {quote(url + '/freeze')}"),
            ]
        case "release":
            body = '{"release": ["UNIT"]}'
            return [
                ("CLI", f"{rota} release {group} $({rota} quarantine {group}) --reason WHY"),
                ("curl", f"curl -X POST {json} -d '{body}' {quote(url + '/quarantine')}"),
            ]
        case "unfreeze":
            body = '{"for_ms": 0}'
            return [
                ("CLI", f"{rota} unfreeze {group} --reason WHY"),
                ("curl", f"curl -X POST {json} -d '{body}' {quote(url + '/freeze')}"),
            ]
        case _:
            flag, body = (" --step-down", '{"step_down": true}') if action == "step-down" else ("", "{}")
            return [
                ("CLI", f"{rota} rebalance {group}{flag} --reason WHY"),
                ("curl", f"curl -X POST {json} -d '{body}' {quote(url + '/rebalance')}"),
            ]
