"""How a client shows who it is: not at all, by its secret, or by a statement that it signs.

RFC 6749 (2.3.1), OpenID Connect Core (9), RFC 7523 (2.2).
"""

from __future__ import annotations

import base64
import re
import textwrap
from typing import Any, Final
from urllib.parse import quote

from authlib.common.urls import add_params_to_qs
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc7523 import private_key_jwt_sign
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from servers.oauth.types import AuthMethod, Client, OAuthError, Provider

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# It is used at once; clocks may differ by minutes.
ASSERTION_SECONDS: Final = 300
_PEM = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)(.*?)(-----END [A-Z0-9 ]+-----)", re.DOTALL)
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA: Final = ("RS256", "PS256", "RS384", "PS384", "RS512", "PS512")

Proof = tuple[dict[str, str], str]


def prove(
    client: Client,
    method: AuthMethod,
    provider: Provider,
    *,
    endpoint: str,
    audience: str,
    form: str,
) -> Proof:
    """Headers and body of a request that says who asks, in one way only (RFC 6749, 2.3).

    Raises `OAuthError` for a key that cannot sign.
    """
    headers: dict[str, str] = {}
    way: Any = method
    if method == "client_secret_basic":
        way = _basic
    if method == "private_key_jwt":
        return headers, _signed(client, provider, audience, form)
    auth = ClientAuth(client.client_id, client.secret, way)
    _, headers, body = auth.prepare("POST", endpoint, headers, form)
    return headers, body


def _basic(auth: ClientAuth, method: str, url: str, headers: dict[str, str], body: str) -> Any:
    """Both parts are encoded first (RFC 6749, 2.3.1), which Authlib's own leaves out."""
    pair = f"{quote(auth.client_id, safe='')}:{quote(auth.client_secret, safe='')}"
    encoded = base64.b64encode(pair.encode()).decode()
    return url, {**headers, "Authorization": f"Basic {encoded}"}, body


def _signed(client: Client, provider: Provider, audience: str, form: str) -> str:
    key, algorithm = _signing_key(client.secret, provider)
    try:
        assertion = private_key_jwt_sign(
            key, client.client_id, audience, alg=algorithm, expires_in=ASSERTION_SECONDS
        )
    except (JoseError, ValueError) as error:
        raise _unusable() from error
    # The ID need not be there (RFC 7521, 4.2); some providers look for it.
    parameters = {
        "client_id": client.client_id,
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": assertion,
    }
    body: str = add_params_to_qs(form, parameters)
    return body


def tidy_pem(text: str) -> str:
    """A key as files have it, out of one that lost its line breaks in a form or in JSON."""
    found = _PEM.fullmatch(text.replace("\\n", "\n").strip())
    if found is None:
        return text
    begin, content, end = found.groups()
    return "\n".join([begin, *textwrap.wrap("".join(content.split()), 64), end, ""])


def _signing_key(pem: str, provider: Provider) -> tuple[RSAKey | ECKey | OKPKey, str]:
    """The key and the algorithm that goes with it."""
    pem, offered = tidy_pem(pem), provider.token_auth_algorithms or ()
    try:
        private = load_pem_private_key(pem.encode(), password=None)
        if isinstance(private, rsa.RSAPrivateKey):
            return RSAKey.import_key(pem), next((a for a in _RSA if a in offered), _RSA[0])
        if isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name in _CURVES:
            return ECKey.import_key(pem), _CURVES[private.curve.name]
        if isinstance(private, ed25519.Ed25519PrivateKey):
            return OKPKey.import_key(pem), "Ed25519" if "Ed25519" in offered else "EdDSA"
    except (ValueError, TypeError, UnsupportedAlgorithm, JoseError) as error:
        raise _unusable() from error
    raise _unusable()


def _unusable() -> OAuthError:
    return OAuthError(
        "The client secret is a private key that cannot be read, or that no algorithm here "
        "signs with.",
        "Enter an RSA, EC (P-256, P-384, P-521) or Ed25519 key in PEM, without a passphrase.",
    )
