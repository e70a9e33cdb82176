"""The configurations in docs/deploy.md, checked by the programs that they are for."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def block(kind):
    return re.search(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)[1]


def program(name):
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    return found or pytest.skip(f"{name} is not installed")


def test_systemd_unit(tmp_path):
    analyze = program("systemd-analyze")
    lmrc = tmp_path / "lmrc"
    lmrc.write_text("#!/bin/sh\n")
    lmrc.chmod(0o755)
    unit = tmp_path / "lmrc.service"
    unit.write_text(block("ini").replace("/opt/lmrc/bin/lmrc", str(lmrc)))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if "lmrc.service" in line]
    assert (done.returncode, told) == (0, [])


def test_nginx_configuration(tmp_path):
    nginx, openssl = program("nginx"), program("openssl")
    names = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=models.example.org", "-out", names[0], "-keyout", names[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    server = block("nginx").replace("/etc/ssl/models.example.org.pem", str(names[0]))
    server = server.replace("/etc/ssl/private/models.example.org.key", str(names[1]))
    server = server.replace("listen 443 ssl", "listen 127.0.0.1:8443 ssl")
    folders = "client_body_temp_path proxy_temp_path fastcgi_temp_path uwsgi_temp_path"
    places = "".join(f"{n} {tmp_path}/{n};" for n in (*folders.split(), "scgi_temp_path"))
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places}\n{server} }}"
    )
    done = subprocess.run([nginx, "-t", "-c", config], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
