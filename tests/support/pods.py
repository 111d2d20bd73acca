"""Kubernetes' pods as processes of this machine, each in a network namespace: command, variables, secrets, names of services, SIGTERM
and its grace. There is no image, no scheduler and no probe."""

import os
import re
import signal

from tests.support.processes import Process, program

FIRST_LINES = "127.0.0.1 localhost\n"


def documents(path):
    """{kind: document} of a manifest; the last one of each kind."""
    import yaml
    with open(path, encoding="utf-8") as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


class Cluster:
    """Names that all pods see, once they are there, and what stands for each secret: {name: folder}. `folder` is for files."""

    def __init__(self, network, folder, secrets):
        self.network, self.folder, self.secrets = network, folder, secrets
        self.hosts_file = os.path.join(folder, "hosts")
        with open(self.hosts_file, "w", encoding="ascii") as hosts:
            hosts.write(FIRST_LINES)

    def add_name(self, name, host):
        with open(self.hosts_file, "a", encoding="ascii") as hosts:  # the same file: pods have it mounted
            hosts.write(f"{self.network.addresses[host]} {name}\n")

    def start(self, spec, host, *, name, replace=None, variables=None, more_mounts=None):
        """The first container of a pod's `spec` on a host of the network. `replace`: words of the command. -> Process"""
        container = spec["containers"][0]
        volumes = {one["name"]: self.secrets.get(one.get("secret", {}).get("secretName")) for one in spec.get("volumes", [])}
        mounts = {one["mountPath"]: volumes.get(one["name"]) for one in container.get("volumeMounts", [])}
        mounts = {path: folder for path, folder in {**mounts, **(more_mounts or {})}.items() if folder}

        def real(text):
            for path, folder in mounts.items():
                text = re.sub(rf"(^|[=:]){re.escape(path)}(?=/|$)", lambda found, to=folder: found[1] + to, text)
            return text

        environment = {"PATH": os.environ["PATH"], "HOME": self.folder, "HOSTNAME": name,
                       "COORDD_TEST_ID": os.environ["COORDD_TEST_ID"], "KUBERNETES_SERVICE_HOST": "10.77.0.250"}
        environment.update({one["name"]: real(one["value"]) for one in container.get("env", []) if "value" in one})
        environment.update(variables or {})
        command = [real(word) for word in [*container.get("command", []), *container.get("args", [])]]
        command = [new for word in command for new in (replace or {}).get(word, [word])]
        return Pod([*self.network.on(host), "unshare", "--uts", "sh", "-c",
                    'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"', "pod", self.hosts_file, name, *command],
                   environment, name)

    def start_coordd(self, manifest, host, state):
        """That of a StatefulSet; its service's name is there from now on."""
        found = documents(manifest)
        self.add_name(found["Service"]["metadata"]["name"], host)
        spec = found["StatefulSet"]["spec"]["template"]["spec"]
        pod_spec = {**spec, "containers": [{**spec["containers"][0], "command": [program("coordd")]}]}
        return self.start(pod_spec, host, name="coordd-0", more_mounts={"/var/lib/coordd": state})


class Pod(Process):
    """`name`: its host name."""

    def __init__(self, command, environment, name):
        super().__init__(command, environment)
        self.name = name

    def kill(self):
        """As the kernel does when it is out of memory: the first process, and with it all of the pod."""
        self.signal(signal.SIGKILL)
        self.child.wait()
