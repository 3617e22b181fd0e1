"""Who may call, and how often."""

import base64
import binascii
import hashlib
import hmac

from limits import RateLimitItem, parse

from service.errors import Forbidden, RateLimited, Unauthorized
from service.metrics import Metrics
from service.observe import Exchange
from service.peers import Peers
from service.settings import Settings

KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""How a key is sent, as OpenAPI's `securitySchemes`."""

KEY_NEEDED: list[dict[str, list[str]]] = [{name: []} for name in KEY_SCHEMES]
"""OpenAPI's `security` of an operation that needs a key, either way."""


class Access:
    """API keys and the rate limit, both off unless they are set, and admin keys, without which nobody is one.

    A caller is its key where keys are asked for, else its address.
    """

    def __init__(self, settings: Settings, metrics: Metrics, peers: Peers) -> None:
        """Read `api_keys` and `admin_keys`, kept as digests, and `rate_limit`, which is counted by `peers`."""
        self._keys, self._admin_keys = _digests(settings.api_keys), _digests(settings.admin_keys)
        self._rate: RateLimitItem | None = parse(settings.rate_limit) if settings.rate_limit else None
        self._peers = peers
        self._metrics = metrics

    async def check(self, exchange: Exchange, client: tuple[str, int] | None) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: if a key is asked for and none came.
            Forbidden: if the key is not known.
            RateLimited: if the caller is over its rate.
        """
        caller = client[0] if client else "unknown"
        if self._keys:
            caller = _check_key(exchange, self._keys + self._admin_keys, "the API key is not known")
        if self._rate is not None and (wait_s := await self._peers.hit(caller)):
            self._metrics.rejected.labels("rate").inc()
            raise RateLimited(f"more than {self._rate} from one caller", retry_after_s=wait_s)

    def check_admin(self, exchange: Exchange) -> None:
        """Let a request pass that changes what is served.

        Raises:
            Unauthorized: if no key came.
            Forbidden: if the key is not an admin's, or nobody is one.
        """
        if not self._admin_keys:
            raise Forbidden(
                "nobody may do this here; to allow it to those with a certain key, set ATTENTION_ADMIN_KEYS"
            )
        _check_key(exchange, self._admin_keys, "this takes one of ATTENTION_ADMIN_KEYS; another key came")


def _digests(keys: tuple[str, ...]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _check_key(exchange: Exchange, known: list[bytes], otherwise: str) -> str:
    """The digest of a request's key, if it is one of those known."""
    keys = _keys(exchange)
    if not keys:
        raise Unauthorized("send an API key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    for key in keys:
        digest = hashlib.sha256(key).digest()
        # Every key is compared, and in constant time, so that timing tells nothing.
        if sum(hmac.compare_digest(digest, one) for one in known):
            return digest.hex()
    raise Forbidden(otherwise)


def _keys(exchange: Exchange) -> list[bytes]:
    """What came as a key: one, or, where a client can send a user and a password only, either of them."""
    if key := exchange.headers.get(b"x-api-key", b""):
        return [key]
    scheme, _, token = exchange.headers.get(b"authorization", b"").partition(b" ")
    found: list[bytes] = []
    if scheme.lower() == b"bearer":
        found = [token.strip()]
    elif scheme.lower() == b"basic":
        try:
            user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        except binascii.Error:
            return []
        found = [password, user] if colon else []
    return [key for key in found if key]
