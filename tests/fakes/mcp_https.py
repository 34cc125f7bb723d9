"""The fake server over HTTP behind TLS, and the certificate for it."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.fakes.mcp_http import FakeHttp, Script, _Reader


class TlsHttp(FakeHttp):
    """The fake behind TLS."""

    def __init__(self, context: ssl.SSLContext, script: Script | None = None) -> None:
        super().__init__(script=script)
        self._context = context

    @property
    def url(self) -> str:
        return super().url.replace("http:", "https:")

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(_Reader(), self._serve, loop)

        self._server = await loop.create_server(protocol, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self


def certificate(directory: Path) -> Path:
    """For 127.0.0.1, signed by itself; the key stands in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    place = directory / "server.pem"
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    place.write_bytes(plain + made.public_bytes(Encoding.PEM))
    return place
