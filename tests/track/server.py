"""MLflow server in its own processes, which tests kill and start again."""

import os
import signal
import subprocess
import sys
import time
import urllib.request

from tests.storage.server import free_port


class TrackingServer:
    """`mlflow server` on a free port, with its data in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Start the server, and wait until it answers."""
        self.launch()
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text())

    def launch(self):
        environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        storage = [
            "--backend-store-uri",
            f"sqlite:///{self.folder}/m.db",
            "--artifacts-destination",
            f"{self.folder}/a",
        ]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, *storage],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
