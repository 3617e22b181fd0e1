"""Who may call, and how often."""

import hashlib
import hmac
import time

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from service.errors import Forbidden, RateLimited, Unauthorized
from service.metrics import Metrics
from service.observe import Exchange
from service.settings import Settings

KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""How a key is sent, as OpenAPI's `securitySchemes`."""

KEY_NEEDED: list[dict[str, list[str]]] = [{name: []} for name in KEY_SCHEMES]
"""OpenAPI's `security` of an operation that needs a key, either way."""


class Access:
    """API keys and the rate limit, both off unless they are set, and admin keys, without which nobody is one.

    A caller is its key where keys are asked for, else its address.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Read `api_keys`, `admin_keys` and `rate_limit`; keys are kept as digests."""
        self._keys, self._admin_keys = _digests(settings.api_keys), _digests(settings.admin_keys)
        self._rate: RateLimitItem | None = parse(settings.rate_limit) if settings.rate_limit else None
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._metrics = metrics

    def check(self, exchange: Exchange, client: tuple[str, int] | None) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: if a key is asked for and none came.
            Forbidden: if the key is not known.
            RateLimited: if the caller is over its rate.
        """
        caller = client[0] if client else "unknown"
        if self._keys:
            caller = _check_key(exchange, self._keys + self._admin_keys, "the API key is not known")
        if self._rate is not None and not self._limiter.hit(self._rate, caller):
            self._metrics.rejected.labels("rate").inc()
            reset, _ = self._limiter.get_window_stats(self._rate, caller)  # on the wall clock, as the library counts
            raise RateLimited(f"more than {self._rate} from one caller", retry_after_s=max(1.0, reset - time.time()))

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
    key = exchange.header(b"x-api-key")
    scheme, _, token = exchange.header(b"authorization").partition(" ")
    if not key and scheme.lower() == "bearer":
        key = token.strip()
    if not key:
        raise Unauthorized("send an API key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    digest = hashlib.sha256(key.encode("latin-1", "replace")).digest()
    # Every key is compared, and in constant time, so that timing tells nothing.
    if sum(hmac.compare_digest(digest, one) for one in known) == 0:
        raise Forbidden(otherwise)
    return digest.hex()
