"""Local servers for the measurements in this folder: Waymark, PostgreSQL, and nginx as a proxy. `stop` ends each."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def free_port() -> int:
    """Returns a port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(port: int, method: str, path: str, body=None, timeout: float = 30, headers: dict | None = None):
    """Sends a request. Returns the status, the JSON of the answer or its text, and the headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        try:
            return response.status, json.loads(text), dict(response.headers)
        except ValueError:
            return response.status, text, dict(response.headers)
    finally:
        connection.close()


class Server:
    """A running `waymark serve`."""

    def __init__(self, program: str, folder: Path, name: str, *flags: str, wait: bool = True):
        self.name = name
        self.log = folder / f"{name}.log"
        self.began = time.monotonic()
        self.port = None
        command = [program, "serve", "--host", "127.0.0.1", "--port", "0", "--log", "warn", *map(str, flags)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        if wait:
            self.wait()

    def wait(self, seconds: float = 120) -> None:
        """Waits until the server is ready."""
        while time.monotonic() < self.began + seconds and self.process.poll() is None:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", self.log.read_text())
            try:
                if found and call(int(found[1]), "GET", "/ready", timeout=5)[0] == 200:
                    self.port = int(found[1])
                    self.seconds_to_ready = time.monotonic() - self.began
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.02)
        self.kill()
        raise SystemExit(f"the server {self.name} did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        """Sends SIGTERM, unless the process has ended, and returns its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(90)


class Postgres:
    """A PostgreSQL server over a temporary folder, without a port."""

    def __init__(self):
        places = [Path(place) for place in os.environ["PATH"].split(":")] + sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        programs = [place for place in places if (place / "initdb").is_file() and (place / "pg_ctl").is_file()]
        if not programs:
            raise SystemExit("no `initdb` and `pg_ctl`: install the package `postgresql`")
        self.programs = programs[0]
        # The folder is outside the caller's, because the user `postgres` must reach it.
        self.folder = Path(tempfile.mkdtemp())
        if os.getuid() == 0:
            # The server refuses to run as root.
            shutil.chown(self.folder, "postgres")
        self.url = f"postgres://postgres@localhost/postgres?host={self.folder}"
        self.run("initdb", "-A trust -U postgres")
        self.run("pg_ctl", f"-w -l {self.folder}/log -o \"-c listen_addresses='' -c unix_socket_directories={self.folder}\" start")

    def run(self, program: str, arguments: str) -> None:
        line = f"{self.programs / program} -D {self.folder}/data {arguments}"
        shell = ["su", "postgres", "-s", "/bin/sh", "-c", line] if os.getuid() == 0 else ["/bin/sh", "-c", line]
        subprocess.run(shell, check=True, cwd="/", stdout=subprocess.DEVNULL)

    def version(self) -> str:
        """Returns the version of the server."""
        told = subprocess.run([self.programs / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
        return told.split()[2]

    def stop(self) -> None:
        self.run("pg_ctl", "-m immediate stop")
        shutil.rmtree(self.folder)


class Proxy:
    """nginx as a round-robin proxy of servers. The header `x-upstream` of a response names the server that answered."""

    def __init__(self, folder: Path, ports: list[int]):
        self.folder = folder
        folder.mkdir()
        self.port = free_port()
        self.write(ports)
        self.process = subprocess.Popen(["nginx", "-p", folder, "-c", folder / "nginx.conf"])
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.stop()
        raise SystemExit(f"nginx did not start:\n{(folder / 'error.log').read_text()}")

    def write(self, ports: list[int]) -> None:
        servers = " ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=5s;" for port in ports)
        (self.folder / "nginx.conf").write_text(
            f"""daemon off; pid {self.folder}/pid; error_log {self.folder}/error.log; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy;
  fastcgi_temp_path {self.folder}/f; uwsgi_temp_path {self.folder}/u; scgi_temp_path {self.folder}/s;
  upstream waymark {{ {servers} }}
  server {{
    listen 127.0.0.1:{self.port};
    location / {{
      proxy_pass http://waymark; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host localhost;
      proxy_buffering off; proxy_read_timeout 1h; proxy_connect_timeout 1s; add_header x-upstream $upstream_addr always;
    }}
  }}
}}
"""
        )

    def reload(self, ports: list[int]) -> None:
        """Replaces the servers. Streams in progress go on."""
        self.write(ports)
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
