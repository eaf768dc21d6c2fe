"""Processes meet by mutual TLS, where JAX has it, and nobody without a certificate joins them."""

import inspect
import shutil
import subprocess

import jax
import pytest

from tests.hosts.test_hosts import COLLECTIVE, JOINED, begin, finish

HAS_TLS = "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_TLS, reason=f"jax {jax.__version__} has no TLS for its service"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"),
]


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path):
    """Variables of the environment that name a certificate for this machine, and who signed it."""
    ca, key, signed = (str(tmp_path / name) for name in ("ca.pem", "key.pem", "cert.pem"))
    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    openssl(*new, "-x509", "-subj", "/CN=meshdsl CA", "-keyout", f"{ca}.key", "-out", ca)
    openssl(*new, "-subj", "/CN=localhost", "-keyout", key, "-out", f"{signed}.request")
    names = tmp_path / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    by = ["-CA", ca, "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", str(names)]
    openssl("x509", "-req", "-in", f"{signed}.request", *by, "-days", "1", "-out", signed)
    return {"JAX_MTLS_CERT_FILE": signed, "JAX_MTLS_KEY_FILE": key, "JAX_MTLS_CA_FILE": ca}


WITHOUT = """
    import os, sys
    if sys.argv[3] == "1":
        for name in [each for each in os.environ if each.startswith("JAX_MTLS")]:
            del os.environ[name]
"""


@pytest.fixture
def secured(certificates, monkeypatch):
    for name, value in certificates.items():
        monkeypatch.setenv(name, value)


def test_processes_with_certificates_meet(secured, monkeypatch):
    monkeypatch.setenv("JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS", "true")
    both = begin(JOINED, COLLECTIVE, "print(float(total(ones)))")
    assert [found[:2] for found in finish(both)] == [(0, "2.0\n")] * 2


def test_a_process_without_one_does_not_join(secured):
    found = finish(begin(WITHOUT, JOINED.replace("patience=60", "patience=8"), "print('joined')"))
    assert all(code and "joined" not in printed for code, printed, _ in found), found
