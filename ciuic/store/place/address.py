"""Opens the place that a store's address names: a path, or a URL of an object store."""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from ciuic.errors import UsageError
from ciuic.store.place.credentials import AccessKey, find_access_key
from ciuic.store.place.directory import DirectoryPlace
from ciuic.store.place.location import PlaceOptions, bucket_name, endpoint_url, split_address
from ciuic.store.place.objects import Clients, FileSender, ObjectPlace
from ciuic.store.place.place import Place
from ciuic.system.clock import Clock

__all__ = ["open_place"]

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINT: Final = "aws_endpoint_url_s3"
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION: Final = re.compile(r"[A-Za-z0-9_-]+")
_PAUSE_S: Final = 30
_BULK_S: Final = 600


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
        UsageError: The address cannot be understood, or the credentials file cannot be used.
        StoreError: The directory cannot be found.
    """
    options = options or PlaceOptions()
    if address.startswith("/"):
        return DirectoryPlace(address, clock=clock)
    url = split_address(address)
    if url.scheme == "file":
        return DirectoryPlace(url.path, clock=clock)
    prefix = url.path.strip("/")
    renewed: Callable[[], Clients | None] | None = None
    key_source, server = "", options.endpoint
    try:
        if url.scheme == "s3":
            server = server or _endpoint(environment)
            bucket = _S3(url.netloc, prefix, options, environment)
            clients, renewed, key_source = bucket.clients(), bucket.renewed, bucket.key_source
        elif url.scheme == "gs":
            clients = _same(_gcs(url.netloc, prefix, options))
        else:
            clients = _same(_azure(url.netloc, prefix, options))
    except BaseError:
        # Not chained: the client's message may quote a credential.
        raise UsageError(
            f"the options for {url.scheme}://{url.netloc} are not valid for an object store",
            hint="Check the endpoint, the region and the credentials file.",
        ) from None
    return ObjectPlace(
        bucket_name(url),
        clients,
        renewed=renewed,
        key_source=key_source,
        server=server,
        clock=clock,
        patience_s=options.patience_s,
    )


class _S3:
    """Makes the clients of a bucket of S3, with the access key as it is at that time."""

    def __init__(
        self, bucket: str, prefix: str, options: PlaceOptions, environment: Mapping[str, str]
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._options = options
        self._environment = environment
        self._key = find_access_key(options.credentials_file, environment)

    @property
    def key_source(self) -> str:
        """What has named the access key; empty: the client asks the machine for one."""
        return self._key.source if self._key is not None else ""

    def clients(self) -> Clients:
        """Return clients with the access key."""
        options = self._options
        config = _s3_config(self._bucket, options, self._environment)
        client = partial(_s3, self._bucket, self._prefix, config, options, self._key)
        writing = client()
        return Clients(
            quick=client(timeout_s=options.quick_s),
            reading=client(read_timeout_s=_PAUSE_S),
            writing=writing,
            files=functools.cache(
                partial(_file_uploads, writing, self._key, options, self._environment)
            ),
        )

    def renewed(self) -> Clients | None:
        """Return clients with the access key of the credentials file, if it is another one now."""
        key = None
        # What the server said is of more use than that the file is just being written.
        with contextlib.suppress(UsageError):
            key = find_access_key(self._options.credentials_file, self._environment)
        if key is None or key == self._key:
            return None
        self._key = key
        return self.clients()


def _s3_config(
    bucket: str, options: PlaceOptions, environment: Mapping[str, str]
) -> dict[str, str | bool]:
    config: dict[str, str | bool] = {"virtual_hosted_style_request": not options.path_style}
    endpoint = options.endpoint or _endpoint(environment)
    if endpoint:
        # Not "endpoint": AWS_ENDPOINT_URL_S3 of the environment would replace that.
        config[_ENDPOINT] = endpoint if options.path_style else _with_bucket(endpoint, bucket)
    if options.region:
        config["region"] = options.region
    else:
        _check_region(environment)
    return config


def _endpoint(environment: Mapping[str, str]) -> str:
    """Return the URL of the server that the environment names; empty: it names none.

    Raises:
        UsageError: It cannot be one, and the client would abort. The message does not quote it,
            because it may hold a password.
    """
    for name in _ENDPOINTS:
        if value := environment.get(name):
            try:
                return endpoint_url(value)
            except ValueError as error:
                raise UsageError(f"{name} cannot be used: {error}", hint=_unset(name)) from None
    return ""


def _check_region(environment: Mapping[str, str]) -> None:
    """Refuse a region of the environment with which the client would abort.

    Raises:
        UsageError: It cannot be one.
    """
    for name in _REGIONS:
        if (value := environment.get(name)) and not _REGION.fullmatch(value):
            raise UsageError(f"{name} is not the name of a region", hint=_unset(name))


def _unset(name: str) -> str:
    return f"Correct or unset the environment variable {name}."


def _s3(
    bucket: str,
    prefix: str,
    # Any: a TypedDict of obstore that cannot be imported at run time.
    config: Any,
    options: PlaceOptions,
    key: AccessKey | None,
    *,
    timeout_s: float = _BULK_S,
    read_timeout_s: float = _BULK_S,
) -> S3Store:
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        # Not in ``config``: a key without a token would get that of AWS_SESSION_TOKEN.
        credential_provider=partial(_credential, key) if key is not None else None,
        client_options={
            "allow_http": str(config.get(_ENDPOINT, "")).startswith("http://"),
            "connect_timeout": timedelta(seconds=options.connect_s),
            "timeout": timedelta(seconds=timeout_s),
            "read_timeout": timedelta(seconds=read_timeout_s),
        },
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )


# Any: as above, an S3Credential.
def _credential(key: AccessKey) -> Any:
    return {
        "access_key_id": key.id,
        "secret_access_key": key.secret,
        "token": key.token or None,
        "expires_at": None,
    }


def _file_uploads(
    client: S3Store, key: AccessKey | None, options: PlaceOptions, environment: Mapping[str, str]
) -> FileSender:
    # Imported here: most commands upload nothing large, and it imports an HTTP client.
    from ciuic.store.place.uploads.s3 import FileUploads

    return FileUploads(client, key, environment, options.connect_s)


def _with_bucket(endpoint: str, bucket: str) -> str:
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def _gcs(bucket: str, prefix: str, options: PlaceOptions) -> ObjectStore:
    # Any: a TypedDict of obstore that cannot be imported at run time.
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
