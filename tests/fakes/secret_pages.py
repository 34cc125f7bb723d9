"""The pages of secrets as a test asks for them; none of their answers may hold a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.test import Client

from secrets_vault.models import Secret
from secrets_vault.services import SecretData, create_secret

CANARY = "canary-value-91c2"
LIST, CREATE = "/settings/secrets/", "/settings/secrets/new/"
OPTIONS, QUICK = "/settings/secrets/options/", "/settings/secrets/quick/"


def make(name: str, **kwargs: Any) -> Secret:
    data = SecretData(**{"value": CANARY, **kwargs})
    return create_secret(actor=None, name=name, data=data).secret


def page(client: Client, url: str, status: int = 200, *, htmx: bool = False) -> str:
    response = client.get(url, headers={"HX-Request": "true"} if htmx else {})
    assert response.status_code == status
    text = response.content.decode()
    assert CANARY not in text
    return text


def post(client: Client, url: str, data: Mapping[str, Any], status: int) -> str:
    response = client.post(url, data)
    assert response.status_code == status
    text = response.content.decode()
    assert CANARY not in text
    return text


def fill(count: int) -> None:
    secret = make("S")
    rows = [
        Secret(
            name=f"SECRET_{number:04}",
            ciphertext=secret.ciphertext,
            key_id=secret.key_id,
            updated_at=secret.updated_at,
        )
        for number in range(count)
    ]
    Secret.objects.bulk_create(rows)
