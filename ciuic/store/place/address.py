"""Opens the place that a store's address names: a path, or a URL of an object store."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from ciuic.errors import UsageError
from ciuic.store.place.credentials import find_access_key
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.keys import is_key
from ciuic.store.place.objects import Clients, ObjectPlace
from ciuic.store.place.place import Place
from ciuic.store.place.retries import PATIENCE_S
from ciuic.system.clock import Clock

__all__ = ["PlaceOptions", "open_place"]

_SCHEMES: Final = ("s3", "gs", "az", "file")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_QUICK_S: Final = 30
_CONNECT_S: Final = 10
_PAUSE_S: Final = 30
_BULK_S: Final = 600


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """How to reach an object store; a directory needs none of it.

    Attributes:
        endpoint: URL of the server; empty: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, or the
            service of the URL's scheme.
        region: Region of the bucket; empty: ``AWS_REGION`` or ``us-east-1``.
        credentials_file: A file with credentials; empty: the usual environment variables and
            files. For S3, the format of ``~/.aws/credentials``; for Google, a key in JSON.
        path_style: The bucket is a part of the path, not of the host's name.
        patience_s: No attempt of a request begins later than this after the first one.
        quick_s: The time limit of a small request.
    """

    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""
    path_style: bool = True
    patience_s: float = PATIENCE_S
    quick_s: float = _QUICK_S


def open_place(
    address: str,
    environment: Mapping[str, str],
    options: PlaceOptions | None = None,
    *,
    clock: Clock | None = None,
) -> Place:
    """Open the place at an address; no request is sent, and no directory is created.

    Args:
        address: An absolute path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``
            or ``az://container/prefix``.
        environment: The environment variables.
        options: How to reach an object store.
        clock: Measures and makes the pauses between attempts.

    Raises:
        UsageError: The address can't be understood, or the credentials file can't be used.
        StoreError: The directory can't be found.
    """
    options = options or PlaceOptions()
    if address.startswith("/"):
        return DirectoryPlace(address, clock=clock)
    url = _split(address)
    if url.scheme == "file":
        return DirectoryPlace(url.path, clock=clock)
    prefix = url.path.strip("/")
    try:
        clients = _clients(url, prefix, options, environment)
    except BaseError:
        # Not chained: the client's message may quote a credential.
        raise UsageError(
            f"the options for {url.scheme}://{url.netloc} are not valid for an object store",
            hint="Check the endpoint, the region and the credentials file.",
        ) from None
    name = f"{url.scheme}://{url.netloc}/{prefix}"
    return ObjectPlace(name, clients, clock=clock, patience_s=options.patience_s)


def _split(address: str) -> SplitResult:
    hint = "Write a path, or s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
    try:
        url = urlsplit(address)
    except ValueError:
        raise UsageError("the store's address is not a URL", hint=hint) from None
    if "@" in address and url.scheme != "file":
        # The address is not quoted: it holds a password, which may have any character.
        raise UsageError(
            "the store's address holds a user name or a password",
            hint="Leave them out, and name a credentials file.",
        )
    if not url.scheme or url.scheme not in _SCHEMES:
        scheme = f"'{url.scheme}:' is not a kind of store" if url.scheme else "a relative path"
        raise UsageError(f"the store's address {address!r}: {scheme}", hint=hint)
    if url.query or url.fragment:
        raise UsageError(
            f"the store's address {address.partition('?')[0].partition('#')[0]!r} is followed"
            " by '?' or '#'",
            hint="Leave that part out; the configuration has keys for options.",
        )
    if url.scheme == "file":
        if url.netloc or not url.path.startswith("/"):
            raise UsageError(
                f"the store's address {address!r} names another machine",
                hint="Write three slashes: file:///path.",
            )
        return url
    if not _BUCKET.fullmatch(url.netloc):
        # Not quoted: a user may have put a key there.
        raise UsageError(
            f"the store's address has no valid bucket name after '{url.scheme}://'", hint=hint
        )
    prefix = url.path.strip("/")
    if prefix and not is_key(prefix):
        raise UsageError(
            f"the store's address {address!r} has a prefix with a forbidden character or '..'",
            hint="Use letters, digits, '.', '_', '-' and '/'.",
        )
    return url


def _clients(
    url: SplitResult, prefix: str, options: PlaceOptions, environment: Mapping[str, str]
) -> Clients:
    if url.scheme == "s3":
        config = _s3_config(url.netloc, options, environment)
        return Clients(
            quick=_s3(url.netloc, prefix, config, timeout_s=options.quick_s),
            reading=_s3(url.netloc, prefix, config, read_timeout_s=_PAUSE_S),
            writing=_s3(url.netloc, prefix, config),
        )
    if url.scheme == "gs":
        return _same(_gcs(url.netloc, prefix, options))
    return _same(_azure(url.netloc, prefix, options))


def _s3_config(
    bucket: str, options: PlaceOptions, environment: Mapping[str, str]
) -> dict[str, str | bool]:
    config: dict[str, str | bool] = {"virtual_hosted_style_request": not options.path_style}
    endpoint = (
        options.endpoint
        or environment.get("AWS_ENDPOINT_URL_S3", "")
        or environment.get("AWS_ENDPOINT_URL", "")
    )
    if endpoint:
        config["endpoint"] = endpoint if options.path_style else _with_bucket(endpoint, bucket)
    if options.region:
        config["region"] = options.region
    key = find_access_key(options.credentials_file, environment)
    if key is not None:
        config["access_key_id"] = key.id
        config["secret_access_key"] = key.secret
        if key.token:
            config["session_token"] = key.token
    return config


def _s3(
    bucket: str,
    prefix: str,
    # Any: a TypedDict of obstore that can't be imported at run time.
    config: Any,
    *,
    timeout_s: float = _BULK_S,
    read_timeout_s: float = _BULK_S,
) -> ObjectStore:
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options={
            "allow_http": str(config.get("endpoint", "")).startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=timeout_s),
            "read_timeout": timedelta(seconds=read_timeout_s),
        },
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )


def _with_bucket(endpoint: str, bucket: str) -> str:
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def _gcs(bucket: str, prefix: str, options: PlaceOptions) -> ObjectStore:
    # Any: a TypedDict of obstore that can't be imported at run time.
    config: Any = {}
    if options.credentials_file:
        config["application_credentials"] = options.credentials_file
    if options.endpoint:
        config["base_url"] = options.endpoint
    return GCSStore(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options={"allow_http": options.endpoint.startswith("http://")},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )


def _azure(container: str, prefix: str, options: PlaceOptions) -> ObjectStore:
    if options.credentials_file:
        raise UsageError(
            "Azure takes no credentials file",
            hint="Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
        )
    return AzureStore(
        container,
        prefix=prefix or None,
        config={"endpoint": options.endpoint} if options.endpoint else None,
        client_options={"allow_http": options.endpoint.startswith("http://")},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )


def _same(client: ObjectStore) -> Clients:
    return Clients(quick=client, reading=client, writing=client)
