"""coordd as a unit of systemd starts it, for tests: no systemd runs here."""

import os
import re
import shlex
import shutil
import socket

from tests.launchers.slurm_cluster import free_ports
from tests.support import processes
from tests.support.processes import Process, clean_environment

UNIT = os.path.join(processes.ROOT, "deploy", "systemd", "coordd.service")
TLS = "/etc/coordd/tls/"  # where the unit takes certificates from


class Service(Process):
    """The command of the unit, with copies of the certificates in `tls`, as LoadCredential= makes them. `folder`: for its state and what
    it tells systemd; one that starts again in the same has the state of the one before. `ports`: of gRPC and HTTP, instead of the unit's.
    `variables`: what is in /etc/coordd/coordd.env."""

    def __init__(self, tls, folder, program, unit=UNIT, ports=None, **variables):
        with open(unit, encoding="utf-8") as file:
            self.lines = lines = [line.rstrip("\n") for line in file]
        first = ports[0] if ports else free_ports(2)
        self.ports = ports or (first, first + 1)
        self.listen, self.http = (f"127.0.0.1:{port}" for port in self.ports)
        credentials, state = os.path.join(folder, "credentials"), os.path.join(folder, "state")
        shutil.rmtree(credentials, ignore_errors=True)
        os.mkdir(credentials, 0o700)
        os.makedirs(state, 0o700, exist_ok=True)
        for name, _, path in (line.partition("=")[2].partition(":") for line in lines if line.startswith("LoadCredential=")):
            assert path.startswith(TLS), f"{unit} takes {path} from elsewhere than {TLS}"
            shutil.copy2(os.path.join(tls, path.removeprefix(TLS)), os.path.join(credentials, name))
        self.state = state
        given = [word.partition("=") for line in lines if line.startswith("Environment=") for word in line.partition("=")[2].split()]
        known = {"CREDENTIALS_DIRECTORY": credentials, "STATE_DIRECTORY": state, **{name: value for name, _, value in given}}
        [line] = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
        line = re.sub(r"\$\{?(\w+)\}?", lambda name: {**known, **variables}[name.group(1)], line)
        for theirs, ours in (("/usr/bin/coordd", program), (":29650", f":{self.ports[0]}"), (":29651", f":{self.ports[1]}")):
            assert theirs in line or variables, f"ExecStart of {unit} has no {theirs}"
            line = line.replace(theirs, ours)
        notify = os.path.join(folder, "notify")
        if os.path.exists(notify):
            os.remove(notify)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(notify)
        self.manager.settimeout(processes.PATIENCE_S)
        super().__init__(shlex.split(line), clean_environment(NOTIFY_SOCKET=notify, STATE_DIRECTORY=state, XDG_RUNTIME_DIR=folder))

    def says(self):
        """The next thing that it tells systemd."""
        try:
            return self.manager.recv(4096).decode()
        except socket.timeout:
            raise AssertionError(f"coordd tells systemd nothing:\n{self.text()}") from None

    def await_ready(self):
        said = self.says()
        assert said.splitlines()[0] == "READY=1", said
        return self

    def stop(self):
        """As `systemctl stop` does; its exit status."""
        self.child.terminate()
        return self.wait()

    def is_started_again(self):
        """Whether systemd would, once it has ended: always, but for an exit status that the unit names."""
        not_for = [line.partition("=")[2].split() for line in self.lines if line.startswith("RestartPreventExitStatus=")]
        return "Restart=always" in self.lines and str(self.wait()) not in sum(not_for, [])

    def end(self):
        super().end()
        self.manager.close()
