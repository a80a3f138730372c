"""A kit on disk: whose it is, whom it dials, whether its certificates hold, and whether the house is there."""

from __future__ import annotations

import json
import socket
import ssl
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from concilium.errors import KitError, find_wrong_section
from concilium.transports.flare.hardening import Role

FILES: dict[Role, str] = {"site": "fed_client.json", "house": "fed_server.json", "person": "fed_admin.json"}
WHOSE: dict[Role, str] = {
    "site": "a hospital",
    "house": "the house",
    "person": "a person who submits studies",
}
SOON = timedelta(days=30)
CONNECTED_WITHIN = 10.0
REFUSED_WITHIN = 1.0


class HouseNotThere(KitError):
    """Nobody answers where the house should be: it may come."""


@dataclass(frozen=True)
class Kit:
    """`Kit.open(folder, "site")`. `project` names the network it was made for."""

    folder: Path
    role: Role
    name: str
    organisation: str
    project: str
    host: str
    port: int
    certificate: x509.Certificate
    authority: x509.Certificate

    @classmethod
    def open(cls, folder: str | Path, role: Role) -> Kit:
        """The kit in a folder; KitError where there is none, or that of another role."""
        folder = Path(folder).absolute()
        startup = folder / "startup"
        found = [one for one, file in FILES.items() if (startup / file).is_file()]
        if not found:
            raise KitError(f"{folder}: is not a kit; it has no folder startup with {FILES[role]}")
        if role not in found:
            raise KitError(
                f"{folder}: is the kit of {WHOSE[found[0]]}, and this command needs that of {WHOSE[role]}"
            )
        document = read_json(startup / FILES[role])
        stem = "server" if role == "house" else "client"
        certificate = read_certificate(startup / f"{stem}.crt")
        authority = read_certificate(startup / "rootCA.pem")
        try:
            if role == "person":
                admin = document["admin"]
                project, host, port = admin["project_name"], admin["host"], int(admin["port"])
            else:
                server = document["servers"][0]
                host, _, number = server["service"]["target"].rpartition(":")
                project, port = server["name"], int(number)
        except (KeyError, IndexError, TypeError, ValueError):
            raise KitError(
                f"{startup / FILES[role]}: is not as it was made; get the kit anew from whoever made it"
            ) from None
        kit = cls(
            folder,
            role,
            _read_name(certificate, NameOID.COMMON_NAME),
            _read_name(certificate, NameOID.ORGANIZATION_NAME),
            project,
            host,
            port,
            certificate,
            authority,
        )
        kit._check_key(startup / f"{stem}.key")
        return kit

    def _check_key(self, path: Path) -> None:
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise KitError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, TypeError):
            raise KitError(f"{path}: is not the key of a certificate; get the kit anew") from None
        if key.public_key() != self.certificate.public_key() or not _is_issued_by(
            self.certificate, self.authority
        ):
            raise KitError(
                f"{self.folder / 'startup'}: its key, its certificate and its rootCA.pem do not belong together: files "
                "of two kits, or of two projects, were mixed; unpack the kit anew"
            )

    def check_dates(self, now: datetime | None = None) -> str:
        """KitError where the certificate does not hold today by this machine's clock; a warning where it soon will
        not, else nothing."""
        now = now or datetime.now(UTC)
        starts, ends = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
        if now < starts:
            raise KitError(
                f"{self.name}: its certificate holds from {starts:%Y-%m-%d %H:%M} UTC on, and this machine's clock "
                f"says {now:%Y-%m-%d %H:%M}: set the clock, best by NTP"
            )
        if now > ends:
            raise KitError(
                f"{self.name}: its certificate expired on {ends:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
                f"{now:%Y-%m-%d %H:%M}: have it renewed (concilium flare provision --renew), or "
                "set a clock that is wrong"
            )
        if now > ends - SOON:
            return (
                f"{self.name}: its certificate expires on {ends:%Y-%m-%d}, in {(ends - now).days} days; have it "
                "renewed (concilium flare provision --renew), replace the kit's folder startup, and start again"
            )
        last = self.authority.not_valid_after_utc
        if now > last - SOON:
            return (
                f"{self.name}: the authority of this network ends on {last:%Y-%m-%d}, and with it every certificate; "
                "have the whole network provisioned anew"
            )
        return ""

    def check_house(self) -> None:
        """Dial the house and show the certificate: HouseNotThere where nobody answers, KitError where it is another's
        house, or does not take this kit."""
        where = f"{self.host}:{self.port}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # a house is known by its project's authority
        context.load_verify_locations(self.folder / "startup" / "rootCA.pem")
        context.load_cert_chain(
            self.folder / "startup" / "client.crt", self.folder / "startup" / "client.key"
        )
        try:
            with (
                socket.create_connection((self.host, self.port), CONNECTED_WITHIN) as plain,
                context.wrap_socket(plain) as secured,
            ):
                secured.settimeout(REFUSED_WITHIN)
                secured.recv(1)  # whoever refuses a certificate says so only now, or hangs up
            raise KitError(self._say_refused(where, "it hangs up"))
        except ssl.SSLCertVerificationError as error:
            raise KitError(self._explain(where, error)) from None
        except TimeoutError as error:
            if "timed out" in str(error) and "read" in str(error):
                return
            raise HouseNotThere(f"{self.name}: nobody answers at {where} (timed out)") from None
        except ssl.SSLEOFError:  # by a gate on the way, behind which nobody listens (yet)
            raise HouseNotThere(
                f"{self.name}: the connection to {where} was cut; is the house running?"
            ) from None
        except ssl.SSLError as error:
            raise KitError(self._say_refused(where, error.reason)) from None
        except socket.gaierror:
            raise HouseNotThere(
                f"{self.name}: the name {self.host} of the house is not known here; ask the network's administrator"
            ) from None
        except OSError as error:
            raise HouseNotThere(
                f"{self.name}: nobody answers at {where} ({error.strerror or error}); is the house running, and is the "
                f"way out to TCP port {self.port} open?"
            ) from None

    def _say_refused(self, where: str, reason: str) -> str:
        return (
            f"{self.name}: the house at {where} does not take this kit's certificate ({reason}): it is of another "
            "project, or was withdrawn; get the kit that was made with the house's"
        )

    def _explain(self, where: str, error: ssl.SSLCertVerificationError) -> str:
        reason = error.verify_message
        if "expired" in reason or "not yet valid" in reason:
            return (
                f"{self.name}: the certificate of the house at {where} does not hold by this machine's clock "
                f"({reason}): set the clock, best by NTP, or have the house get a new kit"
            )
        return (
            f"{self.name}: at {where} is the house of another project than {self.project!r} ({reason}): get the kit "
            "that was made with that house's, or fix its address"
        )


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(f"{path}: cannot be read ({error})") from None


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise KitError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise KitError(f"{path}: is not a certificate; get the kit anew") from None


def _read_name(certificate: x509.Certificate, part: x509.ObjectIdentifier) -> str:
    found = certificate.subject.get_attributes_for_oid(part)
    return str(found[0].value) if found else ""


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or certificate.signature_hash_algorithm is None:
        return False
    try:
        key.verify(
            certificate.signature,
            certificate.tbs_certificate_bytes,
            padding.PKCS1v15(),
            certificate.signature_hash_algorithm,
        )
    except InvalidSignature:
        return False
    return True


def read_toml(path: Path, sections: tuple[str, ...]) -> dict[str, Any]:
    """A file of a kit that has no other sections than these."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KitError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KitError(f"{path}: is not a TOML file: {error}") from None
    if wrong := find_wrong_section(document, sections):
        raise KitError(f"{path}: {wrong}")
    return document
