"""Runs containers of rendered pods as processes of this machine: no engine, no cluster, but the same words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.deploy.kubernetes import Manifest, containers
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

_REFERENCE = re.compile(r"\$\((\w+)\)")
POD_IP = "127.0.0.1"


class Pod:
    """One pod. Its ports are free ones of this machine, its volumes folders of the test.

    What a container says of its ports and paths is rewritten to those, in its arguments and its environment; all else
    is run as it stands. `secrets` and `config_maps` are those of the namespace: what each has by its keys.
    """

    def __init__(
        self,
        template: Manifest,
        processes: Processes,
        folder: Path,
        *,
        name: str,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        config_maps: Mapping[str, Mapping[str, str]] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        loopback: Iterable[int] = (),
    ) -> None:
        """`elsewhere` rewrites addresses that only a cluster knows; `loopback` are ports that no manifest names."""
        self._spec = template["spec"]
        self._processes = processes
        self._secrets = secrets or {}
        self._config_maps = config_maps or {}
        self._fields = {"status.podIP": POD_IP, "metadata.name": name, "metadata.namespace": "prod"}
        self._containers = {container["name"]: container for container in containers(template)}
        declared = (
            port["containerPort"] for container in self._containers.values() for port in container.get("ports", ())
        )
        self._ports = {port: free_port() for port in (*declared, *loopback)}
        self._volumes = {volume["name"]: folder / name / volume["name"] for volume in self._spec.get("volumes", ())}
        self._elsewhere = dict(elsewhere or {})
        for volume in self._spec.get("volumes", ()):
            self._fill(volume)

    def run(self, name: str, **more: str) -> Process:
        """Start a container: `rota` with its arguments, or its own command; `more` is added to its environment."""
        container, environment = self._containers[name], {**self.environment(name), **more}
        arguments = [self._here(argument, container) for argument in container.get("args", ())]
        if "command" not in container:
            return self._processes.rota(*arguments, env=environment)
        program, *command = container["command"]
        assert program == "python", f"no image of {program} here"
        return self._processes.start(sys.executable, *command, *arguments, env=environment)

    def environment(self, name: str) -> dict[str, str]:
        """What the container finds, with references to earlier variables resolved as a kubelet does."""
        container = self._containers[name]
        found: dict[str, str] = {}
        for variable in container.get("env", ()):
            value = self._value(variable)
            found[variable["name"]] = _REFERENCE.sub(lambda match: found.get(match[1], match[0]), value)
        return {name: self._here(value, container) for name, value in found.items()}

    def probe(self, name: str, kind: str) -> str:
        """The URL that the kubelet asks."""
        container = self._containers[name]
        get = container[f"{kind}Probe"]["httpGet"]
        (port,) = (port["containerPort"] for port in container["ports"] if port["name"] == get["port"])
        return f"{get.get('scheme', 'HTTP').lower()}://{POD_IP}:{self._ports[port]}{get['path']}"

    def port(self, number: int) -> int:
        """Where a port of the pod is on this machine."""
        return self._ports[number]

    def path(self, container: str, path: str) -> Path:
        """Where a path of a container is on this machine."""
        return Path(self._here(path, self._containers[container]))

    def _value(self, variable: Manifest) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return self._fields[source["fieldRef"]["fieldPath"]]
        if "secretKeyRef" in source:
            return self._secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        return str(variable["value"])

    def _here(self, text: str, container: Manifest) -> str:
        folders = {mount["mountPath"]: self._volumes[mount["name"]] for mount in container.get("volumeMounts", ())}
        if folders:
            paths = "|".join(map(re.escape, folders))
            text = re.sub(rf"(?<![\w./])({paths})(?![\w.-])", lambda match: str(folders[match[1]]), text)
        for given, address in self._elsewhere.items():
            text = text.replace(given, address)
        for port, free in self._ports.items():
            text = re.sub(rf"({re.escape(POD_IP)}|0\.0\.0\.0):{port}\b", rf"\1:{free}", text)
        return text.replace("0.0.0.0", POD_IP)

    def _fill(self, volume: Manifest) -> None:
        folder = self._volumes[volume["name"]]
        folder.mkdir(parents=True)
        if (secret := volume.get("secret")) is not None:
            self._copy(self._secrets[secret["secretName"]], secret, folder)
        if (config := volume.get("configMap")) is not None:
            self._copy(self._config_maps[config["name"]], config, folder)

        for source in volume.get("projected", {}).get("sources", ()):
            (folder / source["serviceAccountToken"]["path"]).write_text("a token of the service account")

    def _copy(self, keys: Mapping[str, str], source: Manifest, folder: Path) -> None:
        for item in source.get("items", [{"key": key, "path": key} for key in keys]):
            (folder / item["path"]).write_text(keys[item["key"]])
