"""Certificates for tests: of `coordctl certs`, and one as it made them before coordd knew roles."""

import os
import shutil
import ssl
import subprocess
import tempfile

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

    def add_by_hand(self, stem, *uris, names="DNS:worker.coordd", constraints="", begin="", end="", usage="clientAuth",
                    more=""):
        """Signed by the authority, with these URIs among its names. `constraints`: its basic ones. `begin`, `end`: YYYYMMDDHHMMSSZ, of
        its validity; a day from now on. `more`: a line of another extension."""
        path = os.path.join(self.folder, stem)
        extensions = os.path.join(self.folder, stem + ".ext")
        with open(extensions, "w", encoding="ascii") as out:
            out.write(f"extendedKeyUsage={usage}\nkeyUsage=digitalSignature\n" + (f"basicConstraints={constraints}\n" if constraints else "") +
                      f"subjectAltName={','.join([names, *(f'URI:{uri}' for uri in uris)])}\n{more}\n")
        subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        path + ".key", "-subj", f"/O=coordd/CN={stem}", "-out", path + ".csr"], check=True, capture_output=True)
        authority = [os.path.join(self.folder, "ca.crt"), os.path.join(self.folder, "ca.key")]
        if begin:
            self._sign_for(path, extensions, authority, ["-startdate", begin, "-enddate", end])
        else:
            subprocess.run(["openssl", "x509", "-req", "-in", path + ".csr", "-CA", authority[0], "-CAkey", authority[1], "-CAcreateserial",
                            "-days", "1", "-extfile", extensions, "-out", path + ".crt"], check=True, capture_output=True)
        os.chmod(path + ".key", 0o600)
        return stem

    def _sign_for(self, path, extensions, authority, validity):
        """Only `openssl ca` takes dates, and it wants a folder of its own."""
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "ca.cnf")
            open(os.path.join(folder, "index"), "w", encoding="ascii").close()
            with open(config, "w", encoding="ascii") as out:
                out.write(f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index\nnew_certs_dir={folder}\nrand_serial=yes\n"
                          "default_md=sha256\npolicy=any\n[any]\norganizationName=optional\ncommonName=supplied\n")
            subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", config, "-in", path + ".csr", "-cert", authority[0], "-keyfile",
                            authority[1], "-extfile", extensions, "-out", path + ".crt", *validity], check=True, capture_output=True)

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
