"""How a client shows who it is: Basic, the body, or a signed statement (RFC 6749, 2.3; 7523)."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
import time_machine
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from servers.oauth import grants
from servers.oauth.assertions import prove, tidy_pem
from servers.oauth.types import AuthMethod, Client, OAuthError, Provider, ProviderRefusal
from tests.fakes.oauth_providers import provider_of
from tests.fakes.oauth_server import OAuthServer, Variant

NOW = 1_800_000_000
PROVIDER = Provider("https://as", "https://as/authorize", "https://as/token")


def pem(key: Any, kind: PrivateFormat = PrivateFormat.PKCS8, password: bytes = b"") -> str:
    protection = BestAvailableEncryption(password) if password else NoEncryption()
    text: bytes = key.private_bytes(Encoding.PEM, kind, protection)
    return text.decode()


def public_pem(key: Any) -> str:
    text: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)


def proof(
    method: AuthMethod, secret: str, client_id: str = "mine", provider: Provider = PROVIDER
) -> tuple[dict[str, str], dict[str, str]]:
    client = Client(client_id, "operator", method, secret)
    headers, body = prove(
        client,
        method,
        provider,
        endpoint="https://as/token",
        audience="https://as",
        form="grant_type=client_credentials&resource=https%3A%2F%2Fh%2Fa%2Bb",
    )
    form = dict(parse_qsl(body, keep_blank_values=True))
    assert form.pop("grant_type") == "client_credentials"
    assert form.pop("resource") == "https://h/a+b"  # A04: encoded anew, byte for byte the same
    return headers, form


class TestSecrets:
    @pytest.mark.parametrize(
        ("client_id", "secret"),
        [("mine", "s3cret"), ("a:b", "p@ss:w/rd+=%"), ("é", "密 码"), ("m", "x" * 8000)],
    )
    def test_basic_encodes_both_parts(self, client_id: str, secret: str) -> None:
        """RFC 6749, 2.3.1: form-encoded first, so that a colon in an ID is none between them."""
        headers, form = proof("client_secret_basic", secret, client_id)
        scheme, _, value = headers["Authorization"].partition(" ")
        parts = base64.b64decode(value).decode().split(":")
        assert scheme == "Basic"
        assert [unquote(part) for part in parts] == [client_id, secret]
        assert form == {}

    def test_post_puts_both_in_the_body(self) -> None:
        headers, form = proof("client_secret_post", "p@ss:w/rd+=%")
        assert headers == {}
        assert form == {"client_id": "mine", "client_secret": "p@ss:w/rd+=%"}

    def test_a_public_client_names_itself(self) -> None:
        """RFC 6749, 3.2.1."""
        assert proof("none", "") == ({}, {"client_id": "mine"})


class TestSigned:
    """RFC 7523, 2.2 and 3."""

    @time_machine.travel(NOW, tick=False)
    def test_a_statement_says_who_to_whom_and_for_how_long(self) -> None:
        headers, form = proof("private_key_jwt", pem(EC_KEY))
        assert headers == {}
        assert set(form) == {"client_id", "client_assertion", "client_assertion_type"}
        assert form["client_id"] == "mine"
        assert form["client_assertion_type"] == (
            "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        )
        key = ECKey.import_key(public_pem(EC_KEY))
        token = jwt.decode(form["client_assertion"], key, algorithms=["ES256"])
        jti = token.claims.pop("jti")
        assert len(jti) > 20
        assert token.claims == {
            "iss": "mine", "sub": "mine", "aud": "https://as", "iat": NOW, "exp": NOW + 300,
        }  # fmt: skip

    def test_each_statement_is_another_one(self) -> None:
        """RFC 7523, 3 (7): providers refuse one that they have seen."""
        first, second = (proof("private_key_jwt", pem(EC_KEY))[1] for _ in range(2))
        assert first["client_assertion"] != second["client_assertion"]

    # The name that providers know; RFC 9864 has another one.
    @pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
    @pytest.mark.parametrize(
        ("key", "algorithm"),
        [
            (ec.generate_private_key(ec.SECP384R1()), "ES384"),
            (ec.generate_private_key(ec.SECP521R1()), "ES512"),
            (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
            (RSA_KEY, "RS256"),
        ],
    )
    def test_the_algorithm_goes_with_the_key(self, key: Any, algorithm: str) -> None:
        _, form = proof("private_key_jwt", pem(key))
        kinds: dict[str, Any] = {"E": ECKey, "R": RSAKey}
        kind = OKPKey if algorithm == "EdDSA" else kinds[algorithm[0]]
        public = kind.import_key(public_pem(key))
        token = jwt.decode(form["client_assertion"], public, algorithms=[algorithm])
        assert token.header["alg"] == algorithm

    @pytest.mark.parametrize(
        ("offered", "algorithm"),
        [(("ES256", "PS256"), "PS256"), (("RS512",), "RS512"), (("ES256",), "RS256")],
    )
    def test_rsa_signs_as_the_provider_says(self, offered: tuple[str, ...], algorithm: str) -> None:
        """token_endpoint_auth_signing_alg_values_supported (RFC 8414, 2)."""
        provider = Provider("https://as", "", "", token_auth_algorithms=offered)
        _, form = proof("private_key_jwt", pem(RSA_KEY), provider=provider)
        public = RSAKey.import_key(public_pem(RSA_KEY))
        token = jwt.decode(form["client_assertion"], public, algorithms=[algorithm])
        assert token.header["alg"] == algorithm

    def test_ed25519_signs_by_its_new_name_where_that_is_known(self) -> None:
        """RFC 9864."""
        key = ed25519.Ed25519PrivateKey.generate()
        provider = Provider("https://as", "", "", token_auth_algorithms=("Ed25519",))
        _, form = proof("private_key_jwt", pem(key), provider=provider)
        public = OKPKey.import_key(public_pem(key))
        token = jwt.decode(form["client_assertion"], public, algorithms=["Ed25519"])
        assert token.header["alg"] == "Ed25519"

    @pytest.mark.parametrize("kind", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
    @pytest.mark.parametrize("key", [EC_KEY, RSA_KEY])
    @pytest.mark.parametrize("lost", ["\n", "", " ", "\r\n", "\\n"])
    def test_line_breaks_may_have_been_lost(self, key: Any, kind: PrivateFormat, lost: str) -> None:
        """Fields of one line and JSON take them away."""
        text = pem(key, kind)
        assert tidy_pem(text.replace("\n", lost)) == text
        assert proof("private_key_jwt", text.replace("\n", lost))

    @pytest.mark.parametrize(
        "secret",
        [
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----",
            public_pem(EC_KEY),
            pem(EC_KEY, password=b"hush"),
            pem(ec.generate_private_key(ec.SECP256K1())),
            pem(dsa.generate_private_key(1024)),
            "",
        ],
        ids=["nonsense", "half", "public", "protected", "secp256k1", "dsa", "nothing"],
    )
    def test_a_key_that_cannot_sign_is_named(self, secret: str) -> None:
        with pytest.raises(OAuthError, match="private key that cannot be read") as caught:
            proof("private_key_jwt", secret)
        assert "without a passphrase" in caught.value.hint
        assert "BEGIN" not in caught.value.message

    @pytest.mark.filterwarnings("ignore:Key size")
    def test_a_key_too_short_for_the_algorithm_is_named(self) -> None:
        short = pem(rsa.generate_private_key(65537, 1024))
        provider = Provider("https://as", "", "", token_auth_algorithms=("PS512",))
        with pytest.raises(OAuthError, match="cannot be read, or that no algorithm"):
            proof("private_key_jwt", short, provider=provider)


class TestAtTheProvider:
    """RFC 7523, 3: the audience is the issuer, or the token endpoint for those who insist."""

    @pytest.mark.parametrize(("key", "algorithm"), [(EC_KEY, "ES256"), (RSA_KEY, "RS256")])
    async def test_a_statement_lets_a_machine_in(self, key: Any, algorithm: str) -> None:
        async with OAuthServer(Variant(auth_methods=("private_key_jwt",))) as fake:
            fake.add_client(
                "mine", method="private_key_jwt", public_key=public_pem(key), algorithm=algorithm
            )
            client = Client("mine", "operator", "private_key_jwt", pem(key))
            tokens, same = await grants.client_credentials(
                provider_of(fake), client, resource=fake.resource, scopes=()
            )
            assert fake.grants.family_of(tokens.access_token)
        assert (same, fake.count("token")) == (client, 1)

    async def test_the_other_audience_is_tried(self) -> None:
        async with OAuthServer(Variant(auth_methods=("private_key_jwt",))) as fake:
            fake.add_client("mine", method="private_key_jwt", public_key=public_pem(EC_KEY))
            client = Client("mine", "operator", "private_key_jwt", pem(EC_KEY))
            provider = provider_of(fake, issuer="https://another-name.example.org")
            tokens, _ = await grants.client_credentials(
                provider, client, resource=fake.resource, scopes=()
            )
            assert fake.grants.family_of(tokens.access_token)
        assert fake.count("token") == 2

    async def test_another_key_is_refused(self) -> None:
        async with OAuthServer(Variant(auth_methods=("private_key_jwt",))) as fake:
            other = ec.generate_private_key(ec.SECP256R1())
            fake.add_client("mine", method="private_key_jwt", public_key=public_pem(other))
            client = Client("mine", "operator", "private_key_jwt", pem(EC_KEY))
            with pytest.raises(ProviderRefusal, match="no good") as caught:
                await grants.client_credentials(
                    provider_of(fake), client, resource=fake.resource, scopes=()
                )
        assert caught.value.error == "invalid_client"
        assert fake.count("token") == 2
