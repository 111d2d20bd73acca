"""Certificates for tests: of `coordctl certs`, and one as it made them before coordd knew roles."""

import os
import shutil
import ssl
import subprocess

from tests.support.processes import program

HAS_OPENSSL = shutil.which("openssl") is not None


class Certificates:
    """An authority in `folder`, and those it has signed: stems such as "worker" or "launcher-alice"."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([program("coordctl"), "certs", folder, "--name", "127.0.0.1"], check=True, capture_output=True)

    def add(self, role, name=None):
        command = [program("coordctl"), "certs", self.folder, "--role", role, *(["--name", name] if name else [])]
        subprocess.run(command, check=True, capture_output=True)
        return f"{role}-{name}" if name else role

    def add_by_hand(self, stem, *uris, names="DNS:worker.coordd"):
        """Signed by the authority, with these URIs among its names."""
        path = os.path.join(self.folder, stem)
        extensions = os.path.join(self.folder, stem + ".ext")
        with open(extensions, "w", encoding="ascii") as out:
            out.write("extendedKeyUsage=clientAuth\nkeyUsage=digitalSignature\n"
                      f"subjectAltName={','.join([names, *(f'URI:{uri}' for uri in uris)])}\n")
        subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        path + ".key", "-subj", f"/O=coordd/CN={stem}", "-out", path + ".csr"], check=True, capture_output=True)
        subprocess.run(["openssl", "x509", "-req", "-in", path + ".csr", "-CA", os.path.join(self.folder, "ca.crt"), "-CAkey",
                        os.path.join(self.folder, "ca.key"), "-CAcreateserial", "-days", "1", "-extfile", extensions, "-out",
                        path + ".crt"], check=True, capture_output=True)
        os.chmod(path + ".key", 0o600)
        return stem

    def server_flags(self):
        return ["--tls-cert", f"{self.folder}/server.crt", "--tls-key", f"{self.folder}/server.key", "--tls-ca", f"{self.folder}/ca.crt"]

    def flags(self, stem):
        return ["--tls-ca", f"{self.folder}/ca.crt", "--tls-cert", f"{self.folder}/{stem}.crt", "--tls-key", f"{self.folder}/{stem}.key"]

    def variables(self, stem):
        return {"COORDD_TLS_CA": f"{self.folder}/ca.crt", "COORDD_TLS_CERT": f"{self.folder}/{stem}.crt",
                "COORDD_TLS_KEY": f"{self.folder}/{stem}.key"}

    def context(self, stem):
        context = ssl.create_default_context(cafile=f"{self.folder}/ca.crt")
        context.load_cert_chain(f"{self.folder}/{stem}.crt", f"{self.folder}/{stem}.key")
        context.set_alpn_protocols(["h2"])
        return context
